"""A stand-in for the module `vllm` with the parts of its interface that the backend uses.

It answers by the plain forward pass of the same model in transformers, one prompt at a time, without a cache. What it
is not given by the real names, or what the real one refuses, it refuses too; what no test of ours can show is how the
real engine rounds and how fast it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from leverplus.models.hf.load import load_model
from leverplus.models.settings import ModelSection

VERSION = "0.32.0"


@dataclass
class SamplingParams:
    """The fields of the real class that we give."""

    temperature: float = 1.0
    max_tokens: int | None = 16
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True


@dataclass
class Output:
    """What `RequestOutput` and its one `CompletionOutput` hold."""

    prompt_token_ids: list[int]
    prompt_logprobs: list[Any] | None
    outputs: list[Any]
    num_cached_tokens: int | None = 0


@dataclass
class LLM:
    """The settings given are kept for the tests to look at."""

    model: str
    settings: dict[str, Any]
    seen: list[Any] = field(default_factory=list)

    def __init__(self, model: str, **settings: Any) -> None:
        self.model, self.settings, self.seen = model, settings, []
        section = ModelSection(name=model, device="cpu", dtype=settings["dtype"])
        self.loaded = load_model(Path(model), section)

    def generate(
        self,
        prompts: list[dict[str, Any]],
        params: list[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> list[Output]:
        assert not use_tqdm
        assert len(prompts) == len(params)
        self.seen += prompts
        return [
            self._one(prompt, own) for prompt, own in zip(prompts, params, strict=True)
        ]

    def _one(self, prompt: dict[str, Any], params: SamplingParams) -> Output:
        ids, inputs = self._expand(prompt)
        limit = (
            self.settings.get("limit_mm_per_prompt", {})
            .get("image", {})
            .get("count", 0)
        )
        if len(prompt.get("multi_modal_data", {}).get("image", [])) > limit:
            raise ValueError(f"At most {limit} image(s) may be provided in one prompt.")
        if (
            len(ids)
            >= self.loaded.model.config.get_text_config().max_position_embeddings
        ):
            raise ValueError(
                f"The prompt (length {len(ids)}) is longer than the maximum model length"
            )
        before = (
            self._prompt_logprobs(ids, inputs)
            if params.prompt_logprobs is not None
            else None
        )
        own = SimpleNamespace(token_ids=self._write(ids, inputs, params))
        return Output(ids, before, [own])

    def _expand(
        self, prompt: dict[str, Any]
    ) -> tuple[list[int], dict[str, torch.Tensor]]:
        """Each picture token becomes as many as the processor makes of its picture, as the real engine does it."""
        ids = list(prompt["prompt_token_ids"])
        pictures = prompt.get("multi_modal_data", {}).get("image", [])
        if not pictures:
            return ids, {}
        assert len(prompt["multi_modal_uuids"]["image"]) == len(pictures)
        processor = self.loaded.processor
        token = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
        assert ids.count(token) == len(pictures)
        expanded: list[int] = []
        waiting = iter(pictures)
        parts: list[dict[str, torch.Tensor]] = []
        for own in ids:
            if own != token:
                expanded.append(own)
                continue
            found = processor(
                text=[processor.image_token],
                images=[next(waiting)],
                return_tensors="pt",
            )
            expanded += found["input_ids"][0].tolist()
            parts.append(
                {key: found[key] for key in ("pixel_values", "image_grid_thw")}
            )
        return expanded, {
            key: torch.cat([part[key] for part in parts]) for key in parts[0]
        }

    @torch.inference_mode()
    def _logprobs(
        self, ids: list[int], inputs: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The log-probabilities of every token after each place: (L, V)."""
        whole = torch.tensor([ids])
        more: dict[str, torch.Tensor] = dict(inputs)
        if inputs:
            processor = self.loaded.processor
            token = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
            more["mm_token_type_ids"] = (whole == token).int()
        logits = self.loaded.model(input_ids=whole, use_cache=False, **more).logits[0]
        return logits.float().log_softmax(-1)

    def _prompt_logprobs(
        self, ids: list[int], inputs: dict[str, torch.Tensor]
    ) -> list[Any]:
        """One entry for each token of the prompt; nothing is known of the first."""
        table = self._logprobs(ids, inputs)
        entries: list[Any] = [None]
        for place, token in enumerate(ids[1:]):
            entries.append({token: SimpleNamespace(logprob=float(table[place, token]))})
        return entries

    def _write(
        self, ids: list[int], inputs: dict[str, torch.Tensor], params: SamplingParams
    ) -> list[int]:
        written: list[int] = []
        while len(written) < (params.max_tokens or 0):
            token = int(self._logprobs([*ids, *written], inputs)[-1].argmax())
            written.append(token)
            if token in (params.stop_token_ids or []):
                break
        return written


def module() -> ModuleType:
    """The stand-in as a module that `import vllm` finds."""
    found = ModuleType("vllm")
    found.__dict__.update(LLM=LLM, SamplingParams=SamplingParams, __version__=VERSION)
    return found
