"""Set terms: added to the score of a candidate because of the picks before it (from step 1 on)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.policies import setgain
from leverplus.policies.base import Encoded, Memory
from leverplus.recipe.selection import PolicyConfig


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

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:
        raise NotImplementedError

    def forward(self, encoded: Encoded, memory: Memory, step: int) -> Tensor:
        raise NotImplementedError


class Redundancy(SetTerm):
    """- softplus(lambda_t) * (largest or mean likeness to earlier picks): maximal marginal relevance, learned."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.reduction = config.mmr
        self.strength = nn.Parameter(torch.full((config.max_shots,), config.mmr_strength))

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"mmr_items": v}

    def begin(self, encoded: Encoded, members: int) -> Memory:
        items = encoded["mmr_items"]
        return {"mmr": items.new_zeros(items.shape[0], members, items.shape[1])}

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:
        items = encoded["mmr_items"]
        row = chosen_rows(items, action) @ items.mT  # (B, G, K), cosines of every candidate to the pick
        if self.reduction == "max":
            return {"mmr": setgain.redundancy_max(memory["mmr"], row, first=step == 0)}
        return {"mmr": setgain.redundancy_mean(memory["mmr"], row, step)}

    def forward(self, encoded: Encoded, memory: Memory, step: int) -> Tensor:  # noqa: ARG002
        strength = self.strength[min(step, len(self.strength) - 1)]
        return -F.softplus(strength) * memory["mmr"]  # softplus: training may shrink the penalty, not turn it round


class Coverage(SetTerm):
    """+ softplus(l) * sum_m need_m (1 - covered_m) T_{k,m}: topics the query needs and no pick has covered."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(config.topics, config.hidden))  # (M, H)
        self.need = nn.Linear(config.hidden, config.topics)
        self.strength = nn.Parameter(torch.tensor(-2.0))  # softplus(-2) = 0.13: the term starts weak

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        topics = torch.softmax(v @ F.normalize(self.prototypes, dim=-1).T, dim=-1)  # (B, K, M)
        need = torch.softmax(self.need(u), dim=-1)  # (B, M)
        return {"topics": topics, "need": need}

    def begin(self, encoded: Encoded, members: int) -> Memory:
        topics = encoded["topics"]
        return {"covered": topics.new_zeros(topics.shape[0], members, topics.shape[-1])}

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:  # noqa: ARG002
        covered = memory["covered"] + chosen_rows(encoded["topics"], action)  # (B, G, M)
        return {"covered": covered.clamp(max=1.0)}

    def forward(self, encoded: Encoded, memory: Memory, step: int) -> Tensor:  # noqa: ARG002
        need = encoded["need"].unsqueeze(1).expand_as(memory["covered"])  # (B, G, M)
        gain = setgain.coverage_gain(need, memory["covered"], encoded["topics"].unsqueeze(1))  # (B, G, K)
        return F.softplus(self.strength) * gain


class Volume(SetTerm):
    """+ softplus(l) * log of the volume a candidate adds to the picks: a low-rank determinantal point process.

    `exact` keeps the greedy Cholesky of the kernel; `bound` looks only at the most similar earlier pick.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.kind, self.shots = config.dpp, config.max_shots
        self.project = nn.Linear(config.hidden, config.dpp_rank, bias=False)
        self.strength = nn.Parameter(torch.tensor(-2.0))  # starts weak, as in `Coverage`

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"dpp_items": F.normalize(self.project(v), dim=-1)}  # (B, K, rank)

    def begin(self, encoded: Encoded, members: int) -> Memory:
        items = encoded["dpp_items"]
        batch, size, _ = items.shape
        if self.kind == "bound":
            return {"dpp": items.new_zeros(batch, members, size)}
        return {
            "dpp": items.new_ones(batch, members, size),  # the diagonal of a kernel of unit vectors
            "dpp_factors": items.new_zeros(batch, members, size, self.shots + 1),  # a column more: STOP is a step too
        }

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:
        items = encoded["dpp_items"]
        row = chosen_rows(items, action) @ items.mT  # (B, G, K), the kernel row of the pick
        if self.kind == "bound":
            return {"dpp": setgain.redundancy_max(memory["dpp"], row, first=step == 0)}
        index = action.clamp(max=items.shape[1] - 1)
        residual, factors = setgain.volume_step(memory["dpp"], memory["dpp_factors"], row, index, step)
        return {"dpp": residual, "dpp_factors": factors}

    def forward(self, encoded: Encoded, memory: Memory, step: int) -> Tensor:  # noqa: ARG002
        strength = F.softplus(self.strength)
        if self.kind == "bound":
            return strength * setgain.volume_gain(memory["dpp"])  # (B, G, K)
        # bounded below: the log of 0, of a candidate that the picks explain fully, is -inf
        return strength * memory["dpp"].clamp(min=1e-3).log()  # (B, G, K)


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
