"""A trained selector as an arm: a network that picks among the candidates of its first stage, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import catalog
from leverplus.arms.base import (
    EXPLAINED,
    MOST_SHOTS,
    Arm,
    ArmUnavailable,
    Arrays,
    Explanation,
    Needs,
    Outlook,
    Rows,
)
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.pairs import PairFeatures
from leverplus.arms.pools import Search, first_stage
from leverplus.arms.settings import RECORDED, PoolSection
from leverplus.arms.similarity import Positions, top
from leverplus.arms.training import Training
from leverplus.errors import LeverError, needs_extra

if TYPE_CHECKING:
    from torch import Tensor

    from leverplus.data.types import Item
    from leverplus.learn.policies.base import Encoded, LiveEncoding, Policy

NETWORK = "selector"
"""The folder inside an arm's folder that holds the network."""

MOST_READ = 8192
"""Most candidates that a network reads at once; some compare all with all."""

MOST_KEPT, KEPT_AT_ONCE = 50_000, 1024
"""Examples whose vectors in the network are kept in memory (2 kB each), and how many are computed together."""

READ_AT_ONCE = 1 << 15
"""Candidates of all queries of a batch."""

Live = Callable[[Sequence["Item"]], "LiveEncoding"]
"""Embeds examples and queries anew, for networks with adapters in the embedder."""


class Learned(Arm):
    """Greedy among the candidates of the first stage: the pools that it was trained with, in evaluation and in use."""

    name, title = "learned", "learned"
    says = "the trained selector; score: how much it wants an example as its first pick"
    needs = Needs(vectors=("text", "answer"), training=True, policy=True)
    stops = False

    def __init__(self) -> None:
        self.network: Policy | None = None
        self.pool, self.seed = PoolSection(), 0
        self.live: Live | None = None
        self.pairs: PairFeatures | None = None
        """What a network with `select.pairs` reads of a query and a candidate."""
        self._kept: KeptItems | None = None

    @property
    def policy(self) -> Policy:
        assert self.network is not None, "fit or load comes first"
        return self.network

    @property
    def vector_fields(self) -> tuple[str, ...]:
        compared = ["text"]
        if self.pool.kind in ("nearest_image", "two_stage") or (
            self.pool.kind != "nearest_text" and self.pool.text_weight < 1.0
        ):
            compared.append("image")
        if self.pairs is not None:
            compared += self.pairs.vector_fields
        return tuple(dict.fromkeys((*self.policy.dims, *compared)))

    @property
    def most_shots(self) -> int:
        if self.network is None:
            return MOST_SHOTS
        return int(self.policy.config.max_shots)

    @property
    def nested(self) -> str:  # type: ignore[override]
        asked = getattr(self.policy.config, "slot_form", "fixed") == "asked"
        return "" if asked else "prefix"

    def fit(self, training: Training) -> Learned:
        network = training.policy()
        if network is None:
            raise ArmUnavailable("no selector was trained")
        if self.stops and not network.stops:
            raise ArmUnavailable(
                'this selector never stops (select.stop = "never"); use arm learned'
            )
        if network.config.pairs:
            self.pairs = PairFeatures.fit(training)
        return self.take(network, training.pool, training.pool_seed, training.live)

    def take(
        self, network: Policy, pool: PoolSection, seed: int, live: Live | None = None
    ) -> Learned:
        """Choose by a network, out of these candidates."""
        self.network, self.pool, self.seed, self.live = network.eval(), pool, seed, live
        self._kept = None
        return self

    def candidates(self, queries: Queries, corpus: Corpus) -> list[Positions]:
        """The rows of the first stage for each query, best first where there is a best."""
        weight = corpus.weight(self.pool.text_weight)
        section = replace(self.pool, text_weight=weight)
        names = (
            queries.digests
            if section.kind in ("random", "mix")
            else [""] * len(queries)
        )
        found = first_stage(Search(queries, corpus, section, names, self.seed))
        for place, only in enumerate(queries.only):
            if only is not None and len(only) <= section.size:  # in their own order
                found[place] = only[queries.open_mask(place, corpus)[only]]
        return found

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        return self.choose_from(
            queries, corpus, self.candidates(queries, corpus), shots
        )

    def choose_from(
        self,
        queries: Queries,
        corpus: Corpus,
        candidates: Sequence[Positions],
        shots: int,
    ) -> list[Rows]:
        """Choose out of given candidates of each query."""
        from leverplus.learn.policies.decode import greedy

        chosen: list[Rows] = []
        largest = max((len(pool) for pool in candidates), default=1)
        at_once = max(1, min(256, READ_AT_ONCE // max(1, largest)))
        for start in range(0, len(queries), at_once):
            part = queries[start : start + at_once]
            pools = candidates[start : start + at_once]
            fewest = min((len(pool) for pool in pools), default=0)
            if len(part) > 1 and fewest < shots:  # each has a length of its own
                for place in range(len(part)):
                    one = part[place : place + 1]
                    chosen += self.choose_from(one, corpus, [pools[place]], shots)
                continue
            count = min(shots, fewest)
            if count == 0:
                chosen += [[] for _ in range(len(part))]
                continue
            encoded = self.encode(part, corpus, pools)
            picks = greedy(self.policy, encoded, count, self.stops).positions[:, 0]
            for pool, row in zip(pools, picks.tolist(), strict=True):
                chosen.append([int(pool[place]) for place in row if place >= 0])
        return chosen

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        import torch

        pool = self.candidates(query, corpus)[0]
        if not len(pool):
            return Explanation(pool, np.empty(0), [])
        encoded = self.encode(query, corpus, [pool])
        with torch.inference_mode():
            start = self.policy.start(encoded, 1, max(1, shots))
            logits = self.policy.step(encoded, start, self.stops)
        # the first pick's, (K,); STOP stands behind them
        score = logits[0, 0, : len(pool)].double().numpy()
        order = top(score[None], min(len(pool), max(EXPLAINED, shots)))[0]
        terms = {"interaction": score[order] - score.mean()}
        shown = self.choose(query, corpus, shots)[0]
        return Explanation(pool[order], score[order], shown, terms)

    def encode(
        self, queries: Queries, corpus: Corpus, pools: Sequence[Positions]
    ) -> Encoded:
        """Queries and their candidates as the network reads them."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from leverplus.learn.policies.base import Features

        rows, inverse = np.unique(np.concatenate(pools), return_inverse=True)
        ends = np.cumsum([len(pool) for pool in pools])[:-1]
        parts = [torch.from_numpy(own) for own in np.split(inverse, ends)]
        asked: dict[str, Tensor] = {}
        for name, block in vars(queries.vectors).items():
            if block is not None and name != "answer":
                asked[name] = torch.from_numpy(np.ascontiguousarray(block))
        live = None if self.live is None else self.live(queries.items)
        known = None if live is not None else self._kept_items(corpus, rows)
        items: dict[str, Tensor] = {}
        if known is None:
            for name in self.fields:
                items[name] = torch.from_numpy(corpus.blocks[name].take(rows))
        numbers = torch.arange(len(corpus), len(corpus) + len(queries))
        pairs = None
        if self.pairs is not None:
            each = []
            for place, pool in enumerate(pools):
                one = self.pairs.of(queries[place : place + 1], corpus, pool)
                each.append(torch.from_numpy(one.astype(np.float32)))
            pairs = pad_sequence(each, batch_first=True)
        features = Features(
            query=asked,
            items=items,
            encoded=known,
            pool=pad_sequence(parts, batch_first=True, padding_value=-1),
            rows=torch.from_numpy(rows),
            query_rows=numbers,
            live=live,
            pairs=pairs,
        )
        with torch.inference_mode():
            return self.policy.prepare(features)

    @property
    def fields(self) -> tuple[str, ...]:
        """What the network reads of a candidate."""
        return tuple(dict.fromkeys(self.policy.dims))

    def _kept_items(self, corpus: Corpus, rows: Positions) -> Tensor | None:
        if self._kept is None:
            self._kept = KeptItems(self.policy, self.fields)
        return self._kept.of(corpus, rows)

    def settings(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"pool": asdict(self.pool), "seed": self.seed}
        if self.pairs is not None:
            found["pairs"] = self.pairs.settings()
        return found

    def arrays(self) -> Arrays:
        return {} if self.pairs is None else self.pairs.arrays()

    def check(self, rows: int) -> None:
        if self.pairs is not None:
            self.pairs.start.check(rows)

    def restore(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        if "pairs" in settings:
            self.pairs = PairFeatures.restored(settings["pairs"], arrays)
        self.pool = PoolSection(**settings["pool"])
        if problems := self.pool.problems():
            raise ValueError(problems[0])
        if self.pool.kind not in (*catalog.SAMPLERS, RECORDED):
            raise ValueError(f"there is no first stage {self.pool.kind!r}")
        if not 1 <= self.pool.size <= MOST_READ:
            raise ValueError(f"{self.pool.size} candidates")
        self.seed = int(settings["seed"])

    @property
    def unsavable(self) -> str:
        if self.policy.adapters is not None:
            return "a selector with adapters in the embedder cannot be packed; train one with sft.lora_rank = 0"
        if self.pool.kind not in (*catalog.SAMPLERS, RECORDED):
            return (
                f'pool.kind = "{self.pool.kind}" is code of your own, which a bundle does not hold; train with a pool '
                "of the catalog"
            )
        if self.pool.size > MOST_READ:
            return f"a learned selector reads at most {MOST_READ:,} candidates at once, not {self.pool.size:,}"
        return ""

    def save(self, folder: Path) -> None:
        from leverplus.learn.checkpoint import save_checkpoint

        if self.unsavable:
            raise LeverError(self.unsavable)
        super().save(folder)
        save_checkpoint(folder / NETWORK, self.policy, "")

    def load(self, folder: Path) -> Learned:
        super().load(folder)
        with needs_extra("this bundle's trained selector", "train"):
            from leverplus.learn.checkpoint import load_checkpoint
        self.network = load_checkpoint(folder / NETWORK)[0].eval()
        return self

    @property
    def reads_ids(self) -> bool:
        """Whether it chooses by the numbers of its examples, so that none can be added."""
        return bool(getattr(self.policy.config, "model", "pointer") != "pointer")


class LearnedAuto(Learned):
    """The same selector, which may show fewer or none."""

    name, title = "learned_auto", "learned, own count"
    says = "the trained selector, which may show fewer; score: how much it wants an example as its first pick"
    stops = True
    compared_with = ("zero_shot", "learned")

    def is_possible(self, outlook: Outlook) -> bool:
        return outlook.trains and outlook.stops


class KeptItems:
    """What a network makes of every example apart from the query, computed at the first choice and kept.

    Examples that were added later are computed when they are candidates. Always the same rows are computed together, so
    that a choice does not depend on earlier ones, not even in the last bit.
    """

    def __init__(self, policy: Policy, names: Sequence[str]) -> None:
        self.policy, self.names = policy, names
        self.lock = Lock()
        self.vectors: Tensor | None = None  # (rows of the file, H)

    def of(self, corpus: Corpus, rows: Positions) -> Tensor | None:
        """The vectors of some rows (K, H); None where the network has none, or there are too many to keep."""
        import torch

        count = len(corpus.blocks[self.names[0]].base) if self.names else 0
        if not 0 < count <= MOST_KEPT:
            return None
        with self.lock, torch.inference_mode():
            if self.vectors is None:
                self.vectors = self._of_file(corpus, count)
        if not len(self.vectors):
            return None
        if rows.max(initial=-1) < count:
            return self.vectors[torch.from_numpy(rows)]
        with torch.inference_mode():
            late = rows >= count
            found = torch.empty(len(rows), self.vectors.shape[1])
            found[torch.from_numpy(~late)] = self.vectors[torch.from_numpy(rows[~late])]
            made = self._made(corpus, rows[late])
            assert made is not None, "the same network made those of the file"
            found[torch.from_numpy(late)] = made
        return found

    def _of_file(self, corpus: Corpus, count: int) -> Tensor:
        """All rows of the file; nothing (0, 0) where the network has no such vectors."""
        import torch

        parts = []
        for start in range(0, count, KEPT_AT_ONCE):
            rows = np.arange(start, min(start + KEPT_AT_ONCE, count))
            made = self._made(corpus, rows)
            if made is None:
                return torch.empty(0, 0)
            parts.append(made)
        return torch.cat(parts)

    def _made(self, corpus: Corpus, rows: Positions) -> Tensor | None:
        import torch

        blocks = {}
        for name in self.names:
            blocks[name] = torch.from_numpy(corpus.blocks[name].take(rows))
        return self.policy.item_vectors(blocks)
