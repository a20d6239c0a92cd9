"""Scoring candidates with a vision-language model on one GPU: shared beginnings against one prompt at a time.

    python benchmarks/gpu_scoring.py --out gpu.json      a model of Qwen2.5-VL-3B's shape, random weights, bfloat16
    python benchmarks/gpu_scoring.py --tiny              the same steps with a tiny model, on a CPU, in seconds

The workload is one step of a search: 32 queries x 64 candidates for the second of two demonstrations, the first one
fixed, 200 different pictures of 448 x 448 pixels, prompts of 894 tokens, answers of 5 tokens. Every figure of the
batched side includes the vision tower (pictures are seen once a section, features start empty) and building the
prompts; decoding picture files is on neither side. One at a time is `model.generate` with its pictures encoded for
every prompt, greedy and with 3 beams, on a sample of the same prompts whose size is in the result.

The model is measured as transformers has it (`vision_before`, and `logprob_before` on some of the prompts), then with
the faster parts of `leverplus.models.hf.quick`. FLOP are counted from the shapes; a share is of 989 TFLOP/s, the
dense bfloat16 peak of an H200.

Answers are compared token by token. Random weights make near ties common and bfloat16 decides them by rounding, so
differences are counted apart where the two tokens' logits are closer than bfloat16 itself moves them (measured against
float32 on some prompts); in float32 both ways must agree. Needs torch, numpy and transformers only.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from leverplus.models.hf.language import Language
from leverplus.models.hf.pictures import PictureTable, Unfolded, vision_encoder
from leverplus.models.hf.quick import quicken
from leverplus.models.hf.reader import PromptReading, Reader
from leverplus.models.hf.tree import Prompt

TARGETS = {"logprob": 200.0, "generation": 170.0}
"""Candidates a second."""

PEAK = 989e12
"""Dense bfloat16 FLOP a second of an H200, by its data sheet."""

ANSWER = 5
IMAGE, VIDEO, START, END = 0, 1, 2, 3
"""Token ids in the tiny vocabulary; the full one uses Qwen's own."""


@dataclass(frozen=True)
class Size:
    """How large model and workload are."""

    side: int
    queries: int
    candidates: int
    pictures: int
    head: int
    demo: int
    query: int
    batch_tokens: int
    unshared: int
    greedy: int
    beams: int
    exact: int


FULL = Size(448, 32, 64, 200, 14, 36, 34, 65536, 1024, 24, 12, 8)
TINY = Size(112, 3, 5, 12, 6, 7, 5, 512, 10, 5, 3, 4)


@dataclass
class Bench:
    """A model, its workload, and what was measured."""

    size: Size
    model: Any
    device: torch.device
    ids: dict[str, int]
    pixels: list[torch.Tensor]
    words: list[np.ndarray]
    pairs: list[tuple[int, int]]
    answers: list[tuple[int, ...]]
    results: dict[str, Any] = field(default_factory=dict)
    save: Callable[[], None] = lambda: None

    @property
    def grid(self) -> int:
        return self.size.side // 14


def build_model(tiny: bool, device: torch.device) -> tuple[Any, dict[str, int]]:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    if tiny:
        ids = {"image": IMAGE, "video": VIDEO, "start": START, "end": END}
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
        text = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        text |= {"num_key_value_heads": 2, "vocab_size": 300, "rope_parameters": rope}
        vision = {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 32,
        }
        vision |= {"fullatt_block_indexes": [1], "window_size": 56}
    else:
        ids = {"image": 151655, "video": 151656, "start": 151652, "end": 151653}
        rope = {
            "rope_type": "default",
            "mrope_section": [16, 24, 24],
            "rope_theta": 1e6,
        }
        text = {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
        }
        text |= {
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "rope_parameters": rope,
            "tie_word_embeddings": True,
        }
        vision = {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
        }
        vision |= {"fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112}
    text |= {
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "max_position_embeddings": 32768,
    }
    vision |= {"patch_size": 14, "spatial_merge_size": 2, "tokens_per_second": 2}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image"],
        video_token_id=ids["video"],
        vision_start_token_id=ids["start"],
        vision_end_token_id=ids["end"],
        tie_word_embeddings=not tiny,
        attn_implementation="sdpa",
    )
    dtype, before = torch.float32 if tiny else torch.bfloat16, torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = Qwen2_5_VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(before)
    # no cast of the whole model: rotary frequencies stay in float32, as in a loaded model
    return model.to(device).eval().requires_grad_(False), ids


def build(tiny: bool, device: torch.device) -> Bench:
    """Model and workload; picture 0 is the first demonstration's, then come the queries', then the candidates'."""
    size = TINY if tiny else FULL
    model, ids = build_model(tiny, device)
    rng = np.random.default_rng(0)
    low, high = (10, 300) if tiny else (1000, 100000)
    grid = size.side // 14
    generator = torch.Generator().manual_seed(1)
    pixels = [
        4.0 * torch.rand(grid * grid, 3 * 2 * 14 * 14, generator=generator) - 2.0
        for _ in range(size.pictures)
    ]
    lengths = (
        [size.demo]
        + [size.query] * size.queries
        + [size.demo] * (size.pictures - 1 - size.queries)
    )
    words = [rng.integers(low, high, length) for length in lengths]
    words.append(rng.integers(low, high, size.head))
    others = np.arange(1 + size.queries, size.pictures)
    pairs = [
        (1 + query, int(candidate))
        for query in range(size.queries)
        for candidate in rng.choice(others, size.candidates, replace=False)
    ]
    answers = [
        tuple(int(t) for t in rng.integers(low, high, ANSWER))
        for _ in range(size.queries)
    ]
    return Bench(size, model, device, ids, pixels, words, pairs, answers)


def marked_ids(bench: Bench, pair: tuple[int, int]) -> np.ndarray:
    """Head, first demonstration, candidate, query; one image token stands for each picture."""
    frame = [bench.ids["start"], bench.ids["image"], bench.ids["end"]]
    parts = [bench.words[-1]]
    for picture in (0, pair[1], pair[0]):
        parts += [np.array(frame), bench.words[picture]]
    return np.concatenate(parts).astype(np.int64)


def pictures_of(bench: Bench, model: Any) -> PictureTable:
    return PictureTable(
        bench.ids["image"],
        vision_encoder(model),
        capacity=bench.size.pictures,
        device=bench.device,
        turning=True,
    )


def unfolded(bench: Bench, picture: int) -> Unfolded:
    half = bench.grid // 2
    inputs = {
        "pixel_values": bench.pixels[picture],
        "image_grid_thw": torch.tensor([[1, bench.grid, bench.grid]]),
    }
    return Unfolded((bench.ids["image"],) * (half * half), (half, half), inputs)


def prompts_of(
    bench: Bench, pictures: PictureTable, pairs: list[tuple[int, int]], *, weigh: bool
) -> list[Prompt]:
    prompts = []
    for pair in pairs:
        slots = [
            pictures.slot(str(p), lambda p=p: unfolded(bench, p))
            for p in (0, pair[1], pair[0])
        ]
        codes = pictures.codes(marked_ids(bench, pair), slots)
        answers = (bench.answers[pair[0] - 1],) if weigh else ()
        prompts.append(Prompt(codes, pictures.positions(codes), answers))
    return prompts


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def batched(
    bench: Bench, model: Any, pairs: list[tuple[int, int]], *, share: bool, write: bool
) -> tuple[list[PromptReading], dict[str, Any]]:
    """Read prompts in batches, from pictures to answers; the clock covers all of it."""
    synchronise(bench.device)
    started = time.perf_counter()
    pictures = pictures_of(bench, model)
    language = Language(model, pictures.insert)
    reader = Reader(language, batch_tokens=bench.size.batch_tokens, share=share)
    prompts = prompts_of(bench, pictures, pairs, weigh=not write)
    built = time.perf_counter() - started
    readings = reader.read(prompts, ANSWER if write else 0)
    synchronise(bench.device)
    seconds = time.perf_counter() - started
    tokens = sum(reading.tokens for reading in readings)
    return readings, {
        "n": len(pairs),
        "prompt_tokens": len(prompts[0].codes),
        "seconds": round(seconds, 3),
        "seconds_building_prompts": round(built, 3),
        "candidates_per_second": round(len(pairs) / seconds, 2),
        "tokens_computed": round(tokens),
        "share_of_peak": round(text_flop(bench, tokens) / seconds / PEAK, 3),
        "pictures_encoded": pictures.encoded,
    }


def vision_only(bench: Bench, count: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The features of some pictures, and how long they took; the second of two times, because kernels are chosen in the
    first one."""
    for _ in range(2):
        pictures = pictures_of(bench, bench.model)
        slots = [
            pictures.slot(str(p), lambda p=p: unfolded(bench, p)) for p in range(count)
        ]
        synchronise(bench.device)
        started = time.perf_counter()
        found = pictures.features(slots)
        synchronise(bench.device)
        seconds = time.perf_counter() - started
    rate = count / seconds
    flop = vision_flop(bench)
    return [one[0] for one in found], {
        "n": count,
        "seconds": round(seconds, 3),
        "pictures_per_second": round(rate, 1),
        "tflop_per_picture": round(flop / 1e12, 3),
        "share_of_peak": round(rate * flop / PEAK, 3),
    }


def vision_flop(bench: Bench) -> float:
    """Of one picture: two for every weight and patch, and the products of attention."""
    tower = bench.model.model.visual
    patches = bench.grid**2
    weights = sum(
        weight.numel()
        for block in tower.blocks
        for weight in block.parameters()
        if weight.ndim == 2
    )
    config = tower.config
    window = (config.window_size // config.patch_size) ** 2
    whole = len(config.fullatt_block_indexes)
    seen = whole * patches + (config.depth - whole) * min(
        window, patches
    )  # keys of a patch, over all layers
    return 2.0 * weights * patches + 4.0 * config.hidden_size * patches * seen


def text_flop(bench: Bench, tokens: float) -> float:
    """Of reading so many tokens: two for every weight of the decoder's layers; attention and head are left out."""
    layers = bench.model.get_decoder().layers
    weights = sum(weight.numel() for weight in layers.parameters() if weight.ndim == 2)
    return 2.0 * weights * tokens


def largest_difference(own: list[torch.Tensor], ours: list[torch.Tensor]) -> float:
    """Relative to the largest feature."""
    size = max(float(one.float().abs().max()) for one in own)
    return (
        max(
            float((a.float() - b.float()).abs().max())
            for a, b in zip(own, ours, strict=True)
        )
        / size
    )


@contextlib.contextmanager
def as_transformers_has_it(model: Any) -> Iterator[None]:
    """The model with its own parts for a while."""
    replaced = {}
    for module in model.modules():
        if "forward" in vars(module):
            replaced[module] = vars(module).pop("forward")
    try:
        yield
    finally:
        for module, forward in replaced.items():
            module.forward = forward


def model_inputs(
    bench: Bench, pair: tuple[int, int], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """What the model itself takes for one prompt."""
    ids = marked_ids(bench, pair)
    places = (bench.grid // 2) ** 2
    whole = np.concatenate(
        [np.full(places, t) if t == bench.ids["image"] else np.array([t]) for t in ids]
    )
    input_ids = torch.from_numpy(whole)[None].to(bench.device)
    inputs = {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "pixel_values": torch.cat([bench.pixels[p] for p in (0, pair[1], pair[0])]).to(
            bench.device, dtype
        ),
        "image_grid_thw": torch.tensor(
            [[1, bench.grid, bench.grid]] * 3, device=bench.device
        ),
    }
    if "mm_token_type_ids" in inspect.signature(bench.model.forward).parameters:
        inputs["mm_token_type_ids"] = (input_ids == bench.ids["image"]).int()
    return inputs


@torch.inference_mode()
def generate(
    bench: Bench, model: Any, pair: tuple[int, int], beams: int
) -> tuple[list[int], torch.Tensor | None]:
    """One prompt at a time, pictures encoded anew: the tokens written, and greedy's logits (5, V)."""
    dtype = next(model.parameters()).dtype
    settings = transformers.GenerationConfig(
        max_new_tokens=ANSWER,
        do_sample=False,
        num_beams=beams,
        eos_token_id=None,
        pad_token_id=bench.ids["end"],
        output_logits=beams == 1,
        return_dict_in_generate=True,
    )
    out = model.generate(**model_inputs(bench, pair, dtype), generation_config=settings)
    logits = torch.stack(out.logits)[:, 0].float().cpu() if beams == 1 else None
    return out.sequences[0, -ANSWER:].tolist(), logits


def one_by_one(
    bench: Bench, pairs: list[tuple[int, int]], beams: int
) -> tuple[list[Any], dict[str, Any]]:
    generate(bench, bench.model, pairs[0], beams)
    synchronise(bench.device)
    started = time.perf_counter()
    found = [generate(bench, bench.model, pair, beams) for pair in pairs]
    synchronise(bench.device)
    seconds = time.perf_counter() - started
    rate = round(len(pairs) / seconds, 3)
    return found, {
        "n": len(pairs),
        "seconds": round(seconds, 3),
        "candidates_per_second": rate,
    }


def sample(bench: Bench, count: int) -> list[int]:
    """Places of some prompts, spread over the workload."""
    return [int(place) for place in np.linspace(0, len(bench.pairs) - 1, count).round()]


def compare(
    ours: list[PromptReading], theirs: list[Any], noise: float
) -> dict[str, Any]:
    """Same answers, ties (the first tokens that differ are closer than the number format tells apart), others."""
    same = ties = 0
    gaps = []
    for reading, (tokens, logits) in zip(ours, theirs, strict=True):
        differs = [
            at
            for at, (a, b) in enumerate(zip(reading.written, tokens, strict=True))
            if a != b
        ]
        if not differs:
            same += 1
            continue
        at = differs[0]
        gap = float(logits[at, tokens[at]] - logits[at, reading.written[at]])
        gaps.append(round(gap, 4))
        ties += gap <= noise
    return {
        "n": len(theirs),
        "same": same,
        "ties": ties,
        "different": len(theirs) - same - ties,
        "logit_gaps_where_different": gaps,
        "tie_if_gap_at_most": round(noise, 4),
    }


def exact_check(bench: Bench, pairs: list[tuple[int, int]]) -> dict[str, Any]:
    """Both ways in float32, and how far bfloat16 moves the logits of the leading tokens."""
    few = min(16, bench.size.pictures)
    rough_features, _ = vision_only(bench, few)
    low = [generate(bench, bench.model, pair, 1) for pair in pairs]
    model = bench.model.float()
    torch.backends.cudnn.allow_tf32 = (
        False  # transformers cuts patches by a convolution, which would be rounded
    )
    fine_features, _ = vision_only(bench, few)
    with as_transformers_has_it(model):
        own_features, _ = vision_only(bench, few)
    theirs = [generate(bench, model, pair, 1) for pair in pairs]
    ours, _ = batched(bench, model, pairs, share=True, write=True)
    weighed, _ = batched(bench, model, pairs, share=True, write=False)
    gaps = []
    for pair, reading in zip(pairs, weighed, strict=True):
        gaps.append(abs(reading.logprobs[0] - answer_logprob(bench, model, pair)))
    moved = []
    for (_, rough), (_, fine) in zip(low, theirs, strict=True):
        top = fine[0].topk(min(100, fine.shape[1])).indices
        moved.append(float((rough[0, top] - fine[0, top]).abs().max()))
    found = compare(ours, theirs, 0.0)
    return {
        "n": len(pairs),
        "largest_feature_difference": largest_difference(own_features, fine_features),
        "bfloat16_moves_features_by": largest_difference(fine_features, rough_features),
        "same_answers": found["same"],
        "largest_logprob_difference": max(gaps),
        "bfloat16_moves_logits_by": max(moved),
    }


@torch.inference_mode()
def answer_logprob(bench: Bench, model: Any, pair: tuple[int, int]) -> float:
    """The log-probability of the answer by the model's own forward pass over the whole text."""
    inputs = model_inputs(bench, pair, next(model.parameters()).dtype)
    answer = torch.tensor([bench.answers[pair[0] - 1]], device=bench.device)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == bench.ids["image"]).int()
    logits = model(**inputs, use_cache=False).logits[0, -ANSWER - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, answer.T).sum())


@contextlib.contextmanager
def recorded(bench: Bench, name: str) -> Iterator[None]:
    """Run a section; what goes wrong is written down and the next section starts."""
    results = bench.results
    started = time.perf_counter()
    try:
        yield
    except Exception as error:  # a benchmark that is run once must report what it can
        results[name] = {
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-2000:],
        }
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(
        f"{name}: {time.perf_counter() - started:.1f} s  {json.dumps(results.get(name))[:400]}",
        flush=True,
    )
    bench.save()


def measure(bench: Bench, left: Callable[[], float]) -> None:
    """Every section; those that no longer fit the time are named as skipped."""
    results, size = bench.results, bench.size
    kept: dict[str, Any] = {}
    with recorded(bench, "vision_before"):
        kept["features"], results["vision_before"] = vision_only(
            bench, min(64, size.pictures)
        )
    with recorded(bench, "logprob_before"):
        part = bench.pairs[: size.unshared // 2]
        batched(bench, bench.model, part[:8], share=True, write=False)
        results["logprob_before"] = batched(
            bench, bench.model, part, share=True, write=False
        )[1]
    with recorded(bench, "quickened"):
        started = time.perf_counter()
        results["quickened"] = {
            "parts": quicken(bench.model),
            "seconds": round(time.perf_counter() - started, 2),
        }
    with recorded(bench, "warm_up"):
        few = [bench.pairs[place] for place in sample(bench, 8)]
        started = time.perf_counter()
        for write in (False, True):
            batched(bench, bench.model, few, share=True, write=write)
            batched(bench, bench.model, few, share=False, write=write)
        results["warm_up"] = {"seconds": round(time.perf_counter() - started, 3)}
    with recorded(bench, "vision_only"):
        features, results["vision_only"] = vision_only(bench, size.pictures)
        results["vision_only"]["largest_difference_to_before"] = largest_difference(
            kept["features"], features[: len(kept["features"])]
        )
    for write, kind in ((False, "logprob"), (True, "generation")):
        with recorded(bench, f"{kind}_shared"):
            kept[kind], results[f"{kind}_shared"] = batched(
                bench, bench.model, bench.pairs, share=True, write=write
            )
    with recorded(bench, "one_by_one_greedy"):
        places = sample(bench, size.greedy)
        kept["greedy"], results["one_by_one_greedy"] = one_by_one(
            bench, [bench.pairs[p] for p in places], 1
        )
    with recorded(bench, "one_by_one_3_beams"):
        few = [bench.pairs[place] for place in sample(bench, size.beams)]
        results["one_by_one_3_beams"] = one_by_one(bench, few, 3)[1]
    with recorded(bench, "logprob_differences"):
        places = sample(bench, size.greedy)
        gaps = [
            abs(
                kept["logprob"][p].logprobs[0]
                - answer_logprob(bench, bench.model, bench.pairs[p])
            )
            for p in places
        ]
        results["logprob_differences"] = {
            "n": len(gaps),
            "largest": max(gaps),
            "mean": float(np.mean(gaps)),
        }
    for write, kind in ((False, "logprob"), (True, "generation")):
        with recorded(bench, f"{kind}_unshared"):
            if left() < 35:
                raise TimeoutError(f"skipped: {left():.0f} s left")
            pairs = bench.pairs[: size.unshared]
            kept[f"{kind}_unshared"], results[f"{kind}_unshared"] = batched(
                bench, bench.model, pairs, share=False, write=write
            )
    with recorded(bench, "float32"):
        if left() < 15:
            raise TimeoutError(f"skipped: {left():.0f} s left")
        results["float32"] = exact_check(
            bench, [bench.pairs[place] for place in sample(bench, size.exact)]
        )
    with recorded(bench, "agreement"):
        noise = 2.0 * results["float32"].get("bfloat16_moves_logits_by", float("nan"))
        ours = [kept["generation"][place] for place in sample(bench, size.greedy)]
        results["agreement"] = compare(ours, kept["greedy"], noise)


def ratios(results: dict[str, Any]) -> dict[str, Any]:
    def rate(name: str) -> float | None:
        return (results.get(name) or {}).get("candidates_per_second")

    found = {}
    for name in (
        "logprob_shared",
        "generation_shared",
        "logprob_unshared",
        "generation_unshared",
    ):
        for other in ("one_by_one_greedy", "one_by_one_3_beams"):
            mine, theirs = rate(name), rate(other)
            found[f"{name} / {other}"] = (
                round(mine / theirs, 1) if mine and theirs else None
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="a tiny model and workload, to try the benchmark itself",
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=140.0,
        help="seconds after which long sections are skipped",
    )
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    given = parser.parse_args()
    started = time.perf_counter()
    device = torch.device(given.device)
    transformers.utils.logging.set_verbosity_error()
    bench = build(given.tiny, device)
    synchronise(device)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(next(bench.model.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(parameter.numel() for parameter in bench.model.parameters()),
        "shape": "tiny" if given.tiny else "Qwen2.5-VL-3B, random weights",
        "workload": {
            "queries": bench.size.queries,
            "candidates": bench.size.candidates,
            "pictures": bench.size.pictures,
            "side": bench.size.side,
            "answer_tokens": ANSWER,
            "batch_tokens": bench.size.batch_tokens,
        },
        "target_candidates_per_second": TARGETS,
        "seconds_building_the_model": round(time.perf_counter() - started, 2),
    }
    report["sections"] = bench.results

    def save() -> None:
        report["ratios"] = ratios(bench.results)
        report["target_met"] = {
            kind: (bench.results.get(f"{kind}_shared") or {}).get(
                "candidates_per_second", 0.0
            )
            >= target
            for kind, target in TARGETS.items()
        }
        if device.type == "cuda":
            report["peak_memory_gib"] = round(
                torch.cuda.max_memory_allocated(device) / 2**30, 1
            )
        report["seconds_in_all"] = round(time.perf_counter() - started, 1)
        if given.out:
            given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    bench.save = save
    measure(bench, lambda: given.budget - (time.perf_counter() - started))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
