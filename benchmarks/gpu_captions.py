"""One-shot calls a second of a language model on OK-VQA by captions, as a run asks them: prompts, answers, words.

    python benchmarks/gpu_captions.py --model QWEN.gguf --items items.jsonl --out captions.json

Every call is `HfBackend.answer`: one demonstration and one question ("caption. question"), all distinct reference
answers weighed, at most six tokens written. Demonstrations are dealt at random, 64 to a question. Two code bases are
compared by running this file with each of them (PYTHONPATH) on the same machine, one after the other. `--shape qwen`
builds random weights of Qwen2.5-1.5B's shape instead of loading a file, `--tokenizer` names the folder of the words.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import random
import time
from pathlib import Path
from typing import Any

import torch

from leverplus.backends.base import Request
from leverplus.backends.hf.backend import HfBackend
from leverplus.recipe.model import ModelSection
from leverplus.types import Item, ItemId

TEMPLATE = "Question: {question}\nAnswer: {answer}\n\n"
FEW = 64  # demonstrations a question


def read_items(path: Path) -> list[Item]:
    items = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        items.append(Item(ItemId(row["id"]), row["question"], tuple(row["answers"]), "train"))
    return items


def requests_of(items: list[Item], calls: int) -> list[Request]:
    """Calls in the order in which a search asks them: question by question, 64 demonstrations each."""
    dice = random.Random(0)
    found: list[Request] = []
    while len(found) < calls:
        query = dice.choice(items)
        references = tuple(dict.fromkeys(query.answers))
        for demo in dice.sample(items, FEW):
            found.append(Request(query, (demo,), references))
    return found[:calls]


def write_shape(folder: Path, tokenizer: Path) -> Path:
    """A folder with random weights of Qwen2.5-1.5B's shape and the words of another model."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    settings |= {"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936}
    settings |= {"tie_word_embeddings": True, "max_position_embeddings": 32768}
    config = Qwen2Config(**settings)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or a folder")
    parser.add_argument("--shape", choices=["qwen"], help="random weights of this shape instead")
    parser.add_argument("--tokenizer", type=Path, help="with --shape: the folder of the tokenizer")
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=2048, help="calls given to the backend at once")
    parser.add_argument("--batch-tokens", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--profile", action="store_true", help="where the time of the program goes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    name = given.model
    if given.shape:
        name = str(write_shape(Path("/tmp/leverplus_shape"), given.tokenizer))
    started = time.perf_counter()
    section = ModelSection(
        name=name, template=TEMPLATE, max_new_tokens=6, device=given.device, batch_tokens=given.batch_tokens
    )
    backend = HfBackend(None, section)  # type: ignore[arg-type]  # no item has a picture
    loaded = time.perf_counter() - started
    calls = requests_of(read_items(given.items), given.calls)
    backend.answer(calls[:256])  # kernels are chosen, memory is taken
    profile = cProfile.Profile()
    started = time.perf_counter()
    if given.profile:
        profile.enable()
    replies = []
    for start in range(0, len(calls), given.chunk):
        replies += backend.answer(calls[start : start + given.chunk])
    profile.disable()
    seconds = time.perf_counter() - started
    if given.profile:
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
        print(text.getvalue())
    found = {
        "calls": len(calls),
        "seconds": round(seconds, 2),
        "calls_per_second": round(len(calls) / seconds, 1),
        "tokens_per_call": round(sum(reply.tokens for reply in replies) / len(replies), 1),
        "seconds_loading": round(loaded, 1),
        "answers": [reply.raw for reply in replies[:64]],
        "logprobs": [list(reply.logprobs or ()) for reply in replies[:64]],
    }
    if given.out:
        given.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key not in {"answers", "logprobs"}}))


if __name__ == "__main__":
    main()
