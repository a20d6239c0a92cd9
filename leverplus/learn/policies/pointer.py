"""The pointer policy: one class for every selector that chooses positions of a pool, its parts named by the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.catalog import DECODERS, HEADS, load
from leverplus.errors import TrainingError
from leverplus.learn.policies.base import Encoded, Features, Memory, Policy, State
from leverplus.learn.policies.heads import Head
from leverplus.learn.policies.pairterm import PairTerm
from leverplus.learn.policies.setterms import SetTerm, build_terms, chosen_rows
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.states import build_state
from leverplus.learn.policies.trunks import BiEncoder, build_trunk


def fuse_blocks(
    blocks: Mapping[str, Tensor],
    fields: tuple[str, ...],
    how: str,
) -> Tensor:
    """One vector per row from the named blocks (N, D): their unit vectors side by side, or the unit mean of them."""
    parts = [F.normalize(blocks[name], dim=-1) for name in fields]
    if how == "concat":
        return torch.cat(parts, dim=-1)  # (N, sum of D)
    return F.normalize(torch.stack(parts).mean(0), dim=-1)  # (N, D)


def fused_size(
    dims: Mapping[str, int],
    fields: tuple[str, ...],
    how: str,
) -> int:
    """The width of `fuse_blocks`."""
    if how == "concat":
        return sum(dims[name] for name in fields)
    return dims[fields[0]]  # a mean needs blocks of equal width


class PointerPolicy(Policy):
    """A selector put together from a trunk, a state, a head, set terms, a decoder and STOP (docs/policies.md).

    Blocks of `Encoded`: "u" (B, H) the query, "v" (B, A, H) the candidates, with STOP last where it may stop.
    Memory: "h" (B, G, H) the state, or "scores" (B, G, A) where no step changes them.
    """

    GROUPS = {  # noqa: RUF012 read only
        "projections": (
            "trunk.input",
            "trunk.project",
            "trunk.query_mlp",
            "trunk.item_mlp",
            "network_share",
        ),
        "attention": ("trunk.attention", "trunk.norms", "trunk.pool_encoder"),
        "state": ("state.", "step_vectors"),
        "head": ("head.",),
        "pairs": ("pairs.",),
        "set_terms": ("terms.",),
        "decoder": ("slots.", "refine."),
        "stop": ("stop_vector",),
    }

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        query_size = fused_size(dims, config.query_fields, config.fuse)
        item_size = fused_size(dims, config.demo_fields, config.fuse)
        self.trunk = build_trunk(config, query_size, item_size)
        self.state = build_state(config.state, config.hidden)
        self.head: Head = load(HEADS, config.head, "head")(config, dims)
        self.terms = build_terms(config)
        self.pairs = PairTerm() if config.pairs else None
        self.network_share: nn.Parameter | None = None
        if config.pairs:  # what was known before training is not lost at first
            self.network_share = nn.Parameter(torch.zeros(()))
        self.slots: Any = None
        self.refine: Any = None
        if config.decoder != "step":
            made = load(DECODERS, config.decoder, "decoder")(config)
            setattr(self, config.decoder, made)
        self.step_vectors: nn.Parameter | None = None
        if config.step_embedding:
            rows = config.max_shots + int(self.stops)  # STOP is a step too
            # N(0, 0.02^2) as in the earlier code: at first a step hardly differs from another
            self.step_vectors = nn.Parameter(0.02 * torch.randn(rows, config.hidden))
        # nothing a step scores by depends on earlier picks or its number: score once, then only exclude what is used
        same_every_step = config.decoder == "step" and not config.step_embedding
        self.constant = config.state == "none" and same_every_step
        self.stop_vector: nn.Parameter | None = None
        if self.stops:
            self.stop_vector = nn.Parameter(torch.randn(config.hidden))

    @property
    def candidates_apart(self) -> bool:
        plain = self.config.trunk == "bi_encoder" and self.config.decoder == "step"
        return plain and not self.head.compares

    def _set_terms(self) -> list[SetTerm]:
        return [cast(SetTerm, term) for term in self.terms.values()]

    def item_vectors(self, items: Mapping[str, Tensor]) -> Tensor | None:
        if not isinstance(self.trunk, BiEncoder) or self.adapters is not None:
            return None
        return self.trunk.items(
            fuse_blocks(items, self.config.demo_fields, self.config.fuse)
        )

    def prepare(self, features: Features) -> Encoded:
        config = self.config
        features = self.embedded(features)
        query = fuse_blocks(features.query, config.query_fields, config.fuse)  # (B, D)
        if features.encoded is not None:
            assert isinstance(self.trunk, BiEncoder), "item_vectors made them"
            u = self.trunk.query(query)  # (B, H)
            v = features.gather(features.encoded)  # (B, K, H)
        else:
            items = fuse_blocks(features.items, config.demo_fields, config.fuse)
            u, v = self.trunk(query, items, features)  # (B, H), (B, K, H)
        blocks: dict[str, Tensor] = {"u": u}
        if self.pairs is not None:
            if features.pairs is None:
                raise TrainingError(
                    "this selector weighs features of pairs (select.pairs); give it a table that has them"
                )
            blocks["pairs"] = self.pairs(features.pairs)  # (B, 1, K)
        for term in self._set_terms():
            blocks.update(term.read(u, v))
        if self.slots is not None:
            blocks["slot_items"] = v  # without STOP, which is appended below
        if self.stop_vector is not None:
            stop = F.normalize(self.stop_vector, dim=-1)  # (H,)
            v = torch.cat([v, stop.expand(len(v), 1, -1)], dim=1)  # (B, K + 1, H)
        blocks["v"] = v
        return Encoded(features.mask, blocks)

    def begin(
        self,
        encoded: Encoded,
        members: int,
        steps: int,
    ) -> Memory:
        query = encoded["u"].unsqueeze(1)  # (B, 1, H)
        memory: Memory
        if self.constant:
            scores = self._with_pairs(self.head(query, encoded), encoded)  # (B, 1, A)
            memory = {"scores": scores.expand(-1, members, -1)}
        else:
            memory = {"h": query.expand(-1, members, -1)}  # (B, G, H)
        if self.slots is not None:
            items = encoded["slot_items"]
            slots = self.slots(encoded["u"], items, encoded.mask, steps)  # (B, T, H)
            slots = slots.unsqueeze(1).expand(-1, members, -1, -1)  # (B, G, T, H)
            memory["slots"] = slots
        for term in self._set_terms():
            memory.update(term.begin(encoded, members))
        return memory

    def scores(self, encoded: Encoded, state: State) -> Tensor:
        if self.constant:
            scores = state.memory["scores"]  # (B, G, A)
        else:
            scores = self._with_pairs(self._score_by_head(encoded, state), encoded)
        if state.step > 0:
            for term in self._set_terms():
                extra = term(encoded, state.memory, state.step)  # (B, G, K)
                # nothing is added to STOP
                scores = scores + F.pad(extra, (0, scores.shape[-1] - extra.shape[-1]))
        return scores

    def _with_pairs(self, scores: Tensor, encoded: Encoded) -> Tensor:
        """Scores (B, G, A) with what the features of pairs add, where they are read."""
        if self.network_share is None:
            return scores
        summed = encoded["pairs"]  # (B, 1, K); nothing is added to STOP
        more = F.pad(summed, (0, scores.shape[-1] - summed.shape[-1]))
        return self.network_share * scores + more

    def _score_by_head(self, encoded: Encoded, state: State) -> Tensor:
        """Scores by the head, and by a second look at the best where there is one, before set terms, (B, G, A)."""
        h = self._query_of_step(state)
        scores: Tensor = self.head(h, encoded)
        if self.refine is not None:
            best, second = self.refine(
                h, encoded["v"], scores, state.used
            )  # (B, G, M) both
            scores = self.refine.merge(scores, best, self.head.scaled(second))
        return scores

    def _query_of_step(self, state: State) -> Tensor:
        """The vector that candidates of this step are compared with, (B, G, H)."""
        h = state.memory["h"]
        if self.slots is not None:
            return state.memory["slots"][:, :, state.step]
        if self.step_vectors is None:
            return h
        return F.normalize(h + self.step_vectors[state.step], dim=-1)

    def remember(
        self,
        encoded: Encoded,
        state: State,
        action: Tensor,
    ) -> Memory:
        kept = "scores" if self.constant else "h"
        memory: Memory = {kept: state.memory[kept]}
        if self.slots is not None:
            memory["slots"] = state.memory["slots"]
        if self.config.state != "none":
            chosen = chosen_rows(encoded["v"], action)  # (B, G, H)
            updated = self.state(memory["h"], chosen)
            memory["h"] = torch.where(state.stopped.unsqueeze(-1), memory["h"], updated)
        for term in self._set_terms():
            memory.update(term.remember(encoded, state.memory, action, state.step))
        return memory
