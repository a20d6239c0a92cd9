"""Recording: what a scorer knows of some queries as a table that replays it, asking for what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.backends.table.format import TableRow, TableWriter
from leverplus.scoring.scorer import TRAINING, Scorer
from leverplus.types import Pool, Score

QUERIES_AT_ONCE = 64


def record_table(
    scorer: Scorer, pools: Sequence[Pool], path: Path, *, facts: Mapping[str, Any], full: bool = False
) -> dict[str, Any]:
    """Write the one-shot tables of some pools, in pool order, and every longer prompt the store holds of their queries.

    What is missing is asked and stored as it comes, so that a stopped recording goes on where it was. Returns the card.
    """
    with TableWriter(path, labels=scorer.labels, full=full) as writer:
        for start in range(0, len(pools), QUERIES_AT_ONCE):
            for score in _scores(scorer, pools[start : start + QUERIES_AT_ONCE]):
                writer.add(_row(score, bool(scorer.labels)))
        context = scorer.context.values
        known = {
            "task": context["task"],
            "task_version": context["task_version"],
            "postprocess": context["postprocess"],
        }
        backend = context["backend"]
        return writer.finish(scorer.task, {"model": backend.get("model", ""), "backend": backend, **known, **facts})


def _scores(scorer: Scorer, pools: Sequence[Pool]) -> Iterator[Score]:
    lists = [[(), *((candidate,) for candidate in pool.candidates)] for pool in pools]
    prompts = [(pool.query, demos) for pool, own in zip(pools, lists, strict=True) for demos in own]
    scores = iter(scorer.score(prompts, TRAINING, "recording"))
    for pool, own in zip(pools, lists, strict=True):
        yield from (next(scores) for _ in own)
        written = set(own)
        digest = scorer.digest(pool.query, "query")
        for _, score in scorer.store.scan(scorer.context, digest):
            if score.query == pool.query and score.demos not in written:
                yield score


def _row(score: Score, labels: bool) -> TableRow:
    weighed = None
    if labels and score.choices:
        weighed = tuple(score.choices.values())
    return TableRow(
        score.query,
        score.demos,
        score.accuracy,
        score.gt_prob if score.weighed else None,
        score.answer or None,
        weighed,
    )
