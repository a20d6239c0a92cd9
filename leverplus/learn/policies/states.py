"""States: how a selector remembers its earlier picks, as a unit vector h (B, G, H) that starts as the query.

In the formulas v is the vector of the pick and n(x) = x / |x|.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.catalog import STATES, load


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


def build_state(name: str, hidden: int) -> nn.Module:
    """The state a config names."""
    if name == "none":
        return Forgetful()
    if name == "scalar_gate":
        return ScalarGate()
    made: nn.Module = load(STATES, name, "state")(hidden)
    return made
