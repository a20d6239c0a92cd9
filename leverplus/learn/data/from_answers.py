"""Rows from the likeness of answers: a candidate's reward is how alike its answer is to the query's own answer.

No model is asked and no metric is needed, so answers may have any shape: SQL, JSON, a sentence. A demonstration whose
answer is built like the one that is wanted shows the model how to build it; which question asks for which shape of
answer is what a selector can learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.corpus import picture_groups
from leverplus.data.types import Item, ItemId
from leverplus.errors import TrainingError
from leverplus.learn.data.answer_likeness import Likeness, NgramLikeness
from leverplus.learn.data.rows import Row, number_answers, one_shot_row
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import derive_seed
from leverplus.learn.settings import ContrastiveConfig

Indices = NDArray[np.int64]
Floats = NDArray[np.float32]

CHUNK = 256
"""Queries whose likeness to all items is computed at once."""

DRAWN_FROM = 4
"""Candidates are drawn anew every epoch from so many times as many as one row has."""


FEWEST_ROWS = 3000
"""Where there are fewer questions, an epoch draws candidates for each of them several times."""


@dataclass(frozen=True)
class Mined:
    """Candidates of every query: places (Q, C) among the items, and the likeness (Q, C) of their answers."""

    places: Indices
    likeness: Floats


class AnswerRows:
    """Rows of labelled queries among `items`: candidates with like answers, others near by question, and some by chance.

    `likeness` says how alike answers are; by default by their words. The query itself and its picture are left out.
    """

    def __init__(
        self,
        items: Sequence[Item],
        queries: Iterable[ItemId],
        table: ItemTable,
        *,
        config: ContrastiveConfig,
        seed: int,
        likeness: Likeness | None = None,
    ) -> None:
        self.items = items
        self.config = config
        self.seed = seed
        asked = set(queries)
        places = [place for place, item in enumerate(items) if item.id in asked]
        self.queries = np.array(places, dtype=np.int64)  # (Q,)
        self.table_rows = np.array([table.row(item.id) for item in items])  # (N,)
        answers = [item.answer for item in items]
        alike = NgramLikeness(answers) if likeness is None else likeness
        self.like, self.near, self.others = self._mine(answers, alike, table)

    def _mine(
        self,
        answers: Sequence[str],
        alike: Likeness,
        table: ItemTable,
    ) -> tuple[Mined, Mined, Mined]:
        """For every query: those with the likest answers, those nearest by question, and some by chance."""
        config = self.config
        block = _question_block(table)[self.table_rows]  # (N, D)
        numbers = picture_groups(self.items)  # (N,)
        # how alike two answers are is computed once for each different answer
        distinct, own = number_answers(self.items)
        rng = np.random.default_rng(derive_seed(self.seed, "contrastive", "others"))
        found: tuple[list[Mined], ...] = ([], [], [])
        for start in range(0, len(self.queries), CHUNK):
            part = self.queries[start : start + CHUNK]  # (q,)
            wanted = [answers[place] for place in part]
            likeness = alike(wanted, distinct)[:, own]  # (q, N)
            forbidden = numbers[part][:, None] == numbers[None, :]  # (q, N)
            likeness = np.where(forbidden, -1.0, likeness).astype(np.float32)
            like = _largest(likeness, likeness, DRAWN_FROM * config.positives)
            # near by question, but less alike than the least alike of those
            limit = like.likeness[:, -1:] - config.margin
            nearness = block[part] @ block.T  # (q, N)
            nearness = np.where(likeness <= limit, nearness, nearness - 4.0)
            nearness[forbidden] = -9.0
            found[0].append(like)
            found[1].append(_largest(nearness, likeness, DRAWN_FROM * config.near))
            chance = rng.random(likeness.shape, dtype=np.float32)
            chance[forbidden] = -1.0
            found[2].append(_largest(chance, likeness, DRAWN_FROM * config.others))
        return _joined(found[0]), _joined(found[1]), _joined(found[2])

    def rows(
        self,
        policy: Policy,  # noqa: ARG002
        epoch: int,
    ) -> Sequence[Row]:
        """The rows of an epoch (from 0)."""
        rng = np.random.default_rng(derive_seed(self.seed, "contrastive", epoch))
        limit = self.config.queries or None
        passes = max(1, FEWEST_ROWS // max(1, len(self.queries)))
        found = []
        for _ in range(passes):
            for number in rng.permutation(len(self.queries))[:limit].tolist():
                row = self._row(number, rng)
                if row is not None:
                    found.append(row)
        if not found:
            raise TrainingError(
                "stage contrastive: every training question has answers that are all alike, or all unlike, so there "
                "is nothing to learn here; take contrastive out of train.stages"
            )
        return found

    def _row(
        self,
        number: int,
        rng: np.random.Generator,
    ) -> Row | None:
        config = self.config
        places = []
        values = []
        blocks = (
            (self.like, config.positives),
            (self.near, config.near),
            (self.others, config.others),
        )
        for block, count in blocks:
            width = block.places.shape[1]
            chosen = rng.permutation(width)[: min(count, width)]
            places.append(block.places[number][chosen])
            values.append(block.likeness[number][chosen])
        drawn, first = np.unique(np.concatenate(places), return_index=True)  # (K,)
        likeness = np.concatenate(values)[first]
        order = rng.permutation(np.flatnonzero(likeness >= 0.0))  # (K',)
        drawn = drawn[order]
        likeness = likeness[order]
        if len(drawn) < 2 or likeness.max() - likeness.min() < config.margin:
            return None
        query = int(self.queries[number])
        return one_shot_row(
            self.items[query].id,
            int(self.table_rows[query]),
            self.table_rows[drawn],
            likeness,
        )


def _question_block(table: ItemTable) -> Floats:
    """What questions are compared by: their texts, or pictures where texts have no vectors."""
    name = "image"
    if "text" in table.arrays:
        name = "text"
    block = table.arrays[name]
    size = np.linalg.norm(block, axis=1, keepdims=True)
    return np.asarray(block / np.maximum(size, 1e-12), dtype=np.float32)


def _largest(
    values: Floats,
    likeness: Floats,
    count: int,
) -> Mined:
    """Of each row the `count` places with the largest values, best first."""
    count = min(count, values.shape[1])
    places = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return Mined(places, np.take_along_axis(likeness, places, axis=1))


def _joined(parts: Sequence[Mined]) -> Mined:
    places = np.concatenate([part.places for part in parts])
    return Mined(places, np.concatenate([part.likeness for part in parts]))
