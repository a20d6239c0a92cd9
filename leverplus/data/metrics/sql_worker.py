"""Runs one SQL statement after another on SQLite files, in a process of its own: `python -I sql_worker.py`.

Reads a JSON line {"database": path, "sql": text} and answers {"rows": [[text, ...], ...]} or {"error": text}. A
statement can read the one file it is run on and nothing else: the file is opened read-only, all but reading is refused
while the statement is prepared, and there are limits on instructions, rows, lengths and memory. Whoever started the
process ends it where even that takes too long. Imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import sqlite3
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

MOST_INSTRUCTIONS = 100_000_000
"""Instructions of SQLite's machine that a statement may take: some seconds. Counted, so that a result never depends on
how busy the computer is."""
STEP = 10_000
MOST_ROWS = 10_000
MOST_CHARACTERS = 4_000_000
"""Characters of a whole result."""
LONGEST_VALUE = 1_000_000
"""Bytes of one value, and of one row, that SQLite may make or read."""
LONGEST_SQL = 100_000
MEMORY = 256 * 1024 * 1024
"""Bytes that SQLite may take; the whole process may take four times as much."""

READING = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)
FORBIDDEN = ("load_extension", "fts3_tokenizer")
"""Functions, in lower case, that run what a file or a number points to."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: LONGEST_SQL,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
SETTINGS = f"""
PRAGMA temp_store = MEMORY;  -- nothing is sorted in a file
PRAGMA query_only = ON;
PRAGMA trusted_schema = OFF;
PRAGMA hard_heap_limit = {MEMORY};
"""
FAILURES = (sqlite3.Error, sqlite3.Warning, OSError, MemoryError, ValueError)
_OPENING = re.compile(
    r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*(select|with|values)\b",
    re.IGNORECASE | re.DOTALL,
)


def main() -> None:
    """Answer every line of the standard input; no file can be written, and memory ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # some systems bound no memory
        resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"rows": rows_of(**request)}
        except FAILURES as error:
            answer = {"error": f"{error}"[:300]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


@lru_cache(maxsize=1)
def open_database(database: str) -> sqlite3.Connection:
    """A connection that can only read this file."""
    path = Path(database).resolve()
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\x00":
            raise ValueError(f"{database} is not a SQLite database")
    log = path.with_name(path.name + "-wal")  # rows that the file does not hold yet
    mode = "mode=ro&immutable=1"
    if log.is_file() and log.stat().st_size > 0:
        mode = "mode=ro"
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)
    connection.text_factory = lambda content: content.decode("utf-8", "replace")
    connection.executescript(SETTINGS)
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    # a damaged file is told from a wrong statement
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    with contextlib.suppress(sqlite3.Error):  # an older SQLite has no JSON
        # known from here on; to be made known later is no reading
        connection.execute("SELECT 1 FROM json_each('1'), json_tree('1')").fetchall()
    connection.set_authorizer(authorize)
    return connection


def authorize(action: int, _first: str | None, second: str | None, *_: object) -> int:
    """SQLite asks this of everything a statement would do, before it is run."""
    is_function = action == sqlite3.SQLITE_FUNCTION
    if is_function and (second or "").lower() in FORBIDDEN:
        return sqlite3.SQLITE_DENY
    if action in READING:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def rows_of(database: str, sql: str) -> list[list[str]]:
    """All rows of a statement, each value as a text that is the same for equal values."""
    connection = open_database(database)
    if not _OPENING.match(sql):
        raise ValueError("only SELECT, WITH and VALUES are run")
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += STEP
        return taken > MOST_INSTRUCTIONS

    connection.set_progress_handler(count, STEP)
    rows: list[list[str]] = []
    characters = 0
    for row in connection.execute(sql):
        rows.append(list(map(spelled, row)))
        characters += sum(map(len, rows[-1]))
        if len(rows) > MOST_ROWS or characters > MOST_CHARACTERS:
            raise ValueError(
                f"more than {MOST_ROWS:,} rows or {MOST_CHARACTERS:,} characters"
            )
    return rows


def spelled(value: Any) -> str:
    """A value as a text: 1 and 1.0 are the same, numbers are compared to twelve digits."""
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, int):
        return f"n{value}"
    if isinstance(value, float):
        return f"n{value:.12g}"
    if isinstance(value, bytes):
        return f"x{value.hex()}"
    return f"t{value}"


if __name__ == "__main__":
    main()
