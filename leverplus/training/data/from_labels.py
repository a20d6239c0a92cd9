"""Rows from labels alone: a candidate's reward is what its answer would score if it were given for the query.

No model is asked, so every training question can be compared with fresh candidates in every epoch. It is a guess at
what a frozen model does with a demonstration, right for a model that takes over what it is shown; a later stage, which
learns from the model's own answers, starts from it instead of from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from leverplus.errors import TrainingError
from leverplus.metrics import Metric
from leverplus.policies.base import Policy
from leverplus.policies.items import ItemTable
from leverplus.pools.build import picture_name
from leverplus.recipe.training import LabelPretrainingConfig
from leverplus.training.data.rows import Row
from leverplus.training.seeds import derive_seed
from leverplus.types import Item, ItemId

Indices = NDArray[np.int64]


class LabelRows:
    """Rows of labelled queries among `items` with candidates of all of them; the same for the same seed and epoch.

    Some candidates of a row are drawn among those that show an answer which scores with the query, where there are any,
    the others from all items. Draws of the query itself, of its picture and of one item twice are left out, and so are
    rows whose candidates all have the same reward.
    """

    def __init__(
        self,
        items: Sequence[Item],
        queries: Iterable[ItemId],
        table: ItemTable,
        metric: Metric,
        *,
        config: LabelPretrainingConfig,
        seed: int,
    ) -> None:
        self.items, self.metric, self.config, self.seed = items, metric, config, seed
        asked = set(queries)
        # everything below has one entry per item (N,): computed once, drawn from in every epoch
        self.queries = np.array([place for place, item in enumerate(items) if item.id in asked], dtype=np.int64)
        self.table_rows = np.array([table.row(item.id) for item in items])
        self.shown = sorted({item.answer for item in items})
        self.answers = {answer: number for number, answer in enumerate(self.shown)}
        self.own = np.array([self.answers[item.answer] for item in items])
        # items in blocks of one answer each; block `a` ends before ends[a]
        self.by_answer = np.argsort(self.own, kind="stable")
        self.ends = np.cumsum(np.bincount(self.own, minlength=len(self.shown)))
        pictures = [picture_name(item) for item in items]
        numbers = {picture: number for number, picture in enumerate(dict.fromkeys(pictures))}
        # an item without a picture has a negative number of its own, so that it equals itself only
        self.pictures = np.array([-1 - n if p is None else numbers[p] for n, p in enumerate(pictures)])

    def rows(self, policy: Policy, epoch: int) -> Sequence[Row]:  # noqa: ARG002 the signature of every source
        """The rows of an epoch (from 0)."""
        rng = np.random.default_rng(derive_seed(self.seed, "label_pretraining", epoch))
        queries = rng.permutation(self.queries)[: self.config.queries or None]
        found = []
        for query in queries.tolist():
            row = self._row(query, rng)
            if row is not None:
                found.append(row)
        if not found:
            raise TrainingError(
                "stage label_pretraining: no candidate's answer scores better than another's for any training "
                "question, so labels teach nothing here; take label_pretraining out of train.stages"
            )
        return found

    def _row(self, query: int, rng: np.random.Generator) -> Row | None:
        agreeing = self._agreeing(query, rng)
        others = rng.integers(len(self.items), size=self.config.candidates - len(agreeing))
        drawn = np.unique(np.concatenate([agreeing, others]))
        drawn = rng.permutation(drawn[self.pictures[drawn] != self.pictures[query]])  # (K,)
        values = np.array([self._score(query, answer) for answer in self.own[drawn].tolist()], dtype=np.float32)
        if len(values) < 2 or values.max() == values.min():
            return None
        rewards = torch.from_numpy(values)  # (K,): every list shows one candidate, so G = K
        return Row(
            query=self.items[query].id,
            query_row=int(self.table_rows[query]),
            pool_rows=torch.from_numpy(self.table_rows[drawn]),
            sequences=torch.arange(len(drawn)).unsqueeze(-1),  # (K, 1)
            rewards=rewards,
            log_mu=torch.full_like(rewards, math.nan),
            accuracy=rewards,
        )

    def _agreeing(self, query: int, rng: np.random.Generator) -> Indices:
        """Items drawn among those that show an answer which scores with the query, each as likely as the others."""
        named = [self.answers[answer] for answer in set(self.items[query].answers) if answer in self.answers]
        scoring = sorted(answer for answer in named if self._score(query, answer) > 0.0)
        if not scoring:
            return np.zeros(0, dtype=np.int64)
        ends = self.ends[scoring]
        counts = ends - np.concatenate([[0], self.ends])[scoring]
        # a draw is a number below the sum of all blocks; from it follow the block and the place counted from its end
        drawn = rng.integers(counts.sum(), size=self.config.agreeing)
        block = np.searchsorted(np.cumsum(counts), drawn, side="right")
        found: Indices = self.by_answer[ends[block] - (np.cumsum(counts)[block] - drawn)]
        return found

    def _score(self, query: int, answer: int) -> float:
        """What an answer scores with a query."""
        return self.metric(self.shown[answer], self.items[query].answers)
