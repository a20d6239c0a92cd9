"""Adapters of the earlier code's v2_lora: PEFT's matrices on both CLIP encoders, from a Lightning file and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus.errors import CheckpointError
from leverplus.policies.adapters import UNKNOWN_REVISION, Adapters

ENCODERS = {"text_model.": "sen_model", "vision_model.": "img_model"}
"""How names begin inside CLIP, and the encoder they belonged to."""

NAME = re.compile(
    r"(?P<start>.*?)(sen_model|img_model)\.base_model\.model\.(?P<part>.+)\.lora_(?P<side>[AB])\.(?P<end>.+)"
)
ALPHA_PER_RANK = 2.0
"""The file does not keep alpha; the configuration had 32 at rank 16."""

DROPOUT = 0.1


def read_lora(state: Mapping[str, Tensor], path: Path) -> tuple[Adapters | None, dict[str, Any]]:
    """The adapters of a file and how its names were written; None where it has none."""
    down: dict[str, Tensor] = {}
    up: dict[str, Tensor] = {}
    written: dict[str, Any] = {}
    for name, tensor in state.items():
        found = NAME.fullmatch(name)
        if found:
            (down if found["side"] == "A" else up)[found["part"]] = tensor.float()
            written = {"start": found["start"], "end": found["end"]}
    if not down and not up:
        return None, {}
    ranks = {len(matrix) for matrix in down.values()} | {matrix.shape[-1] for matrix in up.values()}
    if down.keys() != up.keys() or len(ranks) != 1 or any(part.ndim != 2 for part in (*down.values(), *up.values())):
        raise CheckpointError(
            f"{path} holds adapters (LoRA) whose two halves do not fit; save the whole state_dict again"
        )
    shapes = {name: (int(down[name].shape[1]), len(up[name])) for name in down}
    rank = ranks.pop()
    adapters = Adapters(shapes, UNKNOWN_REVISION, rank=rank, alpha=ALPHA_PER_RANK * rank, dropout=DROPOUT)
    with torch.no_grad():
        for name in shapes:
            adapters.of(name, "down").copy_(down[name])
            adapters.of(name, "up").copy_(up[name])
    return adapters, written


def lora_there(adapters: Adapters, written: Mapping[str, Any]) -> dict[str, Tensor]:
    """Adapters under the names of the earlier code; those of another network than CLIP are refused."""
    start, end = written.get("start", "lever_lm."), written.get("end", "default.weight")
    state = {}
    for name in adapters.shapes:
        encoder = next((encoder for inside, encoder in ENCODERS.items() if name.startswith(inside)), None)
        if encoder is None:
            raise CheckpointError(f"adapters of {name} cannot be written for the earlier code, which had CLIP's alone")
        for side, part in (("A", "down"), ("B", "up")):
            state[f"{start}{encoder}.base_model.model.{name}.lora_{side}.{end}"] = (
                adapters.of(name, part).detach().clone()
            )
    return state
