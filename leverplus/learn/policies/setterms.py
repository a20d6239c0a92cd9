"""Set terms: added to the score of a candidate because of the picks before it (from step 1 on)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.learn.policies import setgain
from leverplus.learn.policies.base import Encoded, Memory
from leverplus.learn.policies.settings import PolicyConfig


def chosen_rows(table: Tensor, action: Tensor) -> Tensor:
    """Rows of (B, K, H) at actions (B, G) -> (B, G, H); an action past the end (STOP) takes the last row."""
    index = action.clamp(max=table.shape[1] - 1)  # (B, G)
    index = index.unsqueeze(-1).expand(-1, -1, table.shape[-1])  # (B, G, H)
    return torch.gather(table, 1, index)


class SetTerm(nn.Module):
    """A term of the score: reads the pool once, keeps a memory of the picks, adds (B, G, K) from step 1 on.

    `read` gets the query u (B, H) and the candidates v (B, K, H) and returns blocks to keep with the encoded pool.
    """

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def begin(self, encoded: Encoded, members: int) -> Memory:
        raise NotImplementedError

    def remember(
        self,
        encoded: Encoded,
        memory: Memory,
        action: Tensor,
        step: int,
    ) -> Memory:
        raise NotImplementedError

    def forward(
        self,
        encoded: Encoded,
        memory: Memory,
        step: int,
    ) -> Tensor:
        raise NotImplementedError


def _nothing_picked(items: Tensor, members: int) -> Tensor:
    """The likeness (B, G, K) of candidates (B, K, H) to picks before there are any."""
    return items.new_zeros(items.shape[0], members, items.shape[1])


def _likest(
    items: Tensor,
    before: Tensor,
    action: Tensor,
    step: int,
) -> Tensor:
    """The likeness (B, G, K) of every candidate to its likest pick, with the pick just made."""
    row = chosen_rows(items, action) @ items.mT  # (B, G, K)
    return row if step == 0 else torch.maximum(before, row)


class Redundancy(SetTerm):
    """- softplus(lambda_t) * the largest likeness to an earlier pick: maximal marginal relevance, learned."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        strengths = torch.full((config.max_shots,), config.mmr_strength)
        self.strength = nn.Parameter(strengths)

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"mmr_items": v}

    def begin(self, encoded: Encoded, members: int) -> Memory:
        return {"mmr": _nothing_picked(encoded["mmr_items"], members)}

    def remember(
        self,
        encoded: Encoded,
        memory: Memory,
        action: Tensor,
        step: int,
    ) -> Memory:
        items = encoded["mmr_items"]
        return {"mmr": _likest(items, memory["mmr"], action, step)}

    def forward(
        self,
        encoded: Encoded,  # noqa: ARG002
        memory: Memory,
        step: int,
    ) -> Tensor:
        strength = self.strength[min(step, len(self.strength) - 1)]
        # softplus: training may shrink the penalty, not turn it round
        return -F.softplus(strength) * memory["mmr"]


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
        gain = setgain.coverage_gain(
            need, memory["covered"], encoded["topics"].unsqueeze(1)
        )  # (B, G, K)
        return F.softplus(self.strength) * gain


class Volume(SetTerm):
    """+ softplus(l) * log of the volume a candidate adds to the picks, bounded by its likest pick: a low-rank DPP."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.project = nn.Linear(config.hidden, config.dpp_rank, bias=False)
        self.strength = nn.Parameter(
            torch.tensor(-2.0)
        )  # starts weak, as in `Coverage`

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"dpp_items": F.normalize(self.project(v), dim=-1)}  # (B, K, rank)

    def begin(self, encoded: Encoded, members: int) -> Memory:
        return {"dpp": _nothing_picked(encoded["dpp_items"], members)}

    def remember(
        self,
        encoded: Encoded,
        memory: Memory,
        action: Tensor,
        step: int,
    ) -> Memory:
        items = encoded["dpp_items"]
        return {"dpp": _likest(items, memory["dpp"], action, step)}

    def forward(
        self,
        encoded: Encoded,  # noqa: ARG002
        memory: Memory,
        step: int,  # noqa: ARG002
    ) -> Tensor:
        gain = setgain.volume_gain(memory["dpp"])  # (B, G, K)
        return F.softplus(self.strength) * gain


def build_terms(config: PolicyConfig) -> nn.ModuleDict:
    """The set terms a config asks for, by name."""
    terms: dict[str, nn.Module] = {}
    if config.mmr != "none":
        terms["mmr"] = Redundancy(config)
    if config.topics:
        terms["coverage"] = Coverage(config)
    if config.dpp != "none":
        terms["dpp"] = Volume(config)
    return nn.ModuleDict(terms)
