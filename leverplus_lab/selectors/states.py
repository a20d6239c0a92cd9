"""States of the earlier code's v4-1 and v4-2: a unit vector h (B, G, H) that starts as the query.

In the formulas v is the vector of the pick and n(x) = x / |x|.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class VectorGate(nn.Module):
    """h' = n(g h + (1 - g) v), g = sigmoid(W [h; v] + b), one gate for each feature."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * hidden, hidden)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, h: Tensor, chosen: Tensor) -> Tensor:
        both = torch.cat([h, chosen], dim=-1)
        gate = torch.sigmoid(self.gate(both))  # (B, G, H)
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
