"""Reads a score store, streamed query by query: 1,000,000 records take about 30 s of one core and 100 MB."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from leverplus.doctor.quality import GroupMeter, Watch, sample_of
from leverplus.doctor.records import Record
from leverplus.errors import DataError
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART
from leverplus.store.records import unseal

_QUERY = slice(CONTEXT_PART, CONTEXT_PART + QUERY_PART)


def read_store(path: Path, watch: Watch | None = None) -> Record:
    """The record of a store; its groups are all scored sequences of a query in one context."""
    meter = GroupMeter(watch)
    with ScoreStore(path, must_exist=True) as store:
        for context in store.contexts():
            for _, rows in groupby(store.rows(context), key=lambda row: row.key[_QUERY]):
                scores = [unseal(context.digest, row) for row in rows]
                meter.add([sample_of(score, "store") for score in scores], query=scores[0].query)
    if meter.counts["queries"] == 0:
        raise DataError(f"{path} holds no scores with demonstrations; `lever score RUN` measures some")
    return Record(source=str(path), groups=meter.finish())
