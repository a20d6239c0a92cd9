"""Language models over item ids: a GPT-2 style decoder and an LSTM read (query, picks so far) and name the next id.

The vocabulary is every item of the index plus EOS, BOS and QUERY. Scores are taken at the ids of the pool, so that a
pool which holds the whole index gives back the choice over all ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leverplus.errors import TrainingError
from leverplus.policies.base import Encoded, Features, Memory, Policy, State
from leverplus.policies.pointer import fuse_blocks, fused_size
from leverplus.policies.setterms import chosen_rows
from leverplus.recipe.selection import PolicyConfig


class IdPolicy(Policy):
    """Ids in, ids out: `model = "gpt2"` with tied output, or `"lstm"` with a two-layer output network."""

    GROUPS = {  # noqa: RUF012 read only
        "embedding": ("embedding.", "places", "query_features.", "item_features."),
        "body": ("blocks.", "lstm.", "norm."),
        "output": ("output.", "bias"),
    }

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int], items: int) -> None:
        super().__init__(config, dims)
        width = config.hidden
        self.items = items
        self.embedding = nn.Embedding(items + 3, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.query_features = nn.Linear(fused_size(dims, config.query_fields, config.fuse), width)
        self.item_features = nn.Linear(fused_size(dims, config.demo_fields, config.fuse), width)
        if config.model == "gpt2":
            self.places = nn.Parameter(0.02 * torch.randn(config.max_shots + 3, width))
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    width, config.heads, 4 * width, config.dropout, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(config.layers)
            )
            self.norm = nn.LayerNorm(width)
        else:
            between = config.dropout if config.layers > 1 else 0.0
            self.lstm = nn.LSTM(width, width, config.layers, batch_first=True, dropout=between)
            self.output = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width))
            self.bias = nn.Parameter(torch.zeros(items + 3))

    def prepare(self, features: Features) -> Encoded:
        numbers = features.rows
        if numbers is None:
            raise TrainingError(f'select.model = "{self.config.model}" needs the row of every item in the index')
        config, features = self.config, self.embedded(features)
        query = fuse_blocks(features.query, config.query_fields, config.fuse)
        items = fuse_blocks(features.items, config.demo_fields, config.fuse)
        rows = features.gather(numbers)
        special = torch.tensor([self.items, self.items + 1, self.items + 2], device=rows.device)
        end, begin, ask = self.embedding(special)
        asked = ask + self.query_features(query)
        start = torch.stack([begin.expand_as(asked), asked], dim=1)
        tokens = self.embedding(rows)
        seen = tokens + features.gather(self.item_features(items))
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
            last, bias = self.output(self.lstm(flat)[0][:, -1]), self.bias[encoded["rows"]]
        scores: Tensor = last.reshape(*prefix.shape[:2], -1) @ encoded["tokens"].mT
        return scores if bias is None else scores + bias.unsqueeze(1)

    def remember(self, encoded: Encoded, state: State, action: Tensor) -> Memory:
        seen = chosen_rows(encoded["seen"], action).unsqueeze(2)
        return {"prefix": torch.cat([state.memory["prefix"], seen], dim=2)}
