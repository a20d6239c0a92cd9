"""Low-rank adapters (LoRA): small trained additions to the attention of a frozen network that embeds items.

They belong to the selector: they are trained, saved, copied and restored with it, and the network itself never changes.
Hu et al. 2021: y = W x + (alpha / rank) B A x, with B zero at first, so that training starts from the frozen network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.errors import CheckpointError, TrainingError

TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "query", "key", "value")
"""Projections of attention, as CLIP, SigLIP and BERT name them."""

UNKNOWN_REVISION = ""
"""The revision of adapters whose file does not name one: they are accepted by any network with matching shapes."""


class Adapters(nn.Module):
    """One pair of matrices per projection: `down` (rank, in) and `up` (out, rank), by the projection's name.

    `revision` names the weights of the network they were made for.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        revision: str,
        *,
        rank: int,
        alpha: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.shapes = {
            name: (int(shape[0]), int(shape[1])) for name, shape in shapes.items()
        }
        self.revision = revision
        self.rank = rank
        self.alpha = alpha
        self.dropout = nn.Dropout(dropout)
        down = {
            _key(name): torch.empty(rank, inputs)
            for name, (inputs, _) in self.shapes.items()
        }
        up = {
            _key(name): torch.zeros(outputs, rank)
            for name, (_, outputs) in self.shapes.items()
        }
        # ParameterDict sorts a plain dict by name: the order of the random draws below and of `digest`
        self.down = nn.ParameterDict(down)
        self.up = nn.ParameterDict(up)
        for matrix in self.down.values():
            nn.init.kaiming_uniform_(
                matrix, a=math.sqrt(5)
            )  # the initialisation of nn.Linear, as in the paper's code

    @classmethod
    def around(
        cls,
        network: nn.Module,
        revision: str,
        *,
        rank: int,
        alpha: float,
        dropout: float,
        seed: int,
    ) -> Adapters:
        """Fresh adapters for every attention projection of a network."""
        modules = list(network.named_modules())
        # torch's own attention reads its weights without calling its projection, so nothing could be added there
        unreachable = tuple(
            f"{name}."
            for name, part in modules
            if isinstance(part, nn.MultiheadAttention)
        )
        shapes = {}
        for name, part in modules:
            last_word = name.rpartition(".")[2]
            if (
                isinstance(part, nn.Linear)
                and last_word in TARGETS
                and not name.startswith(unreachable)
            ):
                shapes[name] = (part.in_features, part.out_features)
        if not shapes:
            raise TrainingError(
                "sft.lora_rank: this embedder has no attention projections that adapters could change"
            )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return cls(
                shapes,
                revision,
                rank=rank,
                alpha=alpha,
                dropout=dropout,
            )

    def spec(self) -> dict[str, Any]:
        """The arguments that build the same adapters again, without their weights."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        options = {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout.p}
        return {"shapes": shapes, "revision": self.revision, **options}

    def of(self, name: str, side: str) -> Tensor:
        """The matrix of a projection: `down` (rank, in) or `up` (out, rank)."""
        matrices = self.down if side == "down" else self.up
        matrix: Tensor = matrices[_key(name)]
        return matrix

    def digest(self) -> str:
        """A hash of all weights."""
        content = sha256()
        for parameter in self.parameters():
            values = parameter.detach().cpu().contiguous()
            content.update(values.numpy().tobytes())
        return content.hexdigest()

    @contextmanager
    def active(self, network: nn.Module, revision: str) -> Iterator[None]:
        """While this lasts, the network computes with these adapters."""
        if self.revision not in (UNKNOWN_REVISION, revision):
            raise CheckpointError(
                f"these adapters were trained for an embedder of revision {self.revision}, not {revision}; "
                "use the embed.model they were trained with"
            )
        parts = dict(network.named_modules())
        misfits = [
            name
            for name, shape in self.shapes.items()
            if _shape(parts.get(name)) != shape
        ]
        if misfits:
            raise CheckpointError(
                f"these adapters change {len(misfits)} projections that the embedder does not have in that size (such "
                f"as {misfits[0]}); use the embed.model they were trained with"
            )
        handles = [
            parts[name].register_forward_hook(partial(self._add, _key(name)))
            for name in self.shapes
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(
        self,
        key: str,
        _part: nn.Module,
        inputs: tuple[Tensor, ...],
        output: Tensor,
    ) -> Tensor:
        """The forward hook of a projection: its output plus the low-rank term."""
        x = self.dropout(inputs[0])  # (..., in)
        down = self.down[key].to(x.device, x.dtype)
        low = F.linear(x, down)  # (..., rank)
        up = self.up[key].to(x.device, x.dtype)
        change = F.linear(low, up)  # (..., out)
        return output + self.alpha / self.rank * change


def _shape(part: nn.Module | None) -> tuple[int, int] | None:
    """(in, out) of a linear projection; None for anything else."""
    if not isinstance(part, nn.Linear):
        return None
    return part.in_features, part.out_features


def _key(name: str) -> str:
    """A name for a parameter, which must not hold a dot."""
    return name.replace(".", "/")
