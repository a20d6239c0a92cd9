"""Rows from labels alone: a candidate's reward is what its answer would score if it were given for the query.

No model is asked, so every training question can be compared with fresh candidates in every epoch. It is a guess at
what a frozen model does with a demonstration, right for a model that takes over what it is shown; a later stage, which
learns from the model's own answers, starts from it instead of from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.corpus import picture_groups
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import TrainingError
from leverplus.learn.data.rows import Row, number_answers, one_shot_row
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import derive_seed
from leverplus.learn.settings import LabelPretrainingConfig

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
        rules: AnswerRules,
        *,
        config: LabelPretrainingConfig,
        seed: int,
    ) -> None:
        self.items = items
        self.rules = rules
        self.config = config
        self.seed = seed
        asked = set(queries)
        # everything below has one entry per item (N,): computed once, drawn from in every epoch
        places = [place for place, item in enumerate(items) if item.id in asked]
        self.queries = np.array(places, dtype=np.int64)
        self.table_rows = np.array([table.row(item.id) for item in items])
        self.shown, self.own = number_answers(items)
        self.answers = {answer: number for number, answer in enumerate(self.shown)}
        # items in blocks of one answer each; block `a` ends before ends[a]
        self.by_answer = np.argsort(self.own, kind="stable")
        self.ends = np.cumsum(np.bincount(self.own, minlength=len(self.shown)))
        self.pictures = picture_groups(items)

    def rows(
        self,
        policy: Policy,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[Row]:
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

    def _row(
        self,
        query: int,
        rng: np.random.Generator,
    ) -> Row | None:
        agreeing = self._agreeing(query, rng)
        missing = self.config.candidates - len(agreeing)
        others = rng.integers(len(self.items), size=missing)
        drawn = np.unique(np.concatenate([agreeing, others]))
        apart = drawn[self.pictures[drawn] != self.pictures[query]]
        drawn = rng.permutation(apart)  # (K,)
        scores = [self._score(query, answer) for answer in self.own[drawn].tolist()]
        values = np.array(scores, dtype=np.float32)
        if len(values) < 2 or values.max() == values.min():
            return None
        return one_shot_row(
            self.items[query].id,
            int(self.table_rows[query]),
            self.table_rows[drawn],
            values,
        )

    def _agreeing(
        self,
        query: int,
        rng: np.random.Generator,
    ) -> Indices:
        """Items drawn among those that show an answer which scores with the query, each as likely as the others."""
        scoring = []
        for answer in set(self.items[query].answers):
            number = self.answers.get(answer)
            if number is not None and self._score(query, number) > 0.0:
                scoring.append(number)
        if not scoring:
            return np.zeros(0, dtype=np.int64)
        scoring.sort()
        ends = self.ends[scoring]
        counts = ends - np.concatenate([[0], self.ends])[scoring]
        # a draw is a number below the sum of all blocks; from it follow the block and the place counted from its end
        drawn = rng.integers(counts.sum(), size=self.config.agreeing)
        block = np.searchsorted(np.cumsum(counts), drawn, side="right")
        places = ends[block] - (np.cumsum(counts)[block] - drawn)
        found: Indices = self.by_answer[places]
        return found

    def _score(
        self,
        query: int,
        answer: int,
    ) -> float:
        """What an answer scores with a query."""
        return self.rules.score(self.shown[answer], self.items[query])
