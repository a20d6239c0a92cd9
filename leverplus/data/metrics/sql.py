"""SQL as text, equal up to the case of keywords, white space, quotes and a final semicolon; and SQL judged by its rows.

A statement is run read-only on a SQLite file by a process of its own (`sql_worker.py`), with limits on all it may take.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from leverplus.data.metrics import sql_worker
from leverplus.data.metrics.base import (
    ConfiguredMetric,
    Example,
    best_match,
    require_references,
)
from leverplus.data.metrics.text import same_text
from leverplus.errors import DataError

SECONDS = 20.0
"""A statement that takes longer is ended with its process; the count of instructions ends all usual ones earlier."""
ENDINGS = ("", ".sqlite", ".db", ".sqlite3")

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[A-Za-z_][^\]\[]*\])
    |(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)
    |(?P<word>\w+)
    |(?P<mark><=>|->>|<=|>=|<>|!=|==|\|\||<<|>>|->|::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = """
    abs action add after all alter always analyze and any array as asc attach autoincrement avg before begin between
    bigint boolean both by cascade case cast ceil char check coalesce collate column commit concat conflict constraint
    count create cross current current_date current_time current_timestamp database date datetime day decimal default
    deferrable deferred delete dense_rank desc detach distinct do double drop each else end escape except exclude
    exclusive exists explain extract fail false fetch filter first float floor following for foreign from full generated
    glob group group_concat groups having hour if ifnull ignore ilike immediate in index indexed initially inner insert
    instead instr int integer intersect interval into is isnull join julianday key lag last lateral lead leading left
    length like limit lower ltrim match materialized max min minute month natural no not nothing notnull null nullif
    nulls number numeric nvl of offset on only or order others outer over partition percent plan position power
    pragma preceding primary printf qualify query raise range rank real recursive references regexp reindex release
    rename replace restrict returning right rlike rollback round row row_number rows rtrim savepoint second select
    separator set similar smallint some sqrt strftime string substr substring sum table temp temporary text then ties
    time timestamp to top total trailing transaction trigger trim true truncate typeof unbounded union unique
    update upper using vacuum values varchar view virtual week when where window with within without year
    """
_KEYWORDS = frozenset(_WORDS.split())
"""Words and functions of SQL, whose case does not count; a name of a table or a column keeps its case."""


def sql(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer is a reference up to the case of keywords, white space, quotes and a final semicolon.

    >>> sql("select Name from city where State = 'Ohio';", ['SELECT Name FROM city WHERE State="Ohio"'])
    1.0
    >>> sql("SELECT a FROM t WHERE b > 1", ["SELECT a FROM t WHERE b < 1"])
    0.0
    """
    return best_match(same_sql, answer, references, "sql")


def same_sql(first: str, second: str) -> bool:
    """Whether two statements are the same text of SQL."""
    return same_text(first, second) or sql_key(first) == sql_key(second)


@lru_cache(maxsize=1 << 14)
def sql_tokens(text: str) -> tuple[str, ...]:
    """The words, quoted texts, numbers and marks of a statement; keywords in lower case, comments left out."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        token = match.group()
        if kind == "word" and token.lower() in _KEYWORDS:
            tokens.append(token.lower())
        elif kind == "quoted":
            mark = token[-1]
            inner = token[1:-1].replace(mark * 2, mark)
            tokens.append(f"'{inner}'")
        elif kind != "space":
            tokens.append(token)
    while tokens and tokens[-1] == ";":
        tokens.pop()
    return tuple(tokens)


def sql_key(text: str) -> str:
    """One spelling of a statement; a text without any word of SQL without the spaces around it."""
    return "\x00".join(sql_tokens(text)) or text.strip()


def is_ordered(text: str) -> bool:
    """Whether the rows of a statement come in an order: it has an ORDER BY outside all brackets.

    >>> is_ordered("SELECT a FROM t ORDER BY a"), is_ordered("SELECT a FROM (SELECT a FROM t ORDER BY a)")
    (True, False)
    """
    depth = 0
    before = ""
    for token in sql_tokens(text):
        if depth == 0 and (before, token) == ("order", "by"):
            return True
        depth += (token == "(") - (token == ")")
        before = token
    return False


class SqlExecution(ConfiguredMetric):
    """1.0 when the answer gives the rows of a reference on the example's database.

    The order of rows counts where the reference has an ORDER BY. Two empty results count only where the statements are
    equal as text (metric `sql`): an empty result is what most wrong statements give.
    """

    def __call__(self, answer: str, example: Sequence[str]) -> float:
        require_references(example, "sql_execution")
        database = self._database(example)
        given = run_sql(database, answer)
        if given.error:
            return 0.0
        for reference in dict.fromkeys(example):
            wanted = run_sql(database, reference)
            if wanted.error:
                continue
            if wanted.is_empty and given.is_empty and not same_sql(answer, reference):
                continue
            if given.unordered != wanted.unordered:
                continue
            if given.digest == wanted.digest or not is_ordered(reference):
                return 1.0
        return 0.0

    def agree(self, first: str, second: str, example: Example) -> bool | None:
        """Statements agree where they give the same rows, in any order."""
        if same_sql(first, second):
            return True
        database = self._database(example)
        one = run_sql(database, first)
        other = run_sql(database, second)
        runs = not (one.error or other.error or one.is_empty)
        return runs and one.unordered == other.unordered

    def problem(self, example: Example) -> str:
        """The error of references that cannot be run."""
        database = self._database(example)
        fault = ""
        for reference in example:
            fault = run_sql(database, reference).error
            if not fault:
                return ""
        return f"the reference does not run: {fault}"

    def _database(self, example: Sequence[str]) -> Path:
        named = ""
        if isinstance(example, Example):
            named = example.meta.get("database", "")
        return find_database(named, self.options.database, self.options.folder)


@lru_cache(maxsize=1 << 12)
def find_database(named: str, database: str, folder: str) -> Path:
    """The file to run on: what the example names, in the folder that the task names, else the task's file."""
    given = Path(database).expanduser()
    if named:
        base = Path(folder)
        if database and given.is_dir():
            base = given
        for ending in ENDINGS:
            for path in (base / f"{named}{ending}", base / named / f"{named}{ending}"):
                if path.is_file():
                    return path
        raise DataError(
            f"meta.database = {named!r} is no file in {base}; set task.database to the folder that holds it"
        )
    if database and given.is_file():
        return given
    raise DataError(
        f"sql_execution needs a SQLite file, and task.database = {database!r} is none: --set task.database=FILE, or "
        "meta.database in every record"
    )


@dataclass(frozen=True)
class SqlResult:
    """What the rows of a statement are told apart by, or why there are none."""

    rows: int = 0
    is_empty: bool = True
    """Whether there is no row, or none with a value: what an aggregate over nothing gives."""
    digest: str = ""
    """Of the rows in their order."""
    unordered: str = ""
    """Of the rows in any order."""
    error: str = ""

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> SqlResult:
        """The result that has these rows, each value as the worker spells it."""
        lines = list(map(json.dumps, rows))
        values: set[str] = set()
        values.update(*rows)
        is_empty = values <= {"null"}
        return cls(len(rows), is_empty, _digest(lines), _digest(sorted(lines)))


def _digest(lines: Sequence[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()


def run_sql(database: Path, sql: str) -> SqlResult:
    """The rows of a statement on a SQLite file, which is only read; an error where it cannot be run.

    >>> import sqlite3, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cities.sqlite"
    >>> with sqlite3.connect(path) as connection:
    ...     _ = connection.execute("CREATE TABLE city AS SELECT 'Bonn' AS name, 331 AS thousands")
    >>> run_sql(path, "SELECT thousands FROM city") == run_sql(path, "SELECT 331.0")
    True
    >>> run_sql(path, "DROP TABLE city").error
    'only SELECT, WITH and VALUES are run'
    """
    stat = database.stat()
    return _result(str(database.resolve()), sql, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1 << 14)
def _result(database: str, sql: str, state: tuple[int, int]) -> SqlResult:  # noqa: ARG001 a changed file is run anew
    if len(sql) > sql_worker.LONGEST_SQL:
        return SqlResult(error=f"longer than {sql_worker.LONGEST_SQL:,} characters")
    reply = _WORKER.ask(json.dumps({"database": database, "sql": sql}))
    if "error" in reply:
        return SqlResult(error=reply["error"])
    return SqlResult.of(reply["rows"])


class _Worker:
    """The process that runs statements: started when first needed, ended and started anew where one does not end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, request: str) -> dict[str, Any]:
        """The reply to one statement; one at a time."""
        with self._lock:
            process = self._running()
            stdin = process.stdin
            stdout = process.stdout
            assert stdin is not None
            assert stdout is not None
            line = b""
            limit = threading.Timer(SECONDS, process.kill)
            limit.start()
            with suppress(OSError):
                stdin.write(request.encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            limit.cancel()
            if not line.endswith(b"\n"):
                self.end()
                return {"error": f"took more than {SECONDS:g} seconds, or all memory"}
            reply: dict[str, Any] = json.loads(line)
            return reply

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        # a fork must not read what its parent asked for
        if process is None or process.poll() is not None or self._owner != os.getpid():
            process = subprocess.Popen(
                [sys.executable, "-I", sql_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._process, self._owner = process, os.getpid()
        return process

    def end(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


_WORKER = _Worker()
atexit.register(_WORKER.end)
