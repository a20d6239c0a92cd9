"""Set terms of the earlier code's v4-6 and v4-7: coverage of topics, and volume; K candidates, M topics."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.learn.policies.base import Encoded, Memory
from leverplus.learn.policies.setterms import Likest, SetTerm, chosen_rows
from leverplus.learn.policies.settings import PolicyConfig


def coverage_gain(
    need: Tensor,
    covered: Tensor,
    topics: Tensor,
) -> Tensor:
    """sum_m need_m (1 - covered_m) T_{k,m}: how much of the needed, uncovered topics a candidate brings.

    `need` and `covered` are (..., M), `topics` is (..., K, M); the result is (..., K).
    """
    missing = need * (1.0 - covered)  # (..., M)
    return (topics * missing.unsqueeze(-2)).sum(-1)


def volume_gain(similarity: Tensor, epsilon: float = 1e-6) -> Tensor:
    """log(epsilon + 1 - min(s^2, 0.999)) with s the largest similarity to a chosen item: the pair bound of a DPP."""
    return torch.log(epsilon + 1.0 - similarity.square().clamp(max=0.999))


class Coverage(SetTerm):
    """+ softplus(l) * sum_m need_m (1 - covered_m) T_{k,m}: topics the query needs and no pick has covered."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(
            torch.randn(config.topics, config.hidden)
        )  # (M, H)
        self.need = nn.Linear(config.hidden, config.topics)
        self.strength = nn.Parameter(
            torch.tensor(-2.0)
        )  # softplus(-2) = 0.13: the term starts weak

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        topics = torch.softmax(
            v @ F.normalize(self.prototypes, dim=-1).T, dim=-1
        )  # (B, K, M)
        need = torch.softmax(self.need(u), dim=-1)  # (B, M)
        return {"topics": topics, "need": need}

    def begin(self, encoded: Encoded, members: int) -> Memory:
        topics = encoded["topics"]
        return {"covered": topics.new_zeros(topics.shape[0], members, topics.shape[-1])}

    def remember(
        self,
        encoded: Encoded,
        memory: Memory,
        action: Tensor,
        step: int,  # noqa: ARG002
    ) -> Memory:
        covered = memory["covered"] + chosen_rows(
            encoded["topics"], action
        )  # (B, G, M)
        return {"covered": covered.clamp(max=1.0)}

    def forward(
        self,
        encoded: Encoded,
        memory: Memory,
        step: int,  # noqa: ARG002
    ) -> Tensor:
        need = encoded["need"].unsqueeze(1).expand_as(memory["covered"])  # (B, G, M)
        gain = coverage_gain(
            need, memory["covered"], encoded["topics"].unsqueeze(1)
        )  # (B, G, K)
        return F.softplus(self.strength) * gain


class Volume(Likest):
    """+ softplus(l) * log of the volume a candidate adds to the picks, bounded by its likest pick: a low-rank DPP."""

    name = "dpp"

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.project = nn.Linear(config.hidden, config.dpp_rank, bias=False)
        # starts weak, as in `Coverage`
        self.strength = nn.Parameter(torch.tensor(-2.0))

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"dpp_items": F.normalize(self.project(v), dim=-1)}  # (B, K, rank)

    def forward(
        self,
        encoded: Encoded,  # noqa: ARG002
        memory: Memory,
        step: int,  # noqa: ARG002
    ) -> Tensor:
        return F.softplus(self.strength) * volume_gain(memory["dpp"])  # (B, G, K)
