"""Reads a score store, streamed query by query: 1,000,000 records take about 30 s of one core and 100 MB."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from leverplus.doctor.quality import GroupMeter, Watch, sample_of
from leverplus.doctor.records import Record
from leverplus.errors import DataError
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART
from leverplus.store.records import Row, decode
from leverplus.types import Score

_QUERY = slice(CONTEXT_PART, CONTEXT_PART + QUERY_PART)


def read_store(path: Path, watch: Watch | None = None) -> Record:
    """The record of a store; its groups are all scored sequences of a query in one context."""
    meter = GroupMeter(watch)
    with ScoreStore(path, must_exist=True) as store:
        for context in store.contexts():
            for _, rows in groupby(store.rows(context), key=lambda row: row.key[_QUERY]):
                scores = list(decoded(rows))
                meter.add([sample_of(score, "store") for score in scores], query=scores[0].query)
    if meter.counts["queries"] == 0:
        raise DataError(f"{path} holds no scores with demonstrations; `lever score RUN` measures some")
    return Record(source=str(path), groups=meter.finish())


def decoded(rows: Iterable[Row]) -> Iterator[Score]:
    """Stored rows as scores; checksums are left to `lever store verify`."""
    for row in rows:
        try:
            yield decode(row)
        except (ValueError, TypeError, struct.error) as error:
            raise DataError(f"record {row.key.hex()} cannot be read ({error}); run `lever store verify`") from error
