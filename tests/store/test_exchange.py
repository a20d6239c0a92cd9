from __future__ import annotations

import fcntl
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverplus.errors import StoreError
from leverplus.store import tables
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import MergeReport, export_parquet, import_parquet, merge, verify
from leverplus.types import Reference


def contents(path: Path) -> dict:
    with ScoreStore(path) as store:
        return {context.canonical: dict(store.scan(context)) for context in store.contexts()}


def fill(path: Path, *batches) -> Path:
    with ScoreStore(path) as store:
        for context, records in batches:
            store.put(context, records)
    return path


def test_an_export_holds_every_score_and_can_be_imported(tmp_path, maker, other_maker, monkeypatch) -> None:
    monkeypatch.setattr(tables, "GROUP_ROWS", 16)
    unmeasured = other_maker.record("q", references=(Reference("red", 3, None),))
    path = fill(tmp_path / "a.db", (maker.context, maker.records(50)), (other_maker.context, [unmeasured]))
    with ScoreStore(path) as store, ScoreStore(tmp_path / "b.db") as back:
        assert export_parquet(store, tmp_path / "a.parquet") == 51
        assert import_parquet(back, tmp_path / "a.parquet") == MergeReport(read=51, added=51)
        assert import_parquet(back, tmp_path / "a.parquet") == MergeReport(read=51, added=0)
        assert verify(back).clean
    assert contents(tmp_path / "b.db") == contents(path)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 5


def test_an_export_can_be_kept_to_some_contexts(store, maker, other_maker, tmp_path) -> None:
    store.put(maker.context, maker.records(5))
    store.put(other_maker.context, other_maker.records(7))
    assert export_parquet(store, tmp_path / "a.parquet", [other_maker.context]) == 7
    assert set(pq.read_table(tmp_path / "a.parquet")["context"].to_pylist()) == {other_maker.context.digest.hex()}


def test_an_export_that_fails_half_way_leaves_the_earlier_file(store, maker, tmp_path, monkeypatch) -> None:
    store.put(maker.context, maker.records(40))
    export_parquet(store, tmp_path / "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    monkeypatch.setattr(tables, "GROUP_ROWS", 8)
    rows = store.rows(maker.context)
    damaged = [next(rows) for _ in range(20)][-1].key
    store._db.execute("UPDATE records SET tokens = 0 WHERE key = ?", (damaged,))
    with pytest.raises(StoreError, match=damaged.hex()):
        export_parquet(store, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == before
    assert [path for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_an_export_into_a_place_that_cannot_be_written_is_one_sentence(store, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder you may write"):
        export_parquet(store, tmp_path / "file" / "a.parquet")


def test_merging_is_lossless_idempotent_and_the_same_in_either_order(tmp_path, maker, other_maker) -> None:
    mine = ((maker.context, maker.records(30)), (other_maker.context, other_maker.records(5)))
    theirs = ((other_maker.context, other_maker.records(9)), (maker.context, maker.records(60)[20:]))
    a, b = fill(tmp_path / "a.db", *mine), fill(tmp_path / "b.db", *theirs)
    expected = {
        maker.context.canonical: dict(maker.records(60)),
        other_maker.context.canonical: dict(other_maker.records(9)),
    }
    for name, sources in (("ab.db", (a, b)), ("ba.db", (b, a))):
        with ScoreStore(tmp_path / name) as store:
            assert merge(store, *sources) == MergeReport(read=84, added=69)
            assert merge(store, *sources, tmp_path / name) == MergeReport(read=84 + 69, added=0)
            assert verify(store).clean
        assert contents(tmp_path / name) == expected
    assert contents(a)[maker.context.canonical] == dict(maker.records(30))


def test_two_results_for_one_key_are_counted_and_the_first_is_kept(tmp_path, maker) -> None:
    mine = [maker.record("q", "a"), maker.record("q", "b"), maker.record("q", "c")]
    drifted = maker.record("q", "b", references=(Reference("red", 2, -0.125), Reference("blue", 1, -2.0)))
    theirs = [maker.record("q", "a", seconds=9.0, tokens=1), drifted, maker.record("q", "c", raw="blue")]
    a, b = fill(tmp_path / "a.db", (maker.context, mine)), fill(tmp_path / "b.db", (maker.context, theirs))
    with ScoreStore(a) as store:
        assert merge(store, b) == MergeReport(read=3, added=0, conflicts=2, largest_gap=0.5)
    assert contents(a)[maker.context.canonical] == dict(mine)


def test_merging_a_damaged_store_into_a_new_one_keeps_what_is_whole(tmp_path, maker) -> None:
    path = fill(tmp_path / "a.db", (maker.context, maker.records(10)))
    with ScoreStore(path) as store:
        store._db.execute("UPDATE records SET payload = substr(payload, 1, 40) WHERE key = ?", (maker.key("q0", "d0"),))
    with ScoreStore(tmp_path / "new.db") as store:
        assert merge(store, path) == MergeReport(read=10, added=9, damaged=1)
        assert verify(store).clean


def test_merging_what_is_no_store_is_one_sentence(store, tmp_path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        merge(store, tmp_path / "absent.db")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(StoreError, match="not an export of scores"):
        merge(store, tmp_path / "x.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-20])
    with pytest.raises(StoreError, match="lever store export"):
        merge(store, tmp_path / "cut.parquet")


def rewrite(path: Path, out: Path, column: str, values: list, **how) -> Path:
    """The same export with other values in one column and the metadata of before, as a tool that edits would leave."""
    with pq.ParquetFile(path) as file:
        table, metadata = file.read(), file.metadata.metadata
    at = table.schema.get_field_index(column)
    changed = table.set_column(at, pa.field(column, how.get("kind", table.schema.types[at])), [values])
    pq.write_table(changed.replace_schema_metadata(metadata), out)
    return out


@pytest.fixture
def exported(tmp_path, maker) -> Path:
    with ScoreStore(fill(tmp_path / "e.db", (maker.context, maker.records(3)))) as store:
        export_parquet(store, tmp_path / "e.parquet")
    return tmp_path / "e.parquet"


def test_rows_of_an_export_that_were_edited_are_left_out_and_counted(exported, tmp_path) -> None:
    edited = rewrite(exported, tmp_path / "b.parquet", "accuracy", [2 / 3, 0.5, 2 / 3])
    with ScoreStore(tmp_path / "new.db") as new:
        assert merge(new, edited) == MergeReport(read=3, added=2, damaged=1)
        assert verify(new).clean


ODD = {
    "null": ("query", ["q0", None, "q2"], pa.string()),
    "a null list": ("reference_answers", [["red", "blue"], None, ["red", "blue"]], pa.list_(pa.string())),
    "another type": ("accuracy", ["0.6", "much", "0.6"], pa.string()),
    "no UTF-8": ("raw", [b" red\n", b"\xff\xfe", b" red\n"], pa.binary()),
    "a number for a list": ("demos", [1, 2, 3], pa.int64()),
}


@pytest.mark.parametrize("name", ODD)
def test_an_export_with_odd_values_is_never_read_wrong_and_never_a_stack_trace(exported, tmp_path, name) -> None:
    column, values, kind = ODD[name]
    edited = rewrite(exported, tmp_path / "b.parquet", column, pa.array(values, kind), kind=kind)
    with ScoreStore(tmp_path / "new.db") as new:
        report = merge(new, edited)
        assert report.damaged >= 1
        assert report.added + report.damaged == 3
        assert verify(new).clean or report.added == 0
    taken = contents(tmp_path / "new.db")
    whole = contents(tmp_path / "e.db")
    assert all(whole[context][key] == score for context, own in taken.items() for key, score in own.items())


def without_checksums(path: Path, out: Path) -> Path:
    """An export as it was before rows carried checksums."""
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["checksum"]), out)
    return out


def test_an_export_of_before_is_read_and_counted_as_unchecked(exported, tmp_path) -> None:
    old = without_checksums(exported, tmp_path / "old.parquet")
    with ScoreStore(tmp_path / "new.db") as new:
        assert merge(new, old) == MergeReport(read=3, added=3, unchecked=3)
    assert contents(tmp_path / "new.db") == contents(tmp_path / "e.db")


@pytest.mark.parametrize("name", ["null", "a null list"])
def test_an_export_of_before_with_odd_values_is_one_sentence(exported, tmp_path, name) -> None:
    column, values, kind = ODD[name]
    old = without_checksums(
        rewrite(exported, tmp_path / "b.parquet", column, pa.array(values, kind), kind=kind), tmp_path / "old.parquet"
    )
    with ScoreStore(tmp_path / "new.db") as new, pytest.raises(StoreError, match="lever store export"):
        merge(new, old)


@pytest.mark.parametrize("column", ["checksum", "accuracy"])
def test_an_export_whose_columns_were_renamed_is_refused(exported, tmp_path, column) -> None:
    with pq.ParquetFile(exported) as file:
        table, metadata = file.read().replace_schema_metadata(file.metadata.metadata), file.metadata.metadata
    pq.write_table(table.rename_columns({column: "checksun"}).replace_schema_metadata(metadata), tmp_path / "b.parquet")
    with ScoreStore(tmp_path / "new.db") as new, pytest.raises(StoreError, match="changed after it was written"):
        merge(new, tmp_path / "b.parquet")


def test_rows_that_are_missing_from_an_export_are_counted(exported, tmp_path) -> None:
    with pq.ParquetFile(exported) as file:
        table, metadata = file.read(), file.metadata.metadata
    pq.write_table(table.slice(1).replace_schema_metadata(metadata), tmp_path / "b.parquet")
    with ScoreStore(tmp_path / "new.db") as new:
        assert merge(new, tmp_path / "b.parquet") == MergeReport(read=3, added=2, damaged=1)


def test_what_an_interrupted_export_left_is_used_by_the_next_and_then_gone(store, maker, tmp_path) -> None:
    store.put(maker.context, maker.records(3))
    (tmp_path / ".a.parquet.part").write_bytes(b"half a file" * 1000)
    assert export_parquet(store, tmp_path / "a.parquet") == 3
    assert not (tmp_path / ".a.parquet.part").exists()
    assert len(pq.read_table(tmp_path / "a.parquet")) == 3


def test_two_exports_to_one_file_at_once_do_not_mix(store, tmp_path) -> None:
    with (tmp_path / ".a.parquet.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process is writing"):
            export_parquet(store, tmp_path / "a.parquet")
    assert (tmp_path / ".a.parquet.part").exists()


DAMAGE = {
    "changed after": "UPDATE records SET seconds = seconds + 1 WHERE key = (SELECT min(key) FROM records)",
    "was changed": "UPDATE records SET payload = x'00' WHERE key = (SELECT min(key) FROM records)",
    "1 records have no context": "UPDATE records SET context = 77 WHERE key = (SELECT min(key) FROM records)",
    "has no records": "DELETE FROM records",
    "key that does not fit": "UPDATE records SET key = x'00' || key WHERE key = (SELECT min(key) FROM records)",
}


@pytest.mark.parametrize("finding", DAMAGE)
def test_verify_names_what_is_wrong(store, maker, finding: str) -> None:
    store.put(maker.context, maker.records(6))
    assert verify(store).clean
    store._db.execute(DAMAGE[finding])
    report = verify(store)
    assert not report.clean
    assert any(finding in problem for problem in report.problems)


def test_verify_finds_a_record_under_the_key_of_another_query(store, maker) -> None:
    store.put(maker.context, [maker.record("q", "a"), (maker.key("q", "b"), maker.score("other", "b"))])
    assert "has the key of query" in verify(store).problems[0]


def test_verify_counts_every_problem_and_shows_the_first(store, maker) -> None:
    store.put(maker.context, maker.records(100))
    store._db.execute("UPDATE records SET checksum = 0")
    report = verify(store)
    assert (report.problem_count, len(report.problems)) == (100, 20)


def test_verify_finds_a_damaged_page(tmp_path, maker) -> None:
    path = fill(tmp_path / "a.db", (maker.context, maker.records(500)))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(data)
    with ScoreStore(path) as store:
        report = verify(store)
    assert not report.clean
    assert any("damaged" in problem for problem in report.problems)
