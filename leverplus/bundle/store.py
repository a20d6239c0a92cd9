"""The demonstrations of a bundle in SQLite: the one truth about what is there, what was added and what was deleted.

Every change is one transaction: a process that is killed between two writes has made the whole change or none of it.
Rows are numbered from 0 in the order they came and never used again; a deleted one keeps its number, and its vectors,
which arms were fitted to, and nothing else.
`changed` numbers the changes, so that another process sees what it has missed. Beside every record, vector and picture
(kept once, by its pixels) stands its digest, which is compared whenever it is read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, LeverError, MissingFile

SCHEMA = (
    "CREATE TABLE demos (row INTEGER PRIMARY KEY, id TEXT UNIQUE, picture TEXT, changed INTEGER NOT NULL, "
    "digest BLOB, record TEXT, vectors_digest BLOB, vectors BLOB)",
    "CREATE INDEX demos_changed ON demos (changed)",
    "CREATE INDEX demos_picture ON demos (picture)",
    "CREATE INDEX demos_digest ON demos (digest)",
    "CREATE TABLE pictures (name TEXT PRIMARY KEY, digest BLOB NOT NULL, content BLOB NOT NULL)",
)
LONGEST = 1 << 20
"""Bytes of one record."""

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""What SQLite says of a file whose content is not its own."""

RECORD = TypeAdapter(Item)


Kept = tuple[Item, bytes | None]
"""A demonstration as it is kept, with the file of its picture, whose name is `Item.image`."""


class DamagedStore(DataError):
    """The file of demonstrations holds something else than was written."""


class Changes(NamedTuple):
    """What happened since somebody last looked: vectors of new rows (N, D), and rows that were deleted."""

    fresh: NDArray[Any]
    closed: Sequence[int]
    last: int


def digest_of(content: bytes) -> bytes:
    """16 bytes that follow from a content."""
    return hashlib.sha256(content).digest()[:16]


def record_of(item: Item) -> bytes:
    """An example as it is kept."""
    return RECORD.dump_json(item, exclude_defaults=True)


def _verified(content: bytes, digest: bytes) -> bytes:
    if digest_of(content) != digest:
        raise ValueError("a digest does not fit its content")
    return content


class DemoStore:
    """All demonstrations of one bundle; may be used by several threads, and by several processes."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise MissingFile(
                f"{path} is not there; is {path.parent} a bundle? `lever pack RUN --out DIR` makes one"
            )
        self.path, self.lock = path, threading.RLock()
        address = f"{path.resolve().as_uri()}?mode={'rwc' if create else 'rw'}"
        with self._reading():
            self.db = sqlite3.connect(
                address,
                uri=True,
                check_same_thread=False,
                isolation_level=None,
                timeout=30.0,
            )
            self.db.execute("PRAGMA trusted_schema = OFF")
            # what was deleted is not to be found in the file either
            self.db.execute("PRAGMA secure_delete = ON")
            if create:
                for line in SCHEMA:
                    self.db.execute(line)
            found = self.db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")
            # a file from elsewhere might bring triggers and views
            if {row[0] for row in found} != set(SCHEMA):
                raise DataError(
                    f"{path} is not the demonstrations of a bundle as this version writes them; "
                    "`lever pack RUN --out DIR` makes one"
                )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Alone with the file; one that is not as it was written is said in one sentence."""
        with self.lock:
            try:
                yield
            except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
                if code & 0xFF in DAMAGED or code == sqlite3.SQLITE_IOERR_SHORT_READ:
                    raise DamagedStore(
                        f"{self.path} is damaged ({error}); put a whole copy of the bundle in its place, or pack it "
                        "again with `lever pack RUN --out DIR`"
                    ) from error
                raise LeverError(
                    f"{self.path} cannot be used now ({error}), and nothing was changed; see that it can be written, "
                    "or try again in a moment"
                ) from error

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction; whatever fails inside leaves everything as it was."""
        with self._reading():
            self.db.execute("BEGIN IMMEDIATE")
            with self.db:
                yield

    def fingerprint(self) -> str:
        """Names the set of demonstrations, in whatever order they came."""
        with self._reading():
            (held,) = self.db.execute(
                "SELECT group_concat(own, '') FROM (SELECT hex(digest) AS own FROM demos WHERE digest NOT NULL ORDER BY digest)"
            ).fetchone()
        return digest_of(str(held).encode()).hex()

    def _last(self) -> tuple[int, int]:
        """The last row, and the number of the last change."""
        last: tuple[int, int] = self.db.execute(
            "SELECT coalesce(max(row), -1), coalesce(max(changed), 0) FROM demos"
        ).fetchone()
        return last

    def add(self, demos: Sequence[Kept], vectors: NDArray[Any]) -> None:
        """Keep demonstrations with their vectors (N, D); inside a transaction of the caller's (`change`)."""
        row, change = self._last()
        for (item, picture), vector in zip(demos, vectors, strict=True):
            record = record_of(item)
            block = vector.tobytes()
            if len(record) > LONGEST:
                raise LeverError(
                    f"demonstration {item.id[:80]} has {len(record):,} characters; at most {LONGEST:,} are kept"
                )
            row += 1
            self.db.execute(
                "INSERT INTO demos VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (row, item.id, item.image, change + 1, digest_of(record), record.decode(), digest_of(block), block),
            )  # fmt: skip
            if picture is not None:
                self.db.execute(
                    "INSERT OR IGNORE INTO pictures VALUES (?, ?, ?)",
                    (item.image, digest_of(picture), picture),
                )

    def delete(self, ids: Sequence[ItemId]) -> None:
        """Forget demonstrations, all or none; inside a transaction of the caller's (`change`)."""
        found = self.rows_of(ids)
        if missing := [name for name in ids if name not in found]:
            more = ""
            if len(missing) > 1:
                more = f" (and {len(missing) - 1} more)"
            raise LeverError(
                f"there is no demonstration {missing[0]}{more}; `lever demos list` shows those there are"
            )
        change = self._last()[1] + 1
        self.db.executemany(
            "UPDATE demos SET id = NULL, picture = NULL, digest = NULL, record = NULL, changed = ? WHERE row = ?",
            [(change, row) for row in found.values()],
        )
        self.db.execute(
            "DELETE FROM pictures WHERE name NOT IN (SELECT picture FROM demos WHERE picture NOT NULL)"
        )

    def version(self) -> int:
        """A number that changes when another process has changed the file."""
        with self._reading():
            return int(self.db.execute("PRAGMA data_version").fetchone()[0])

    def changes(self, since: int, known: int, width: int, kind: str) -> Changes:
        """What came after a change, for somebody who knows so many rows."""
        with self._reading(), self.db:
            self.db.execute("BEGIN")
            (count,) = self.db.execute(
                "SELECT count(*) FROM demos WHERE row >= ?", (known,)
            ).fetchone()
            fresh = np.zeros((count, width), kind)
            closed = []
            for row, name, digest, vectors in self.db.execute(
                "SELECT row, id, vectors_digest, vectors FROM demos WHERE changed > ?",
                (since,),
            ):
                if name is None:
                    closed.append(row)
                if row >= known:
                    fresh[row - known] = np.frombuffer(_verified(vectors, digest), kind)
            return Changes(fresh, closed, self._last()[1])

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        """The rows of those ids that are there."""
        with self._reading():
            found = self.db.execute(
                "SELECT id, row FROM demos WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(ids)),),
            )
            return dict(found)

    def items(self, rows: Sequence[int]) -> dict[int, Item]:
        """The demonstrations of some rows; deleted ones are left out."""
        found = {}
        with self._reading():
            for row, record, digest in self.db.execute(
                "SELECT row, record, digest FROM demos WHERE id NOT NULL AND row IN (SELECT value FROM json_each(?))",
                (json.dumps(rows),),
            ):
                content = _verified(record.encode(), digest)
                found[row] = RECORD.validate_json(content, strict=True)
        return found

    def picture(self, name: str) -> bytes | None:
        with self._reading():
            found = self.db.execute(
                "SELECT content, digest FROM pictures WHERE name = ?", (name,)
            ).fetchone()
            if found is None:
                return None
            return _verified(*found)
