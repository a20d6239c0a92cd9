"""The demonstrations of a bundle in SQLite: the one truth about what is there, what was added and what was deleted.

Every change is one transaction: a process that is killed between two writes has made the whole change or none of it.
Rows are numbered from 0 in the order they came and never used again, so that row r of the vector files is row r here;
vectors of rows that came later stand in the row itself. `changed` numbers the changes, so that another process sees
what it has missed. Pictures are kept once, by their pixels.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.types import ItemId

FORMAT = 1
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE demos (row INTEGER PRIMARY KEY, id TEXT NOT NULL, question TEXT NOT NULL, answers TEXT NOT NULL, "
    "meta TEXT NOT NULL, picture TEXT, digest BLOB NOT NULL, vectors BLOB, changed INTEGER NOT NULL, "
    "deleted INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX demos_id ON demos (id) WHERE deleted = 0",
    "CREATE INDEX demos_changed ON demos (changed)",
    "CREATE INDEX demos_picture ON demos (picture)",
    "CREATE TABLE pictures (name TEXT PRIMARY KEY, content BLOB, path TEXT)",
    "CREATE TABLE numbers (name TEXT NOT NULL, row INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, row))",
)
LONGEST = 1 << 20
"""Characters of a question, of all answers, of all metadata of one demonstration."""

LARGEST_PICTURE = 64 << 20
"""Bytes of one picture file."""

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""What SQLite says of a file whose content is not its own."""

AT_ONCE = 500
"""Names in one question to SQLite, which takes 999 at least."""


class DamagedStore(DataError):
    """The file of demonstrations was whole when it was opened, and cannot be read any more."""


@dataclass(frozen=True)
class Entry:
    """A demonstration to be kept; `picture` names one of the pictures that are kept with it."""

    id: ItemId
    question: str
    answers: tuple[str, ...]
    meta: Mapping[str, str] = field(default_factory=dict)
    picture: str | None = None

    @property
    def digest(self) -> bytes:
        """16 bytes over everything that a reader of the demonstration could see."""
        content = [self.id, self.question, list(self.answers), sorted(self.meta.items()), self.picture]
        return hashlib.sha256(json.dumps(content).encode()).digest()[:16]


@dataclass(frozen=True)
class KeptPicture:
    """The bytes of a picture file, or the path where it lies."""

    name: str
    content: bytes | None
    path: str | None = None


@dataclass(frozen=True)
class Change:
    """What happened to a row since somebody last looked."""

    row: int
    deleted: bool
    vectors: bytes | None


class DemoStore:
    """All demonstrations of one bundle; may be used by several threads, and by several processes."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise MissingFile(f"{path} is not there; is {path.parent} a bundle? `lever pack RUN --out DIR` makes one")
        self.path, self.lock = path, threading.RLock()
        writable = create or _writable(path)
        mode = "rw" if writable else "ro"
        if create:
            mode = "rwc"
        address = f"{path.resolve().as_uri()}?mode={mode}"
        try:
            self.db = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, timeout=30.0)
            self.db.execute("PRAGMA trusted_schema = OFF")
            if create:
                self.db.execute("BEGIN")
                for line in SCHEMA:
                    self.db.execute(line)
                self.db.execute("INSERT INTO facts VALUES ('format', ?)", (str(FORMAT),))
                self.db.execute("COMMIT")
            self._check_schema()
            if writable:
                self.db.execute("PRAGMA synchronous = FULL")
                self.db.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be found in the file either
        except sqlite3.Error as error:
            raise DataError(f"{path} cannot be read as the demonstrations of a bundle ({error})") from error
        self.writable = writable

    def _check_schema(self) -> None:
        """Nothing but our own tables: a file from elsewhere might bring triggers and views."""
        found = {row[0] for row in self.db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if found != set(SCHEMA):
            raise DataError(f"{self.path} is not the demonstrations of a bundle; `lever pack RUN --out DIR` makes one")
        if self.facts().get("format") != str(FORMAT):
            raise DataError(f"{self.path} was written in another format; this version reads format {FORMAT}")

    def close(self) -> None:
        with self.lock:
            self.db.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Alone with the file; one that was destroyed since it was opened is said in one sentence."""
        with self.lock:
            try:
                yield
            except (sqlite3.Error, ValueError) as error:  # ValueError: what stands there is no JSON, or no number
                if _code(error) == sqlite3.SQLITE_BUSY:
                    raise LeverError(f"another program holds {self.path} ({error}); try again in a moment") from error
                raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DamagedStore:
        return DamagedStore(
            f"{self.path} cannot be read any more ({error}); put a whole copy of the bundle in its place, or pack it "
            "again with `lever pack RUN --out DIR`"
        )

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction; whatever fails inside leaves everything as it was."""
        if not self.writable:
            raise LeverError(f"{self.path} can only be read; make the bundle writable to add or delete demonstrations")
        with self.lock:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    self.db.execute("ROLLBACK")
                    raise
                self.db.execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):  # a file that cannot be read cannot be rolled back either
                    if self.db.in_transaction:
                        self.db.execute("ROLLBACK")
                if _code(error) in DAMAGED:
                    raise self._damaged(error) from error
                raise LeverError(f"cannot write {self.path} ({error}); nothing was changed") from error

    def facts(self) -> dict[str, str]:
        with self._reading():
            return dict(self.db.execute("SELECT name, value FROM facts"))

    def set_facts(self, values: Mapping[str, str]) -> None:
        self.db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(values.items()))

    @property
    def rows(self) -> int:
        """How many rows there are, deleted ones among them."""
        with self._reading():
            return int(self.db.execute("SELECT coalesce(max(row) + 1, 0) FROM demos").fetchone()[0])

    @property
    def count(self) -> int:
        """How many demonstrations there are."""
        return int(self.facts().get("count", "0"))

    @property
    def fingerprint(self) -> str:
        """Names the set of demonstrations, in whatever order they came: the sum of their digests modulo 2^128."""
        return self.facts().get("fingerprint", "0" * 32)

    def add(
        self, entries: Sequence[Entry], pictures: Iterable[KeptPicture] = (), vectors: Sequence[bytes] | None = None
    ) -> list[int]:
        """Keep demonstrations and return their rows; inside a transaction of the caller's (`change`)."""
        first, change = self.rows, self.last_change() + 1
        taken = self.rows_of([entry.id for entry in entries])
        names = [entry.id for entry in entries]
        twice = (
            next((name for name in names if name in taken or names.count(name) > 1), None)
            if (taken or len(set(names)) < len(names))
            else None
        )
        if twice is not None:
            raise LeverError(f"there is a demonstration {twice} already; delete it first, or give another id")
        for entry in entries:
            _check_size(entry)
        for picture in pictures:
            if picture.content is not None and len(picture.content) > LARGEST_PICTURE:
                raise LeverError(f"a picture has {len(picture.content):,} bytes; at most {LARGEST_PICTURE:,} are kept")
            self.db.execute(
                "INSERT OR IGNORE INTO pictures VALUES (?, ?, ?)", (picture.name, picture.content, picture.path)
            )
        table = [
            (
                first + place, entry.id, entry.question, json.dumps(entry.answers), json.dumps(dict(entry.meta)),
                entry.picture, entry.digest, None if vectors is None else vectors[place], change, 0,
            )
            for place, entry in enumerate(entries)
        ]  # fmt: skip
        self.db.executemany("INSERT INTO demos VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", table)
        self._count(len(entries), sum(int.from_bytes(entry.digest, "big") for entry in entries), change)
        return list(range(first, first + len(entries)))

    def delete(self, ids: Sequence[ItemId]) -> list[int]:
        """Forget demonstrations, all or none, and return their rows; inside a transaction of the caller's."""
        found, change = self.rows_of(ids), self.last_change() + 1
        if missing := [name for name in ids if name not in found]:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise LeverError(f"there is no demonstration {missing[0]}{more}; `lever demos list` shows those there are")
        gone = 0
        for row in found.values():
            digest, picture = self.db.execute("SELECT digest, picture FROM demos WHERE row = ?", (row,)).fetchone()
            gone += int.from_bytes(digest, "big")
            self.db.execute(
                "UPDATE demos SET question = '', answers = '[]', meta = '{}', picture = NULL, vectors = NULL, "
                "changed = ?, deleted = 1 WHERE row = ?",
                (change, row),
            )
            self.db.execute("DELETE FROM numbers WHERE row = ?", (row,))
            if picture and not self.db.execute("SELECT 1 FROM demos WHERE picture = ?", (picture,)).fetchone():
                self.db.execute("DELETE FROM pictures WHERE name = ?", (picture,))
        self._count(-len(found), -gone, change)
        return list(found.values())

    def _count(self, more: int, digests: int, change: int) -> None:
        total = (int(self.fingerprint, 16) + digests) % (1 << 128)
        facts = {"count": str(self.count + more), "fingerprint": f"{total:032x}", "change": str(change)}
        self.set_facts(facts)

    def last_change(self) -> int:
        return int(self.facts().get("change", "0"))

    def version(self) -> int:
        """A number that changes when another process has changed the file."""
        with self._reading():
            return int(self.db.execute("PRAGMA data_version").fetchone()[0])

    def changes_since(self, change: int) -> list[Change]:
        """Rows that were added or deleted after a change, in order of their rows."""
        with self._reading():
            found = self.db.execute(
                "SELECT row, deleted, vectors FROM demos WHERE changed > ? ORDER BY row", (change,)
            ).fetchall()
        return [Change(int(row), bool(deleted), vectors) for row, deleted, vectors in found]

    def deleted_rows(self) -> list[int]:
        with self._reading():
            return [int(row) for (row,) in self.db.execute("SELECT row FROM demos WHERE deleted = 1")]

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        """The rows of those ids that are there, in the order they were asked for."""
        wanted = list(dict.fromkeys(ids))
        found: dict[str, int] = {}
        with self._reading():
            for start in range(0, len(wanted), AT_ONCE):
                part = wanted[start : start + AT_ONCE]
                marks = ",".join("?" * len(part))
                found |= dict(self.db.execute(f"SELECT id, row FROM demos WHERE deleted = 0 AND id IN ({marks})", part))
        return {name: int(found[name]) for name in wanted if name in found}

    def entries(self, rows: Sequence[int]) -> dict[int, Entry]:
        """The demonstrations of some rows; deleted ones are left out."""
        found: dict[int, Entry] = {}
        with self._reading():
            for start in range(0, len(rows), AT_ONCE):
                part = [int(row) for row in rows[start : start + AT_ONCE]]
                marks = ",".join("?" * len(part))
                asked = f"SELECT row, {COLUMNS} FROM demos WHERE deleted = 0 AND row IN ({marks})"
                found |= {int(row): _entry(*rest) for row, *rest in self.db.execute(asked, part)}
        return found

    def all(self) -> Iterator[tuple[int, Entry]]:
        """Every demonstration with its row, read as they are asked for."""
        after = -1
        while True:
            with self._reading():
                part = self.db.execute(
                    f"SELECT row, {COLUMNS} FROM demos WHERE deleted = 0 AND row > ? ORDER BY row LIMIT {AT_ONCE}",
                    (after,),
                ).fetchall()
            if not part:
                return
            yield from ((int(row), _entry(*rest)) for row, *rest in part)
            after = int(part[-1][0])

    def picture(self, name: str) -> KeptPicture:
        with self._reading():
            found = self.db.execute("SELECT content, path FROM pictures WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise DataError(f"{self.path} has no picture {name}; its demonstration may just have been deleted")
        return KeptPicture(name, found[0], found[1])

    def numbers(self, name: str) -> dict[int, float]:
        """Numbers of demonstrations by row, such as measured effects."""
        with self._reading():
            return {int(row): float(value) for row, value in self.db.execute(NUMBERS, (name,))}

    def set_numbers(self, name: str, values: Mapping[int, float]) -> None:
        """Keep a number for each of some rows; inside a transaction of the caller's."""
        self.db.executemany(
            "INSERT OR REPLACE INTO numbers VALUES (?, ?, ?)", [(name, row, value) for row, value in values.items()]
        )

    def number_names(self) -> list[str]:
        with self._reading():
            return [name for (name,) in self.db.execute("SELECT DISTINCT name FROM numbers ORDER BY name")]


COLUMNS = "id, question, answers, meta, picture"
NUMBERS = "SELECT row, value FROM numbers WHERE name = ?"


def _code(error: Exception) -> int:
    """SQLite's number of an error, without what tells its kinds apart; 0 where it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _entry(name: str, question: str, answers: str, meta: str, picture: str | None) -> Entry:
    return Entry(ItemId(name), question, tuple(json.loads(answers)), json.loads(meta), picture)


def _check_size(entry: Entry) -> None:
    parts: dict[str, Any] = {"question": entry.question, "answers": "".join(entry.answers), "id": entry.id}
    parts["metadata"] = json.dumps(dict(entry.meta))
    for what, text in parts.items():
        if len(text) > LONGEST:
            raise LeverError(
                f"the {what} of demonstration {entry.id[:80]} has {len(text):,} characters; at most {LONGEST:,}"
            )


def _writable(path: Path) -> bool:
    import os

    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
