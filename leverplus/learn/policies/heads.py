"""Heads: how a candidate is scored at a step, from the state h (B, G, H) and the candidates v (B, A, H)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leverplus.learn.policies.base import Encoded
from leverplus.learn.policies.settings import PolicyConfig


class Head(nn.Module):
    """Divides scores by a temperature, fixed or learned; subclasses define the score itself, (B, G, A)."""

    compares = False
    """Whether a candidate's score depends on the other candidates of its pool; a head of somebody else may say so."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:  # noqa: ARG002 one signature
        super().__init__()
        # learned as log(1 / temperature), so that the scale stays positive whatever training does (as in CLIP)
        scale = torch.tensor(-math.log(config.temperature))
        if config.learn_temperature:
            self.log_scale = nn.Parameter(scale)
        else:
            self.register_buffer("log_scale", scale)

    def scaled(self, scores: Tensor) -> Tensor:
        """The scores divided by the temperature, which is held at 0.01 or more as in CLIP."""
        return scores * self.log_scale.clamp(max=math.log(100.0)).exp()

    def forward(self, h: Tensor, encoded: Encoded) -> Tensor:
        raise NotImplementedError


class Cosine(Head):
    """<h, v> / temperature of unit vectors."""

    def forward(self, h: Tensor, encoded: Encoded) -> Tensor:
        return self.scaled(h @ encoded["v"].mT)  # (B, G, H) @ (B, H, A) -> (B, G, A)
