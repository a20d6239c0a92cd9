"""Trunks: encode a query and its pool as unit vectors u (B, H) and v (B, K, H)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.learn.policies.base import Features
from leverplus.learn.policies.settings import PolicyConfig

SHARED = 16
"""When the pools of a batch share so many items that all of them together are at most this many times one pool, every
query attends to one table of all items: one large product is then faster than a product per pool."""


class PoolAttention(nn.Module):
    """Multi-head attention of few queries to K candidates, with the parameters of `nn.MultiheadAttention`.

    The key and value matrices are applied to the queries and to the weighted sum instead of to every candidate:
    the same result at H^2 + K H instead of K H^2. The key bias shifts all scores of a query alike and cancels.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * hidden))
        self.out_proj = nn.Linear(hidden, hidden)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        pool: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """query (B, T, H), pool (B, K, H), mask (B, K) -> (B, T, H).

        The pool may also be one table (U, H) for all queries, mask (B, U) saying who sees which row: one large product
        instead of many small ones.
        """
        hidden = query.shape[-1]
        batch_and_steps = query.shape[:2]  # B, T
        size = hidden // self.heads  # d, the width of a head; n is the number of heads
        weight_q, weight_k, weight_v = self.in_proj_weight.chunk(3)  # (H, H) each
        bias_q, _, bias_v = self.in_proj_bias.chunk(3)
        heads_q = F.linear(query, weight_q, bias_q).view(
            *batch_and_steps, self.heads, size
        )  # (B, T, n, d)
        # q . (W_k x) = (W_k^T q) . x: the key matrix goes onto the few queries
        folded = torch.einsum(
            "bthd,hde->bthe", heads_q, weight_k.view(self.heads, size, hidden)
        )  # (B, T, n, H)
        products = folded.flatten(1, 2) @ pool.mT  # (B, T n, K)
        scores = products.view(*batch_and_steps, self.heads, -1) / math.sqrt(
            size
        )  # (B, T, n, K)
        floor = torch.finfo(
            scores.dtype
        ).min  # not -inf: a query without candidates would become NaN
        attention = torch.softmax(
            scores.masked_fill(~mask[:, None, None, :], floor), dim=-1
        )  # (B, T, n, K)
        attention = F.dropout(attention, self.dropout, self.training)
        seen = (attention.flatten(1, 2) @ pool).view(
            *batch_and_steps, self.heads, hidden
        )  # (B, T, n, H)
        value = torch.einsum(
            "bthe,hde->bthd", seen, weight_v.view(self.heads, size, hidden)
        )  # (B, T, n, d)
        # the weights sum to 1 without dropout only, so the bias is weighed by their sum
        value = value + attention.sum(-1, keepdim=True) * bias_v.view(self.heads, size)
        return self.out_proj(value.flatten(-2))  # type: ignore[no-any-return]


class BiEncoder(nn.Module):
    """Query and candidates are encoded apart, each by its own small network."""

    def __init__(
        self,
        config: PolicyConfig,
        query_size: int,
        item_size: int,
    ) -> None:
        super().__init__()
        self.query_mlp = _mlp(query_size, config.hidden, config.dropout)
        self.item_mlp = _mlp(item_size, config.hidden, config.dropout)

    def query(self, query: Tensor) -> Tensor:
        return F.normalize(self.query_mlp(query), dim=-1)  # (B, H)

    def items(self, items: Tensor) -> Tensor:
        return F.normalize(self.item_mlp(items), dim=-1)  # (U, H)

    def forward(
        self,
        query: Tensor,
        items: Tensor,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        return self.query(query), features.gather(self.items(items))  # every item once


def _mlp(
    size: int,
    hidden: int,
    dropout: float,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.LayerNorm(hidden),
    )


class CrossAttention(nn.Module):
    """The query attends to its pool in L layers, then both are projected to unit vectors.

    With `trunk = "set_encoder"` the candidates first attend to each other, so that the vector of each depends on the
    whole pool.
    One input matrix serves query and candidates when both are means of the same kind of vector.
    """

    def __init__(
        self,
        config: PolicyConfig,
        query_size: int,
        item_size: int,
    ) -> None:
        super().__init__()
        hidden = config.hidden
        self.input_item = (
            nn.Linear(item_size, hidden, bias=False)
            if item_size != hidden
            else nn.Identity()
        )
        shared = config.fuse == "mean" and query_size == item_size
        self.input_query = None if shared else nn.Linear(query_size, hidden, bias=False)
        self.pool_encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden,
                config.heads,
                4 * hidden,
                config.attention_dropout,
                "gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(config.pool_layers if config.trunk == "set_encoder" else 0)
        )
        self.attention = nn.ModuleList(
            PoolAttention(hidden, config.heads, config.attention_dropout)
            for _ in range(config.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.project_query = _near_identity(hidden)
        self.project_item = _near_identity(hidden)

    def forward(
        self,
        query: Tensor,
        items: Tensor,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        input_query = self.input_item if self.input_query is None else self.input_query
        q = input_query(query).unsqueeze(1)  # (B, 1, H)
        pool = self.input_item(items)  # (U, H)
        mask = features.mask  # (B, K)
        if len(self.pool_encoder):
            pool = features.gather(pool)  # (B, K, H)
            for layer in self.pool_encoder:
                pool = layer(pool, src_key_padding_mask=~mask)
            v = F.normalize(self.project_item(self.dropout(pool)), dim=-1)  # (B, K, H)
        else:
            # projected once per item, before items are repeated for every pool that holds them
            v = features.gather(
                F.normalize(self.project_item(self.dropout(pool)), dim=-1)
            )  # (B, K, H)
            if len(pool) <= SHARED * mask.shape[1]:
                mask = features.members  # (B, U), and the pool stays one table
            else:
                pool = features.gather(pool)  # (B, K, H)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            q = norm(q + attention(q, pool, mask))
        u = F.normalize(self.project_query(self.dropout(q.squeeze(1))), dim=-1)
        return u, v


def _near_identity(hidden: int) -> nn.Linear:
    """A projection that starts as the identity plus a little noise, so that at first it changes almost nothing."""
    layer = nn.Linear(hidden, hidden, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(hidden) + 0.01 * torch.randn(hidden, hidden))
    return layer


def build_trunk(
    config: PolicyConfig,
    query_size: int,
    item_size: int,
) -> nn.Module:
    """The trunk a config names."""
    if config.trunk == "bi_encoder":
        return BiEncoder(config, query_size, item_size)
    return CrossAttention(config, query_size, item_size)
