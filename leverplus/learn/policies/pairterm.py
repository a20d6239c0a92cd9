"""What a selector makes of the features of a query and a candidate: a weighted sum, which starts as `by_answer`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leverplus.arms.pairs import NAMES, STARTED_FROM

SCALE = 10.0
"""At first a lead of 0.1 in what `by_answer` adds up makes a candidate e times as likely."""


class PairTerm(nn.Module):
    """10 (start + change) . features of a query and each candidate; weight decay leads back to the start."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        start = torch.zeros(len(NAMES))
        start[:STARTED_FROM] = 1.0
        self.register_buffer("start", start)
        self.change = nn.Parameter(torch.zeros(len(NAMES)))

    def forward(self, features: Tensor) -> Tensor:
        """The sum for every candidate, (B, K, F) -> (B, 1, K)."""
        summed: Tensor = SCALE * (features @ (self.start + self.change))
        return summed.unsqueeze(1)
