"""Reads a score store, streamed query by query."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from leverplus.doctor.quality import GroupMeter, Sample
from leverplus.doctor.records import Record
from leverplus.errors import DataError
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART
from leverplus.types import Score


def read_store(path: Path) -> Record:
    """The record of a store; its groups are all scored sequences of a query in one context."""
    meter = GroupMeter()
    with ScoreStore(path, must_exist=True) as store:
        for context in store.contexts():
            keyed = ((key[CONTEXT_PART : CONTEXT_PART + QUERY_PART], score) for key, score in store.scan(context))
            for _, pairs in groupby(keyed, key=lambda pair: pair[0]):
                meter.add(list(samples(score for _, score in pairs)))
    if meter.counts["queries"] == 0:
        raise DataError(f"{path} holds no scores with demonstrations; `lever score RECIPE` measures some")
    return Record(source=str(path), groups=meter.finish())


def samples(scores: Iterator[Score]) -> Iterator[Sample]:
    """Scores as samples; gt_prob where its log-probabilities were measured."""
    for score in scores:
        measured = all(reference.logprob is not None for reference in score.references)
        yield Sample(score.demos, score.accuracy, score.gt_prob if measured else None, source="store")
