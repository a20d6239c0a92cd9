"""Set terms: added to the score of a candidate because of the picks before it (from step 1 on)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.catalog import SET_TERMS, load
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


class Likest(SetTerm):
    """A term by the likeness (B, G, K) of every candidate to its likest pick, in the vectors of block `NAME_items`."""

    name = ""

    def begin(self, encoded: Encoded, members: int) -> Memory:
        items = encoded[f"{self.name}_items"]  # (B, K, H)
        return {self.name: items.new_zeros(items.shape[0], members, items.shape[1])}

    def remember(
        self,
        encoded: Encoded,
        memory: Memory,
        action: Tensor,
        step: int,
    ) -> Memory:
        items = encoded[f"{self.name}_items"]
        row = chosen_rows(items, action) @ items.mT  # (B, G, K), to the pick just made
        if step > 0:
            row = torch.maximum(memory[self.name], row)
        return {self.name: row}


class Redundancy(Likest):
    """- softplus(lambda_t) * the largest likeness to an earlier pick: maximal marginal relevance, learned."""

    name = "mmr"

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        strengths = torch.full((config.max_shots,), config.mmr_strength)
        self.strength = nn.Parameter(strengths)

    def read(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"mmr_items": v}

    def forward(
        self,
        encoded: Encoded,  # noqa: ARG002
        memory: Memory,
        step: int,
    ) -> Tensor:
        strength = self.strength[min(step, len(self.strength) - 1)]
        # softplus: training may shrink the penalty, not turn it round
        return -F.softplus(strength) * memory["mmr"]


def build_terms(config: PolicyConfig) -> nn.ModuleDict:
    """The set terms a config asks for, by name."""
    asked = {
        "mmr": config.mmr != "none",
        "coverage": config.topics > 0,
        "dpp": config.dpp != "none",
    }
    terms = nn.ModuleDict()
    for name, wanted in asked.items():
        if wanted:
            terms[name] = load(SET_TERMS, name, "set term")(config)
    return terms
