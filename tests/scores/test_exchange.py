"""Exports, merges and what is saved of damaged files: no score is read wrong, and what is lost is counted."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverplus.cli.main import main
from leverplus.data.types import Reference
from leverplus.errors import DataError, LeverError, StoreError
from leverplus.scores import exchange
from leverplus.scores.exchange import MergeReport, export_parquet, merge, verify
from leverplus.scores.store import ScoreStore

ROOT = Path(__file__).parents[2]
COUNT, PAGE = 2_000, 4096
LONG = "word " * 5_000


def contents(path: Path) -> dict:
    with ScoreStore(path) as store:
        return {
            context.canonical: dict(store.scan(context)) for context in store.contexts()
        }


def fill(path: Path, *batches) -> Path:
    with ScoreStore(path) as store:
        for context, records in batches:
            store.put(context, records)
    return path


def merged(path: Path, into: Path) -> MergeReport:
    with ScoreStore(into) as store:
        report = merge(store, path)
        assert verify(store).clean
    return report


def test_an_export_holds_every_score_and_can_be_merged(
    tmp_path, maker, other_maker, monkeypatch
) -> None:
    monkeypatch.setattr(exchange, "GROUP_ROWS", 16)
    unmeasured = other_maker.record("q", references=(Reference("red", 3, None),))
    batches = (maker.context, maker.records(50)), (other_maker.context, [unmeasured])
    path = fill(tmp_path / "a.db", *batches)
    with ScoreStore(path) as store:
        assert export_parquet(store, tmp_path / "a.parquet") == 51
    for added in (51, 0):
        report = merged(tmp_path / "a.parquet", tmp_path / "b.db")
        assert report == MergeReport(read=51, added=added)
    assert contents(tmp_path / "b.db") == contents(path)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 5


def test_an_export_that_fails_leaves_the_earlier_file_and_is_one_sentence(
    store, maker, tmp_path, monkeypatch
) -> None:
    store.put(maker.context, maker.records(40))
    export_parquet(store, tmp_path / "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    monkeypatch.setattr(exchange, "GROUP_ROWS", 8)
    damaged = [row.key for row in store.rows(maker.context)][20]
    store._db.execute("UPDATE records SET tokens = 0 WHERE key = ?", (damaged,))
    with pytest.raises(StoreError, match="was changed after it was written"):
        export_parquet(store, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (tmp_path / "file").write_text("")
    with pytest.raises(LeverError, match="cannot write"):
        export_parquet(store, tmp_path / "file" / "a.parquet")


def test_merging_is_lossless_idempotent_and_the_same_in_either_order(
    tmp_path, maker, other_maker
) -> None:
    one, two = maker.context, other_maker.context
    mine, theirs = maker.records(60), other_maker.records(9)
    a = fill(tmp_path / "a.db", (one, mine[:30]), (two, theirs[:5]))
    b = fill(tmp_path / "b.db", (two, theirs), (one, mine[20:]))
    for name, sources in (("ab.db", (a, b)), ("ba.db", (b, a))):
        with ScoreStore(tmp_path / name) as store:
            assert merge(store, *sources) == MergeReport(read=84, added=69)
            again = merge(store, *sources, tmp_path / name)
            assert again == MergeReport(read=84 + 69)
        expected = {one.canonical: dict(mine), two.canonical: dict(theirs)}
        assert contents(tmp_path / name) == expected


def test_two_results_for_one_key_are_counted_and_the_first_is_kept(
    tmp_path, maker
) -> None:
    mine = [maker.record("q", name) for name in "abc"]
    drifted = (Reference("red", 2, -0.125), Reference("blue", 1, -2.0))
    theirs = [
        maker.record("q", "a", seconds=9.0, tokens=1),
        maker.record("q", "b", references=drifted),
        maker.record("q", "c", raw="blue"),
    ]
    a = fill(tmp_path / "a.db", (maker.context, mine))
    b = fill(tmp_path / "b.db", (maker.context, theirs))
    assert merged(b, a) == MergeReport(read=3, conflicts=2)
    assert contents(a)[maker.context.canonical] == dict(mine)


@pytest.fixture
def exported(tmp_path, maker) -> Path:
    path = fill(tmp_path / "e.db", (maker.context, maker.records(3)))
    with ScoreStore(path) as store:
        export_parquet(store, tmp_path / "e.parquet")
    return tmp_path / "e.parquet"


def edit(path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """The export with another table and the metadata of before, as a tool that edits would leave it."""
    with pq.ParquetFile(path) as file:
        table, metadata = file.read(), file.metadata.metadata
    edited = path.with_name("edited.parquet")
    pq.write_table(change(table).replace_schema_metadata(metadata), edited)
    return edited


def with_accuracy(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("accuracy")
    return table.set_column(at, "accuracy", [[2 / 3, 0.5, 2 / 3]])


def test_rows_of_an_export_that_were_edited_or_are_gone_are_left_out_and_counted(
    exported, tmp_path
) -> None:
    for change in (with_accuracy, lambda table: table.slice(1)):
        into = tmp_path / f"{change.__name__}.db"
        report = merged(edit(exported, change), into)
        assert report == MergeReport(read=3, added=2, damaged=1)


def test_what_is_no_store_and_no_export_is_one_sentence(
    store, exported, tmp_path
) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    (tmp_path / "cut.parquet").write_bytes(exported.read_bytes()[:-20])
    (tmp_path / "notes.txt").write_text("not a database, " * 1_000)
    sqlite3.connect(tmp_path / "o.db").execute("CREATE TABLE marks (url TEXT)")
    renamed = edit(exported, lambda table: table.rename_columns({"checksum": "x"}))
    refused = {
        "absent.db": "there is no file",
        "x.parquet": "not an export of scores",
        "cut.parquet": "lever store export",
        "notes.txt": "not a score store",
        "o.db": "not a score store",
        renamed.name: "not an export of scores",
    }
    for name, said in refused.items():
        with pytest.raises((DataError, StoreError), match=said):
            merge(store, tmp_path / name)
    assert store.count() == 0


FIRST = "WHERE key = (SELECT min(key) FROM records)"
DAMAGE = {
    "changed after": f"UPDATE records SET seconds = seconds + 1 {FIRST}",
    "was changed": f"UPDATE records SET payload = x'00' {FIRST}",
    "1 records have no context": f"UPDATE records SET context = 77 {FIRST}",
    "key that does not fit": f"UPDATE records SET key = x'00' || key {FIRST}",
    "a context was changed": "UPDATE contexts SET canonical = CAST(x'fffe80' AS TEXT)",
}


@pytest.mark.parametrize("finding", DAMAGE)
def test_verify_names_what_is_wrong(store, maker, finding: str) -> None:
    store.put(maker.context, [*maker.records(6), maker.record("größe", "ボール")])
    assert verify(store).clean
    store._db.execute(DAMAGE[finding])
    assert any(finding in problem for problem in verify(store).problems)


# -- damage


@pytest.mark.slow
def test_no_flipped_bit_of_an_export_or_a_store_reads_wrong(monkeypatch) -> None:
    """One bit changed anywhere in a store or an export. The long form: benchmarks/bitflips.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bitflips = pytest.importorskip("bitflips")
    result = bitflips.run(flips=30, count=300, seed=1)
    sys.modules.pop("bitflips")
    for found in result.values():
        for fault in ("files_read_wrong", "clean_but_missing", "unclean"):
            assert found[fault] == 0
        assert found["files_losing_scores"] > 0, "the flips do hit what is stored"
    # a bit costs one page of scores at most
    assert result["stores"]["fewest_scores_kept"] >= 260


@pytest.fixture
def whole(tmp_path, maker) -> Path:
    records = [*maker.records(COUNT, queries=40), maker.record("long", "d", raw=LONG)]
    return fill(tmp_path / "a.db", (maker.context, records))


def saved(path: Path, maker) -> tuple[MergeReport, int]:
    """What merging a damaged store did, and how many of its scores it kept, none of them changed."""
    report = merged(path, path.with_name("new.db"))
    expected = dict(maker.records(COUNT, queries=40))
    expected |= dict([maker.record("long", "d", raw=LONG)])
    found = contents(path.with_name("new.db"))[maker.context.canonical]
    assert found.items() <= expected.items()
    return report, len(found)


@pytest.mark.slow
def test_a_damaged_page_costs_its_own_rows_and_no_others(whole, maker) -> None:
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2 // PAGE * PAGE
    data[middle : middle + PAGE] = random.Random(0).randbytes(PAGE)
    whole.write_bytes(data)
    report, kept = saved(whole, maker)
    assert report.salvaged == 1
    assert COUNT + 1 - 40 < kept < COUNT + 1  # about 30 rows fit on a page


def root_of(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    page = connection.execute(query, (table,)).fetchone()[0]
    connection.close()
    return (page - 1) * PAGE


@pytest.mark.slow
@pytest.mark.parametrize("part", ["header", "schema", "contexts", "root"])
def test_damage_above_the_rows_costs_none_of_those_below(whole, maker, part) -> None:
    data = bytearray(whole.read_bytes())
    start, length = {
        "header": (0, 100),
        "schema": (100, 400),
        "contexts": (root_of(whole, "contexts"), PAGE),
        "root": (root_of(whole, "records"), 12),
    }[part]
    data[start : start + length] = b"\xa5" * length
    whole.write_bytes(data)
    report, kept = saved(whole, maker)
    # the root holds two rows of its own
    assert kept == (COUNT - 1 if part == "root" else COUNT + 1)
    assert (report.damaged, report.salvaged) == (0, 1)


@pytest.mark.slow
def test_a_store_that_was_cut_off_gives_what_is_left_and_so_does_a_log(
    whole, maker
) -> None:
    with ScoreStore(whole) as store:
        store.put(maker.context, [maker.record("late", "d")])
        copy = whole.with_name("copy.db")
        copy.write_bytes(whole.read_bytes()[: PAGE * 100])
        log = whole.with_name("a.db-wal").read_bytes()
    assert merged(copy, whole.with_name("cut.db")).added > COUNT // 3
    copy.with_name("copy.db-wal").write_bytes(log)
    merged(copy, whole.with_name("logged.db"))
    found = contents(whole.with_name("logged.db"))[maker.context.canonical]
    assert maker.key("late", "d") in found


# -- the command


def lever_store(*arguments: object) -> int:
    return main(["store", *map(str, arguments)])


def test_stats_export_and_merge_speak_json(
    tmp_path, maker, other_maker, capsys
) -> None:
    path, out = tmp_path / "a.db", tmp_path / "a.parquet"
    fill(path, (maker.context, maker.records(12)))
    fill(path, (other_maker.context, other_maker.records(3)))

    def said(*arguments: object) -> dict:
        assert lever_store(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    stats = said("stats", "--store", path)
    assert [entry["records"] for entry in stats["contexts"]] == [12, 3]
    assert said("export", out, "--store", path)["records"] == 15
    told = said("merge", out, path, "--store", tmp_path / "b.db")
    counts = [told[name] for name in ("read", "added", "conflicts", "records")]
    assert counts == [30, 15, 0, 15]


def test_damage_and_conflicts_are_told_and_end_with_code_1(
    tmp_path, maker, capsys
) -> None:
    a = fill(tmp_path / "a.db", (maker.context, maker.records(2)))
    assert lever_store("verify", "--store", a) == 0
    records = [maker.record("q0", "d0", raw="other"), maker.record("q", "x")]
    b = fill(tmp_path / "b.db", (maker.context, records))
    with ScoreStore(b) as store:
        changed = "UPDATE records SET tokens = 0 WHERE key = ?"
        store._db.execute(changed, (maker.key("q", "x"),))
    capsys.readouterr()
    assert lever_store("merge", b, "--store", a) == 1
    out = capsys.readouterr().out
    assert "0 of 2 scores were new" in out
    assert "1 scores had been measured with another result" in out
    assert "1 damaged" in out
    assert lever_store("verify", "--store", b, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [report[key] for key in ("clean", "problem_count")] == [False, 1]
