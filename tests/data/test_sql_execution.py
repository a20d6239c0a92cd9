"""SQL judged by its rows: what counts as the same, and what no statement of a model can do."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leverplus.arms.voting import agreeing, most_common
from leverplus.data.metrics import metric_named
from leverplus.data.metrics import sql as sql_module
from leverplus.data.metrics.base import Example, MetricOptions
from leverplus.data.metrics.sql import SECONDS, SqlResult, run_sql
from leverplus.data.tasks.answers import AnswerRules, without_unreachable
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError

CITIES = (
    ("Bonn", "NRW", 331),
    ("Köln", "NRW", 1086),
    ("Ulm", "BW", 127),
    ("Trier", None, 112),
)


def build_database(path: Path) -> Path:
    """Four cities, a table with a long text, and a table that is larger than it looks."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE city (name TEXT, state TEXT, thousands INTEGER)"
        )
        connection.executemany("INSERT INTO city VALUES (?, ?, ?)", CITIES)
        connection.execute("CREATE TABLE note (text TEXT)")
        connection.execute("INSERT INTO note VALUES (?)", ("a" * 10_000,))
        connection.execute("CREATE TABLE number (n INTEGER)")
        connection.executemany(
            "INSERT INTO number VALUES (?)", [(n,) for n in range(3000)]
        )
    connection.close()
    return path


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_database(tmp_path_factory.mktemp("database") / "cities.sqlite")


def score(database: Path, answer: str, *references: str) -> float:
    return metric_named("sql_execution", MetricOptions(database=str(database)))(
        answer, Example(references)
    )


ALL = "SELECT name FROM city"
IN_ORDER = "SELECT name FROM city ORDER BY thousands"


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("select c.name from city as c;", ALL, True),
        ("SELECT name AS x FROM city ORDER BY name DESC", ALL, True),
        ("SELECT name FROM city LIMIT 3", ALL, False),
        ("SELECT name FROM city UNION ALL SELECT 'Bonn'", ALL, False),
        ("SELECT DISTINCT state FROM city", "SELECT state FROM city", False),
        (ALL, IN_ORDER, False),
        ("SELECT name FROM city ORDER BY thousands * 2", IN_ORDER, True),
        ("SELECT name FROM (SELECT * FROM city ORDER BY thousands)", ALL, True),
        ("SELECT sum(thousands) FROM city", "SELECT total(thousands) FROM city", True),
        ("SELECT 1656.0000000000002", "SELECT sum(thousands) FROM city", True),
        (
            "SELECT name FROM city WHERE state = 'Hessen'",
            "SELECT name FROM city WHERE thousands > 9999",
            False,
        ),
        (
            "select name from city where thousands>9999;",
            "SELECT name FROM city WHERE thousands > 9999",
            True,
        ),
        (
            "SELECT max(name) FROM city WHERE 0",
            "SELECT max(name) FROM city WHERE thousands > 9999",
            False,
        ),
        ("SELECT name, state FROM city", "SELECT state, name FROM city", False),
        ("SELEC name FROM city", ALL, False),
        ("SELECT nothing FROM city", ALL, False),
        ("", ALL, False),
    ],
)
def test_the_same_rows_are_right_and_order_counts_where_the_reference_orders(
    database: Path, answer: str, reference: str, right: bool
) -> None:
    assert score(database, answer, reference) == float(right)


def test_any_reference_may_be_reached_and_one_that_does_not_run_is_passed_over(
    database: Path,
) -> None:
    assert (
        score(
            database, "SELECT 1", "SELECT nothing FROM city", "SELECT 2", "SELECT 1.0"
        )
        == 1.0
    )


def test_records_name_their_database_in_the_folder_of_the_task(tmp_path: Path) -> None:
    build_database(tmp_path / "a.sqlite")
    (tmp_path / "b").mkdir()
    with sqlite3.connect(tmp_path / "b" / "b.sqlite") as connection:
        connection.execute("CREATE TABLE city AS SELECT 'Rom' AS name")
    judge = metric_named("sql_execution", MetricOptions(database=str(tmp_path)))
    assert (
        judge(
            "SELECT 'Rom'", Example(["SELECT name FROM city"], meta={"database": "b"})
        )
        == 1.0
    )
    assert (
        judge(
            "SELECT 'Rom'", Example(["SELECT name FROM city"], meta={"database": "a"})
        )
        == 0.0
    )
    with pytest.raises(DataError, match=r"meta\.database = 'c' is no file in"):
        judge("SELECT 1", Example(["SELECT 1"], meta={"database": "c"}))
    with pytest.raises(
        DataError, match=r"needs a SQLite file.* --set task\.database=FILE"
    ):
        metric_named("sql_execution")("SELECT 1", Example(["SELECT 1"]))


def test_answers_agree_by_their_rows(database: Path) -> None:
    rules = AnswerRules("sql_execution", options=MetricOptions(database=str(database)))
    item = Item(ItemId("1"), "q", (ALL,), "test")
    assert rules.agree(
        "SELECT name FROM city", "SELECT name FROM city ORDER BY 1", item
    )
    assert not rules.agree("SELECT name FROM city", "SELECT state FROM city", item)
    assert not rules.agree("SELECT x", "SELECT y", item)


def test_a_vote_counts_statements_with_the_same_rows_together(database: Path) -> None:
    """Two ways to write one statement outvote a wrong one that was written the same twice, and each runs once."""
    rules = AnswerRules("sql_execution", options=MetricOptions(database=str(database)))
    item = Item(ItemId("1"), "q", (), "test")
    wrong = "SELECT state FROM city"
    answers = [wrong, ALL, "SELECT x", f"{ALL} ORDER BY 1", wrong, f"{ALL} WHERE 1"]
    assert agreeing(answers, rules, item) == [0, 1, 2, 1, 0, 1]
    assert most_common(answers, rules, item) == f"{ALL} WHERE 1"
    assert most_common(answers, rules) == wrong
    assert most_common(["", "", ALL], rules, item) == ALL
    assert most_common(["", " "], rules, item) == ""
    asked, run = [], sql_module._WORKER.ask
    sql_module._WORKER.ask = lambda request: asked.append(request) or run(request)  # type: ignore[method-assign]
    try:
        many = [f"SELECT {number}, name FROM city" for number in range(8)]
        assert agreeing(many * 4, rules, item) == [*range(8)] * 4
    finally:
        del sql_module._WORKER.ask
    assert len(asked) == 8


def test_where_no_database_lies_normal_forms_are_counted() -> None:
    rules, item = AnswerRules("sql_execution"), Item(ItemId("1"), "q", (), "test")
    answers = ["SELECT a FROM t", "select a from t;", "SELECT b FROM t"]
    assert agreeing(answers, rules, item) == [0, 0, 1]


@pytest.mark.parametrize(
    ("rules", "answers", "groups"),
    [
        (AnswerRules("number"), ["1,000", "1e3", "1000.5"], [0, 0, 1]),
        (
            AnswerRules("number", options=MetricOptions(tolerance=0.5)),
            ["7.2", "7", "8", "7.4"],
            [0, 0, 1, 0],
        ),
        (AnswerRules("json"), ['{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}', "[]"], [0, 0, 1]),
        (AnswerRules("sql"), ["select 'x'", 'SELECT "x";', "SELECT 'X'"], [0, 0, 1]),
        (AnswerRules("label_accuracy"), ["Spam", "spam", "ham"], [0, 0, 1]),
    ],
)  # fmt: skip
def test_answers_that_a_metric_takes_for_the_same_count_together(
    rules: AnswerRules, answers: list[str], groups: list[int]
) -> None:
    item = Item(ItemId("1"), "q", (), "test")
    assert agreeing(answers, rules, item) == groups


def test_references_that_do_not_run_are_left_out_or_refused(database: Path) -> None:
    rules = AnswerRules("sql_execution", options=MetricOptions(database=str(database)))
    items = [Item(ItemId(str(n)), "q", (ALL,), "") for n in range(99)]
    broken = Item(ItemId("odd"), "q", ("SELECT x FROM city",), "")
    kept, said = without_unreachable([*items, broken], rules)
    assert len(kept) == 99
    assert said == (
        "1 record was left out that no answer could be right for: odd (the reference does not run: no such column: x)"
    )
    with pytest.raises(
        DataError,
        match=r"1 of 10 records could never.*no such column: x; set others .*task\.metric=sql",
    ):
        without_unreachable([*items[:9], broken], rules)


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
BLOB = "randomblob(1000000000)"
HOSTILE = [
    # writing
    "DROP TABLE city",
    "DELETE FROM city",
    "UPDATE city SET name = 'x'",
    "INSERT INTO city VALUES ('x', 'y', 1)",
    "REPLACE INTO city VALUES ('x', 'y', 1)",
    "INSERT INTO city VALUES ('x', 'y', 1) RETURNING *",
    "DELETE FROM city RETURNING name",
    "WITH x AS (SELECT 1) DELETE FROM city",
    "WITH x AS (SELECT 1) INSERT INTO city SELECT 'a', 'b', 1 FROM x",
    "WITH x AS (SELECT 1) UPDATE city SET name = (SELECT * FROM x)",
    "CREATE TABLE t AS SELECT * FROM city",
    "CREATE TEMP TABLE t AS SELECT * FROM city",
    "CREATE VIEW v AS SELECT 1",
    "CREATE INDEX i ON city (name)",
    "CREATE TRIGGER t AFTER INSERT ON city BEGIN DELETE FROM city; END",
    "CREATE VIRTUAL TABLE t USING fts5(text)",
    "CREATE VIRTUAL TABLE t USING csv(filename='/etc/passwd')",
    "ALTER TABLE city RENAME TO town",
    "ALTER TABLE city ADD COLUMN x",
    "ALTER TABLE city DROP COLUMN name",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "VACUUM INTO '{folder}/copy.sqlite'",
    "VACUUM main INTO '{folder}/copy.sqlite'",
    # several statements
    "SELECT name FROM city; DROP TABLE city",
    "SELECT name FROM city; DELETE FROM city; SELECT 1",
    "; DROP TABLE city",
    "SELECT 1; ATTACH '{folder}/other.sqlite' AS other",
    "SELECT 1;\n-- harmless\nDELETE FROM city",
    # other files
    "ATTACH DATABASE '{folder}/other.sqlite' AS other",
    "ATTACH '/etc/passwd' AS other",
    "ATTACH 'file:{folder}/cities.sqlite?mode=rwc' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "SELECT load_extension('{folder}/evil.so')",
    "SELECT load_extension('libc.so.6', 'system')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT FTS3_Tokenizer('simple', x'4141414141414141')",
    "SELECT writefile('{folder}/written', 'x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT edit('x', 'sh -c id')",
    "SELECT fts3_tokenizer('simple', x'4141414141414141')",
    "SELECT * FROM fsdir('/')",
    "SELECT * FROM zipfile('{folder}/x.zip')",
    "SELECT * FROM csv('/etc/passwd')",
    "SELECT * FROM other.city",
    "SELECT * FROM 'file:/etc/passwd'",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM dbstat",
    "SELECT lsmode(1)",
    # settings
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA database_list",
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA user_version = 7",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA incremental_vacuum",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_table_info('city')",
    "SELECT * FROM pragma_journal_mode('wal')",
    "SELECT file FROM pragma_database_list",
    # transactions and locks
    "BEGIN EXCLUSIVE",
    "BEGIN IMMEDIATE; SELECT 1",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
    "RELEASE x",
    "EXPLAIN SELECT * FROM city",
    "EXPLAIN QUERY PLAN SELECT * FROM city",
    # without end
    f"{ENDLESS} SELECT count(*) FROM r",
    f"{ENDLESS} SELECT n FROM r",
    f"{ENDLESS} SELECT max(n) FROM r WHERE n < 0",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "WITH RECURSIVE r(t) AS (SELECT 'a' UNION ALL SELECT t || t FROM r) SELECT max(length(t)) FROM r",
    "WITH RECURSIVE r(t) AS (SELECT 'a' UNION ALL SELECT t || 'a' FROM r) SELECT t FROM r",
    f"{ENDLESS} SELECT group_concat(n) FROM r",
    f"{ENDLESS} SELECT n FROM r ORDER BY -n",
    f"{ENDLESS}, s(m) AS (SELECT n FROM r UNION ALL SELECT m + 1 FROM s) SELECT count(*) FROM s",
    f"{ENDLESS} SELECT n, row_number() OVER (ORDER BY n) FROM r",
    f"{ENDLESS} SELECT DISTINCT n % 7 FROM r",
    "SELECT count(*) FROM number a, number b, number c, number d",
    "SELECT * FROM number a, number b",
    "SELECT a.n FROM number a JOIN number b ON a.n <> b.n JOIN number c ON b.n <> c.n ORDER BY a.n * b.n * c.n",
    "SELECT (SELECT count(*) FROM number b, number c WHERE b.n + c.n > a.n) FROM number a",
    "SELECT * FROM generate_series(1, 1000000000000)",
    # large values
    f"SELECT {BLOB}",
    f"SELECT hex({BLOB})",
    f"SELECT length({BLOB})",
    "SELECT zeroblob(2000000000)",
    "SELECT printf('%1000000000d', 1)",
    "SELECT printf('%.*c', 1000000000, 'x')",
    "SELECT replace(hex(zeroblob(400000)), '00', hex(zeroblob(400000)))",
    "SELECT group_concat(text, text) FROM note, number",
    "SELECT a.text || b.text FROM note a, note b, number",
    "SELECT count(*) FROM (SELECT randomblob(900000) AS b FROM number a, number b ORDER BY b)",
    "SELECT json_group_array(a.n) FROM number a, number b",
    # a slow function on a long text
    "SELECT text LIKE '%a%a%a%a%a%a%a%a%a%a%b' FROM note, number",
    "SELECT text || text || text GLOB '*a*a*a*a*a*a*a*a*b' FROM note, number",
    "SELECT instr(hex(zeroblob(450000)), hex(zeroblob(200000)) || '1') FROM number",
    "SELECT text REGEXP '(a+)+b' FROM note",
    # a statement that is hard to prepare
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + " + ".join(["1"] * 40_000),
    "SELECT 1 " + "UNION ALL SELECT 1 " * 5000,
    "SELECT 1 FROM " + ", ".join(f"number n{place}" for place in range(64)),
    "SELECT 1 FROM " + ", ".join(f"number n{place}" for place in range(200)),
    "SELECT " + ", ".join(["1"] * 5000),
    "WITH " + ", ".join(f"t{n} AS (SELECT * FROM t{n - 1}, t{n - 1} x)" if n else "t0 AS (SELECT 1)" for n in range(30))
    + " SELECT count(*) FROM t29",
    "SELECT 'a' LIKE '" + "%a" * 20_000 + "'",
    "SELECT 1 /* " + "x" * 200_000 + " */",
    # no statement at all
    "SELECT",
    "SELECT 1 /*",
    "SELECT 'unfinished",
    "SELECT \x00 1",
    "\ud83d SELECT",
    "rm -rf /",
    ".shell id",
    ".output {folder}/written",
    ".import '|id' city",
    "SELECT ?",
    "SELECT :name, @x, $y",
]  # fmt: skip
"""What a model may write, in bad faith or by accident."""


@pytest.fixture(scope="module")
def taken() -> Iterator[list[float]]:
    """Seconds of each statement; all together must stay small."""
    seconds: list[float] = []
    yield seconds
    assert sum(seconds) < 6 * SECONDS


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_no_statement_changes_a_file_reads_another_or_runs_on(
    database: Path, answer: str, taken: list[float]
) -> None:
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    written = answer.replace("{folder}", str(database.parent))
    started = time.monotonic()
    value = score(database, written, ALL)
    seconds = time.monotonic() - started
    taken.append(seconds)
    assert value == 0.0
    assert seconds < SECONDS + 5
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before
    assert os.listdir(database.parent) == [database.name]
    assert run_sql(database, ALL).rows == len(CITIES), (
        "the next statement is run as usual"
    )


def test_there_are_a_hundred_hostile_statements_of_which_few_give_rows(
    database: Path,
) -> None:
    assert len(HOSTILE) >= 100
    harmless = [
        sql
        for sql in HOSTILE
        if not run_sql(database, sql.replace("{folder}", "/nowhere")).error
    ]
    assert len(harmless) < 12


def test_json_inside_a_column_is_read(database: Path) -> None:
    pages = "json_each('[1, 2]') one, json_tree('[3]') two"
    assert run_sql(database, f"SELECT one.value FROM {pages}").rows == 4


def test_what_takes_long_within_the_limits_is_still_run(database: Path) -> None:
    assert run_sql(database, "SELECT count(*) FROM number a, number b") == SqlResult.of(
        [["n9000000"]]
    )


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("not a database at all")
    assert (
        "is not a SQLite database"
        in run_sql(tmp_path / "text.sqlite", "SELECT 1").error
    )
    damaged = build_database(tmp_path / "damaged.sqlite")
    damaged.write_bytes(damaged.read_bytes()[:100] + bytes(4000))
    assert run_sql(damaged, ALL).error


def test_the_answers_of_geoquery_run_on_the_real_database() -> None:
    folder = (
        Path(__file__).resolve().parents[2].parent / "shared" / "data" / "structured"
    )
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    from leverplus.data.tasks.jsonl import jsonl
    from leverplus.data.tasks.settings import TaskSection

    database = folder / "geography.sqlite"
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    section = TaskSection(
        name="jsonl", file=str(folder / "geoquery.jsonl"), database=str(database)
    )
    task = jsonl(section)
    assert task.answers.metric == "sql_execution"
    items = [item for split in ("train", "dev", "test") for item in task.items(split)]
    assert (len(items), sum(task.answers.ceiling(item) for item in items)) == (
        872,
        872.0,
    )
    assert any("5 records were left out" in note for note in task.notes)
    for answer in HOSTILE:
        assert task.answers.score(answer.replace("{folder}", "/tmp"), items[0]) == 0.0
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before
