"""Heads of the earlier code's v4-5."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leverplus.learn.policies.base import Encoded
from leverplus.learn.policies.heads import Head
from leverplus.learn.policies.settings import PolicyConfig


class Additive(Head):
    """a . tanh(W_q h + b + W_c v) / temperature."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.query = nn.Linear(config.hidden, config.hidden)
        self.item = nn.Linear(config.hidden, config.hidden, bias=False)
        self.vector = nn.Linear(config.hidden, 1, bias=False)
        with torch.no_grad():
            self.vector.weight.mul_(
                0.1
            )  # nearly equal scores at first: training starts from a nearly uniform choice

    def forward(self, h: Tensor, encoded: Encoded) -> Tensor:
        query = self.query(h).unsqueeze(2)  # (B, G, 1, H)
        items = self.item(encoded["v"]).unsqueeze(1)  # (B, 1, A, H)
        joined = torch.tanh(query + items)  # (B, G, A, H)
        return self.scaled(self.vector(joined).squeeze(-1))


class Bilinear(Head):
    """h^T B v / temperature, B the identity at first."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        noise = 0.01 * torch.randn(config.hidden, config.hidden)
        self.weight = nn.Parameter(torch.eye(config.hidden) + noise)  # (H, H)

    def forward(self, h: Tensor, encoded: Encoded) -> Tensor:
        return self.scaled((h @ self.weight) @ encoded["v"].mT)  # (B, G, A)
