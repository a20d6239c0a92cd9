from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverplus.errors import ScoringError, StoreError
from leverplus.store import exchange
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
    monkeypatch.setattr(exchange, "_BATCH", 16)
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
    monkeypatch.setattr(exchange, "_BATCH", 8)
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


def test_an_export_that_was_edited_is_checked_like_a_new_measurement(store, maker, tmp_path) -> None:
    store.put(maker.context, maker.records(3))
    export_parquet(store, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    at = table.schema.get_field_index("accuracy")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([7.0] * 3)), tmp_path / "b.parquet")
    with ScoreStore(tmp_path / "new.db") as new:
        with pytest.raises(ScoringError, match=r"accuracy is 7\.0"):
            merge(new, tmp_path / "b.parquet")
        assert new.count() == 0


DAMAGE = {
    "changed after": "UPDATE records SET seconds = seconds + 1 WHERE key = (SELECT min(key) FROM records)",
    "cannot be read": "UPDATE records SET payload = x'00' WHERE key = (SELECT min(key) FROM records)",
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
