"""The Parquet file of a recorded table: its columns, the card that travels with it, and how it is written row by row.

Columns: `query` string, `demos` list of strings in prompt order, `accuracy` float, `gt_prob` float or null, `answer`
string or null; optional `label_logprobs`, one number a label of a classification task in the order of the card's
`labels`. Ids, answers and accuracies are dictionary-encoded, so that each row takes a few bits for them; probabilities
are halves (float16) unless they are asked for in full.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from leverplus.errors import DataError
from leverplus.store.keys import item_digest
from leverplus.tasks.base import Task
from leverplus.types import Demos, Item, ItemId

CARD = b"leverplus.card"  # key of the card in the metadata of the Parquet file
FORMAT = 1
ROWS_AT_ONCE = 65536  # rows that are held in memory before they are written
ITEM_DIGEST = 4
"""Bytes that prove one item unchanged: one changed item in four billion would be missed."""

REQUIRED = ("query", "demos", "accuracy")


class TableRow(NamedTuple):
    """One recorded prompt."""

    query: ItemId
    demos: Demos
    accuracy: float
    gt_prob: float | None
    answer: str | None
    label_logprobs: tuple[float, ...] | None = None


def item_proof(item: Item, image_digest: str) -> bytes:
    """A short digest of an item: its id, question, all answers and picture."""
    whole = item_digest(item, image_digest, role="query")
    return blake2b(whole, digest_size=ITEM_DIGEST).digest()


def item_proofs(task: Task, ids: Iterable[ItemId]) -> str:
    """The digests of items in the order of their ids, as text."""
    items = [task.item(item_id) for item_id in sorted(set(ids))]
    return base64.b64encode(b"".join(item_proof(item, task.image_digest(item)) for item in items)).decode()


def changed_items(card: Mapping[str, Any], task: Task, ids: Iterable[ItemId]) -> list[ItemId]:
    """Which items of a table are not those it was recorded with; nothing where the card does not say."""
    known = base64.b64decode(card.get("item_proofs", ""))
    ordered = sorted(set(ids))
    if not known:
        return []
    if len(known) != ITEM_DIGEST * len(ordered):
        raise DataError(
            f"the table's card speaks of {len(known) // ITEM_DIGEST} items and its rows of {len(ordered)}; the file "
            "was changed after it was recorded: record it again"
        )
    found = []
    for place, item_id in enumerate(ordered):
        item = task.item(item_id)
        proof = known[ITEM_DIGEST * place : ITEM_DIGEST * (place + 1)]
        if item_proof(item, task.image_digest(item)) != proof:
            found.append(item_id)
    return found


class TableWriter:
    """Writes a table row by row; it is there whole when the `with` block ends well, and not at all otherwise."""

    def __init__(self, path: Path, *, labels: tuple[str, ...] = (), full: bool = False) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.labels = path, labels
        self.part = path.with_name(f".{path.name}.{os.getpid()}")
        number = pa.float64() if full else pa.float16()
        fields = [
            ("query", pa.string()),
            ("demos", pa.list_(pa.string())),
            ("accuracy", pa.float64()),
            ("gt_prob", number),
            ("answer", pa.string()),
        ]
        if labels:
            fields.append(("label_logprobs", pa.list_(number)))
        self.schema = pa.schema(fields)
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = ["query", "demos.list.element", "accuracy", "answer"]
        self.writer = pq.ParquetWriter(
            # the slowest of zstd's usual levels: a table is written once and shipped
            self.part,
            self.schema,
            compression="zstd",
            compression_level=19,
            use_dictionary=encoded,
        )
        self.waiting: list[TableRow] = []
        self.rows = 0
        self.items: set[ItemId] = set()
        self.queries: set[ItemId] = set()

    def add(self, row: TableRow) -> None:
        self.waiting.append(row)
        self.queries.add(row.query)
        self.items.update((row.query, *row.demos))
        if len(self.waiting) >= ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        # rows to columns; without labels the last field of a row, label_logprobs, is left out
        columns = [list(column) for column in zip(*self.waiting, strict=True)][: len(self.schema.names)]
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, self.schema, strict=True)]
        self.writer.write_table(pa.table(arrays, schema=self.schema))
        self.rows += len(self.waiting)
        self.waiting = []

    def finish(self, task: Task, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write the last rows and the card; returns the card."""
        if self.waiting:
            self._flush()
        card = {
            "format": FORMAT,
            **facts,
            "labels": list(self.labels),
            "metric": task.metric,
            "rows": self.rows,
            "queries": len(self.queries),
            "items": len(self.items),
            "item_proofs": item_proofs(task, self.items),
        }
        self.writer.add_key_value_metadata({CARD: json.dumps(card, sort_keys=True).encode()})
        self.writer.close()
        self.part.replace(self.path)
        return card

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.writer.close()
        self.part.unlink(missing_ok=True)
