"""The `table` backend: answers from recorded tables, for the prompts that they hold and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from leverplus.backends.base import Reply, Request
from leverplus.backends.table.format import changed_items
from leverplus.backends.table.table import NOTHING, read_table
from leverplus.errors import DataError, ScoringError
from leverplus.metrics import edit_similarity, normalise_answer, token_f1
from leverplus.recipe.model import ModelSection
from leverplus.rundir import shipped
from leverplus.tasks.base import HasLabels, Task
from leverplus.types import Demos, Item, ItemId, Reference, Score


class TableBackend:
    """Replays recorded answers. What it gives are whole scores: accuracy and probability as they were recorded."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task = task
        self.paths = [shipped(name.strip()) for name in section.name.split(",") if name.strip()]
        self.table = read_table(self.paths)
        known = {item.id for split in ("train", "dev", "test") for item in task.items(split)}
        self.notice = self._check(known)
        self.demonstrations = {item.id for item in task.items("train")}

    def _check(self, known: set[ItemId]) -> str:
        """Refuse a table of other items; what is to be said about it."""
        ids = [ItemId(text) for text in self.table.ids.texts]
        strangers = [item for item in ids if item not in known]
        if strangers:
            raise DataError(
                f"the recorded table holds item '{strangers[0]}' ({len(strangers)} such items), which the task "
                f"{self.task.name} does not have; give the items that the table was recorded with (task.file)"
            )
        for path, card, own in zip(self.paths, self.table.cards, self.table.members, strict=True):
            if changed := changed_items(card, self.task, own):
                raise DataError(_changed(path, changed))
        bare = [path.name for path, card in zip(self.paths, self.table.cards, strict=True) if not card]
        return f"{', '.join(bare)}: no card, so nobody can say whether its items are these" if bare else ""

    def fingerprint(self) -> Mapping[str, str]:
        pairs = zip(self.paths, self.table.cards, strict=True)
        models = sorted({str(card.get("model", path.name)) for path, card in pairs})
        return {"model": ", ".join(models), "revision": f"table-{self.table.digest}", "decoding": "recorded"}

    def holds(self, query: ItemId) -> bool:
        """Whether the table has anything about a query."""
        return self.table.holds(query)

    def candidates(self, query: ItemId) -> Demos:
        """What a query was recorded with alone and may be shown as a demonstration, in table order."""
        alone = [demos[0] for demos in self.table.prompts(query) if len(demos) == 1]
        return tuple(demo for demo in alone if demo in self.demonstrations)

    def scores(self, prompts: Sequence[tuple[ItemId, Demos]]) -> list[Score]:
        """The recorded scores of prompts; one that was not recorded is named."""
        return [self._score(query, demos) for query, demos in prompts]

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """The recorded answers as texts; probabilities are in `scores`."""
        asked = []
        for request in requests:
            asked.append((request.query.id, tuple(demo.id for demo in request.demos)))
        return [Reply(score.answer, None, 0) for score in self.scores(asked)]

    def _score(self, query: ItemId, demos: Demos) -> Score:
        row = self.table.prompts(query).get(demos)
        if row is None:
            shown = f"the demonstrations {', '.join(demos)}" if demos else "no demonstration"
            raise ScoringError(
                f"the recorded table does not hold the prompt of query {query} with {shown}; ask only for what was "
                'recorded (pool.kind = "recorded", eval.shots = [1]), or use the live model'
            )
        item, table = self.task.item(query), self.table
        answer = table.answers.texts[table.answer[row]] if table.answer[row] != NOTHING else None
        accuracy, probability = float(table.accuracy[row]), float(table.gt_prob[row])
        if answer:
            shared_words, alike = token_f1(answer, item.answers), edit_similarity(answer, item.answers)
        else:  # nobody can say how near an answer came that was not recorded; its accuracy is what is known
            shared_words = alike = accuracy
        return Score(
            query=query,
            demos=demos,
            raw=answer or "",
            answer=answer or "",
            accuracy=accuracy,
            correct=accuracy > 0,
            references=self._references(item, row),
            token_f1=shared_words,
            edit_similarity=alike,
            tokens=0,
            seconds=0.0,
            recorded_gt_prob=None if np.isnan(probability) else probability,
        )

    def _references(self, item: Item, row: int) -> tuple[Reference, ...]:
        """What was weighed: all labels with their log-probabilities where these were recorded, else the answers."""
        counts: dict[str, int] = {}  # annotators who gave each answer
        for text in map(normalise_answer, item.answers):
            if text:
                counts[text] = counts.get(text, 0) + 1
        labels = self.task.labels if isinstance(self.task, HasLabels) else ()
        if not labels or self.table.logprobs is None:
            return tuple(Reference(text, count, None) for text, count in counts.items())
        recorded = [normalise_answer(label) for label in self.table.cards[0].get("labels", labels)]
        values = dict(zip(recorded, self.table.logprobs[row].tolist(), strict=True))
        names = dict.fromkeys(normalise_answer(label) for label in labels)
        return tuple(Reference(name, counts.get(name, 0), values[name]) for name in names)


def _changed(path: Path, changed: Sequence[ItemId]) -> str:
    return (
        f"{path.name} was recorded with other items: {len(changed)} changed since, item {changed[0]} among them; take "
        "the items it was recorded with, or record it again"
    )
