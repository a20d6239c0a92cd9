"""The tiny live models of the matrix, and what makes hundreds of runs in one process quick: each is loaded once.

All have random weights. A language model, a vision-language model, a sentence encoder and a CLIP lie in one folder that
is made once; opening a second run reuses what the first one loaded, since nothing here changes while it answers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

KINDS = ("language", "vision", "sentence", "clip")
WORLD_ITEMS = {"train": 60, "dev": 20, "test": 20}
"""The world of the matrix is the first items of the embedded one, so that a run does not embed 8,000."""


def make_models(folder: Path) -> dict[str, str]:
    """The folders of the four models by kind, written where they are not yet."""
    import tiny_networks
    from tiny_models import qwen2_5_vl

    writers = {
        "language": _language,
        "vision": qwen2_5_vl,
        "sentence": tiny_networks.save_sentence_model,
        "clip": lambda place: tiny_networks.save_dual_model(place, "clip"),
    }
    for kind, write in writers.items():
        if not (folder / kind).is_dir():
            part = folder / f".{kind}"
            part.mkdir(parents=True, exist_ok=True)
            write(part)
            part.rename(folder / kind)
    return {kind: str(folder / kind) for kind in KINDS}


def _language(folder: Path) -> None:
    """A Llama of one layer that reads bytes."""
    import torch
    from tiny_models import SPREAD, byte_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=SPREAD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Asked:
    """How many prompts the models of this process were asked."""

    count = 0


@contextmanager
def loaded_once() -> Iterator[Asked]:
    """Models are loaded once, the world and what labels teach are small while this holds, and prompts are counted."""
    from leverplus.encode.networks import SentenceEncoder
    from leverplus.models.hf import backend as hf
    from leverplus_lab import expected_accuracy
    from leverplus_lab.world import task as world
    from leverplus_lab.world.backend import WorldBackend

    asked = Asked()
    load_model, find_model = hf.load_model, hf.find_model
    models: dict[Any, Any] = {}

    def load(folder: Path, section: Any) -> Any:
        key = ("model", folder, section.device, section.dtype)
        if key not in models:
            models[key] = load_model(folder, section)
        return models[key]

    def find(section: Any) -> Any:
        key = ("files", section.name, section.gguf)
        if key not in models:
            models[key] = find_model(section)
        return models[key]

    def counted(answer: Any) -> Any:
        @functools.wraps(answer)
        def ask(self: Any, requests: Any) -> Any:
            asked.count += len(requests)
            return answer(self, requests)

        return ask

    draw_items, encode = world.draw_items, SentenceEncoder.__init__

    @functools.cache
    def few_items(world_seed: int, split: str) -> Any:
        return draw_items(world_seed, split)[: WORLD_ITEMS[split]]

    def open_encoder(self: Any, section: Any) -> None:
        key = ("encoder", section.model, section.device)
        if key not in models:
            encode(self, section)
            models[key] = dict(vars(self), tokenizer=copy.deepcopy(self.tokenizer))
        # a tokenizer remembers how it was called last, and that counts in the fingerprint: each run gets a fresh one
        vars(self).update(
            models[key], tokenizer=copy.deepcopy(models[key]["tokenizer"])
        )

    with (
        mock.patch.object(hf, "load_model", load),
        mock.patch.object(hf, "find_model", find),
        mock.patch.object(hf.HfBackend, "answer", counted(hf.HfBackend.answer)),
        mock.patch.object(WorldBackend, "answer", counted(WorldBackend.answer)),
        mock.patch.object(world, "draw_items", few_items),
        mock.patch.object(SentenceEncoder, "__init__", open_encoder),
        mock.patch.object(
            expected_accuracy, "EPOCHS", 2
        ),  # tests/learn tests what labels teach
        mock.patch.object(expected_accuracy, "FEWEST_STEPS", 8),
    ):
        yield asked
