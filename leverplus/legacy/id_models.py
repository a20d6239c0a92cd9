"""Language models over item ids: a GPT-2 style decoder and an LSTM read (query, picks so far) and name the next id.

The vocabulary is every item of the index plus EOS, BOS and QUERY. Scores are taken at the ids of the pool, so that a
pool which holds the whole index gives back the choice over all ids.

`select.id_form` says how features join the ids: through one linear map of all fields, or as the earlier code had it,
each field by itself, added as it is or through a small network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.errors import TrainingError
from leverplus.policies.base import Encoded, Features, Memory, Policy, State
from leverplus.policies.pointer import fuse_blocks, fused_size
from leverplus.policies.setterms import chosen_rows
from leverplus.recipe.selection import PolicyConfig

EARLIER_PLACES = 1024
"""Positions of the earlier GPT-2, most of which no list ever reaches."""


class FieldNetworks(nn.Module):
    """Features as the earlier code added them to an id: the unit vector of every field, or a small network of it."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__()
        between = config.hidden * (4 if config.model == "gpt2" else 1)
        self.networks = nn.ModuleDict()
        if config.id_form == "adapter":
            for name, width in dims.items():
                parts = nn.Linear(width, between), nn.ReLU(), nn.Linear(between, config.hidden)
                self.networks[name] = nn.Sequential(*parts)

    def forward(self, blocks: Mapping[str, Tensor], fields: tuple[str, ...]) -> Tensor:
        """Named blocks (N, D) as one vector (N, H) each, the sum over the fields."""
        units = {name: F.normalize(blocks[name], dim=-1) for name in fields}
        added = [self.networks[name](unit) if name in self.networks else unit for name, unit in units.items()]
        return torch.stack(added).sum(0)


class IdPolicy(Policy):
    """Ids in, ids out: `model = "gpt2"` with tied output, or `"lstm"` with a two-layer output network.

    In the earlier forms the GPT-2 has its approximate GELU and 1024 positions, and the LSTM a weight of its own for
    every id that it may name.
    """

    GROUPS = {  # noqa: RUF012 read only
        "embedding": ("embedding.", "places", "query_features.", "item_features.", "field_networks."),
        "body": ("blocks.", "lstm.", "norm."),
        "output": ("output.", "bias"),
    }

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int], items: int) -> None:
        super().__init__(config, dims)
        width = config.hidden
        self.items = items
        self.embedding = nn.Embedding(items + 3, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.earlier = config.id_form != "linear"
        if self.earlier:
            self.field_networks = FieldNetworks(config, dims)
        else:
            self.query_features = nn.Linear(fused_size(dims, config.query_fields, config.fuse), width)
            self.item_features = nn.Linear(fused_size(dims, config.demo_fields, config.fuse), width)
        if config.model == "gpt2":
            places = EARLIER_PLACES if self.earlier else config.max_shots + 3
            activation = partial(F.gelu, approximate="tanh") if self.earlier else F.gelu
            self.places = nn.Parameter(0.02 * torch.randn(places, width))
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, config.heads, 4 * width, config.dropout, activation, batch_first=True, norm_first=True
                )
                for _ in range(config.layers)
            )
            self.norm = nn.LayerNorm(width)
        else:
            between = config.dropout if config.layers > 1 else 0.0
            self.lstm = nn.LSTM(width, width, config.layers, batch_first=True, dropout=between)
            if self.earlier:
                self.output = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, items + 3))
            else:
                self.output = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width))
                self.bias = nn.Parameter(torch.zeros(items + 3))

    def _features(self, features: Features) -> tuple[Tensor, Tensor]:
        """What is added to the token of a query (B, H) and to those of the items (N, H)."""
        config = self.config
        if self.earlier:
            added = self.field_networks
            return added(features.query, config.query_fields), added(features.items, config.demo_fields)
        query = fuse_blocks(features.query, config.query_fields, config.fuse)
        items = fuse_blocks(features.items, config.demo_fields, config.fuse)
        return self.query_features(query), self.item_features(items)

    def prepare(self, features: Features) -> Encoded:
        numbers = features.rows
        if numbers is None:
            raise TrainingError(f'select.model = "{self.config.model}" needs the row of every item in the index')
        features = self.embedded(features)
        query, items = self._features(features)
        rows = features.gather(numbers)
        special = torch.tensor([self.items, self.items + 1, self.items + 2], device=rows.device)
        end, begin, ask = self.embedding(special)
        asked = ask + query
        start = torch.stack([begin.expand_as(asked), asked], dim=1)
        tokens = self.embedding(rows)
        seen = tokens + features.gather(items)
        if self.stops:
            rows = torch.cat([rows, torch.full_like(rows[:, :1], self.items)], dim=1)
            tokens = torch.cat([tokens, end.expand(len(rows), 1, -1)], dim=1)
            seen = torch.cat([seen, end.expand(len(rows), 1, -1)], dim=1)
        return Encoded(features.mask, {"start": start, "tokens": tokens, "seen": seen, "rows": rows})

    def begin(self, encoded: Encoded, members: int, steps: int) -> Memory:  # noqa: ARG002 one signature
        return {"prefix": encoded["start"].unsqueeze(1).expand(-1, members, -1, -1)}

    def scores(self, encoded: Encoded, state: State) -> Tensor:
        prefix = state.memory["prefix"]
        flat = prefix.flatten(0, 1)
        if self.config.model == "gpt2":
            length = flat.shape[1]
            ahead = torch.ones(length, length, dtype=torch.bool, device=flat.device).triu(1)
            hidden = flat + self.places[:length]
            for block in self.blocks:
                hidden = block(hidden, src_mask=ahead)
            last, bias = self.norm(hidden[:, -1]), None
        else:
            read = self.lstm(flat)[0][:, -1]
            if self.earlier:
                return self._named(self.output[:2](read).reshape(*prefix.shape[:2], -1), encoded["rows"])
            last, bias = self.output(read), self.bias[encoded["rows"]]
        scores: Tensor = last.reshape(*prefix.shape[:2], -1) @ encoded["tokens"].mT
        return scores if bias is None else scores + bias.unsqueeze(1)

    def _named(self, read: Tensor, rows: Tensor) -> Tensor:
        """Scores (B, G, A) of the ids in `rows` (B, A) by the earlier LSTM's own weights for every id."""
        words = cast(nn.Linear, self.output[2])
        weight, bias = words.weight[rows], words.bias[rows]  # (B, A, H), (B, A)
        scores: Tensor = read @ weight.mT + bias.unsqueeze(1)
        return scores

    def remember(self, encoded: Encoded, state: State, action: Tensor) -> Memory:
        seen = chosen_rows(encoded["seen"], action).unsqueeze(2)
        return {"prefix": torch.cat([state.memory["prefix"], seen], dim=2)}
