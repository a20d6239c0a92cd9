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
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.errors import CheckpointError, TrainingError

TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "query", "key", "value")
"""Projections of attention, as CLIP, SigLIP and BERT name them."""

UNKNOWN_REVISION = ""
"""Of adapters from a file that does not say which weights they were made for: any network of their shapes will do."""


class Adapters(nn.Module):
    """One pair of matrices a projection: `down` (rank, in) and `up` (out, rank), by the projection's name.

    `revision` names the weights of the network they were made for.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], revision: str, *, rank: int, alpha: float, dropout: float
    ) -> None:
        super().__init__()
        self.shapes = {name: (int(shape[0]), int(shape[1])) for name, shape in shapes.items()}
        self.revision, self.rank, self.alpha = revision, rank, alpha
        self.dropout = nn.Dropout(dropout)
        self.down = nn.ParameterDict({_key(name): torch.empty(rank, size) for name, (size, _) in self.shapes.items()})
        self.up = nn.ParameterDict({_key(name): torch.zeros(size, rank) for name, (_, size) in self.shapes.items()})
        # as in the reference implementation of LoRA: `down` random, `up` zero, so that nothing is added at first
        for matrix in self.down.values():
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    @classmethod
    def around(
        cls, network: nn.Module, revision: str, *, rank: int, alpha: float, dropout: float, seed: int
    ) -> Adapters:
        """Fresh adapters for every attention projection of a network."""
        # torch's own attention reads its weights without calling its projection, so nothing could be added there
        closed = tuple(f"{name}." for name, part in network.named_modules() if isinstance(part, nn.MultiheadAttention))
        shapes = {
            name: (part.in_features, part.out_features)
            for name, part in network.named_modules()
            if isinstance(part, nn.Linear) and name.rpartition(".")[2] in TARGETS and not name.startswith(closed or "?")
        }
        if not shapes:
            raise TrainingError("sft.lora_rank: this embedder has no attention projections that adapters could change")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(shapes, revision, rank=rank, alpha=alpha, dropout=dropout)

    def spec(self) -> dict[str, Any]:
        """What is needed to build them again, weights apart."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        options = {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout.p}
        return {"shapes": shapes, "revision": self.revision, **options}

    def of(self, name: str, side: str) -> Tensor:
        """The matrix of a projection: `down` (rank, in) or `up` (out, rank)."""
        matrix: Tensor = (self.down if side == "down" else self.up)[_key(name)]
        return matrix

    def digest(self) -> str:
        """Changes whenever a weight does."""
        content = sha256()
        for parameter in self.parameters():
            content.update(parameter.detach().cpu().contiguous().numpy().tobytes())
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
        odd = [name for name, shape in self.shapes.items() if _shape(parts.get(name)) != shape]
        if odd:
            raise CheckpointError(
                f"these adapters change {len(odd)} projections that the embedder has not, or not of that size (such as "
                f"{odd[0]}); use the embed.model they were trained with"
            )
        handles = [parts[name].register_forward_hook(partial(self._add, _key(name))) for name in self.shapes]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, key: str, _part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = self.dropout(inputs[0])  # (..., in)
        low = F.linear(x, self.down[key].to(x.device, x.dtype))  # (..., rank)
        return output + self.alpha / self.rank * F.linear(low, self.up[key].to(x.device, x.dtype))


class Live(Protocol):
    """Items of a table as a network with adapters sees them now: rows in, blocks (N, D) out."""

    def encode(self, rows: Tensor, fields: Sequence[str], adapters: Adapters) -> dict[str, Tensor]: ...


def _shape(part: nn.Module | None) -> tuple[int, int] | None:
    """(in, out) of a linear projection; None of anything else."""
    return (part.in_features, part.out_features) if isinstance(part, nn.Linear) else None


def _key(name: str) -> str:
    """A name for a parameter, which must not hold a dot."""
    return name.replace(".", "/")
