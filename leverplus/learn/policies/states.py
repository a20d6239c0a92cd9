"""States: how a selector remembers its earlier picks, as a unit vector h (B, G, H) that starts as the query.

In the formulas v is the vector of the pick and n(x) = x / |x|.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Forgetful(nn.Module):
    """No memory: the same query vector at every step; only used candidates are excluded."""

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:  # noqa: ARG002 one signature for all states
        return h


class ScalarGate(nn.Module):
    """h' = n(a h + (1 - a) v), a = sigmoid(w), one learned number, w = 0.6 at first as in the earlier code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.6))

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:
        gate = torch.sigmoid(self.weight)
        return F.normalize(gate * h + (1.0 - gate) * chosen, dim=-1)


class VectorGate(nn.Module):
    """h' = n(g h + (1 - g) v), g = sigmoid(W [h; v] + b), one gate for each feature."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * hidden, hidden)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(torch.cat([h, chosen], dim=-1)))  # (B, G, H)
        return F.normalize(gate * h + (1.0 - gate) * chosen, dim=-1)


class Recurrent(nn.Module):
    """h' = n(GRU(v, h))."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:
        flat = self.cell(
            chosen.flatten(0, 1), h.flatten(0, 1)
        )  # (B G, H): a GRU cell knows one batch axis
        return F.normalize(flat.reshape(h.shape), dim=-1)


def build_state(name: str, hidden: int) -> nn.Module:
    """The state a config names."""
    if name == "scalar_gate":
        return ScalarGate()
    if name == "vector_gate":
        return VectorGate(hidden)
    if name == "gru":
        return Recurrent(hidden)
    return Forgetful()
