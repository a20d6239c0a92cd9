"""Decoders of the earlier code's v4-8 and v4-9: parallel slots, and re-scoring of the best few."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.trunks import PoolAttention

LOST = -100.0
"""The score the old two-stage decoder gave to everything outside its shortlist."""


class Slots(nn.Module):
    """One vector for each demonstration asked for, as the earlier code had it (v4-8), (B, T, H).

    Slots attend to each other in every layer and to the candidates once, after the last layer. So the first choice
    depends on how many will follow: a list of two does not begin as a list of four does.
    """

    ROWS = 8
    """Number of slots that have a vector of their own; further ones take the last vector, as in the earlier code."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.vectors = nn.Parameter(0.02 * torch.randn(self.ROWS, hidden))
        self.attention, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(config.slot_layers):
            attention = nn.MultiheadAttention(
                hidden,
                config.heads,
                config.attention_dropout,
                batch_first=True,
            )
            self.attention.append(attention)
            self.norms.append(nn.LayerNorm(hidden))
        self.pool_attention: PoolAttention | None = None
        self.pool_norm: nn.LayerNorm | None = None
        if config.slot_attends:
            self.pool_attention = PoolAttention(
                hidden, config.heads, config.attention_dropout
            )
            self.pool_norm = nn.LayerNorm(hidden)

    def forward(
        self,
        u: Tensor,
        v: Tensor,
        mask: Tensor,
        steps: int,
    ) -> Tensor:
        rows = torch.arange(steps, device=u.device).clamp(max=self.ROWS - 1)  # (T,)
        z = u.unsqueeze(1) + self.vectors[rows]  # (B, T, H)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            attended, _ = attention(
                z,
                z,
                z,
                need_weights=False,
            )
            z = norm(z + attended)
        if self.pool_attention is not None and self.pool_norm is not None:
            z = self.pool_norm(z + self.pool_attention(z, v, mask))
        return F.normalize(z, dim=-1)


class Refine(nn.Module):
    """Re-scores the best M candidates of a step: the state attends to them, or a network looks at each pair."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.kind = config.refine
        self.top = config.refine_top
        self.others = config.refine_others
        hidden = config.hidden
        if self.kind == "attention":
            self.attention = PoolAttention(
                hidden, config.heads, config.attention_dropout
            )
            self.norm = nn.LayerNorm(hidden)
        else:
            self.mlp = nn.Sequential(
                nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
            )

    def forward(
        self,
        h: Tensor,
        v: Tensor,
        cheap: Tensor,
        used: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Indices (B, G, M) of the best unused candidates and their cosine-like scores from a second look."""
        count = min(self.top, cheap.shape[-1])  # M
        # detached: which candidates are looked at again is a choice, through which no gradient flows
        best = (
            cheap.detach().masked_fill(used, -torch.inf).topk(count, dim=-1).indices
        )  # (B, G, M)
        candidates = v.unsqueeze(1).expand(-1, h.shape[1], -1, -1)  # (B, G, A, H)
        index = best.unsqueeze(-1).expand(*best.shape, v.shape[-1])  # (B, G, M, H)
        shortlist = torch.gather(candidates, 2, index)  # (B, G, M, H)
        if self.kind == "attention":
            unused = ~torch.gather(
                used, -1, best
            )  # (B, G, M), False where fewer than M are left
            # members are put beside queries, (B G, ...), since attention knows one batch axis
            query = h.flatten(0, 1).unsqueeze(1)  # (B G, 1, H)
            attended = self.attention(
                query, shortlist.flatten(0, 1), unused.flatten(0, 1)
            )
            looked = F.normalize(
                self.norm(h + attended.reshape(h.shape)), dim=-1
            )  # (B, G, H)
            return best, (shortlist @ looked.unsqueeze(-1)).squeeze(-1)
        pair = torch.cat(
            [h.unsqueeze(2).expand_as(shortlist), shortlist], dim=-1
        )  # (B, G, M, 2 H)
        return best, self.mlp(pair).squeeze(-1)

    def merge(
        self,
        cheap: Tensor,
        best: Tensor,
        refined: Tensor,
    ) -> Tensor:
        """Scores (B, G, A), those of the best replaced; the others keep theirs, or get `LOST` as in the old decoder."""
        base = cheap if self.others == "keep" else torch.full_like(cheap, LOST)
        return base.scatter(-1, best, refined)
