from __future__ import annotations

import sqlite3
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pytest

from leverplus.errors import ScoringError, StoreError
from leverplus.store import db, opening
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import verify
from leverplus.store.keys import Context


def test_what_was_put_is_got_and_the_rest_is_missing(store, maker) -> None:
    records = maker.records(1200)
    assert store.put(maker.context, records) == 1200
    absent = [maker.key("q0", "never"), maker.key("q1", "never")]
    keys = [absent[0], *(key for key, _ in records), absent[1], absent[0]]
    assert store.get(keys) == dict(records)
    assert store.missing(keys) == absent
    assert store.count() == store.count(maker.context) == 1200


def test_a_key_is_stored_once_and_keeps_its_first_score(store, maker) -> None:
    first = maker.record("q", "a", raw="first")
    assert store.put(maker.context, [first, maker.record("q", "a", raw="same batch")]) == 1
    assert store.put(maker.context, [maker.record("q", "a", raw="later"), maker.record("q", "b")]) == 1
    assert store.get([first[0]]) == dict([first])


def test_scores_outlive_the_process_that_measured_them(tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "deep" / "er" / "scores.db") as store:
        store.put(maker.context, maker.records(10))
    with ScoreStore(tmp_path / "deep" / "er" / "scores.db") as store:
        assert store.get(key for key, _ in maker.records(10)) == dict(maker.records(10))


def test_one_bad_score_refuses_its_whole_batch_and_leaves_the_store_whole(store, maker) -> None:
    store.put(maker.context, maker.records(3))
    with pytest.raises(ScoringError, match="shown twice"):
        store.put(maker.context, [maker.record("q", "a"), maker.record("q", "b", "b")])
    assert store.count() == 3
    assert verify(store).clean


def test_putting_nothing_leaves_no_trace(store, maker) -> None:
    assert store.put(maker.context, []) == 0
    assert store.contexts() == []
    assert store.stats()["bytes_per_record"] is None


def test_a_scan_gives_the_records_of_each_query_together(store, maker, other_maker, monkeypatch) -> None:
    monkeypatch.setattr(db, "_ROWS_PER_READ", 7)
    store.put(maker.context, maker.records(50))
    store.put(other_maker.context, other_maker.records(20))
    found = list(store.scan(maker.context))
    assert dict(found) == dict(maker.records(50))
    assert len(found) == 50
    assert [key for key, _ in found] == sorted(key for key, _ in found)
    order = [score.query for _, score in found]
    assert sum(a != b for a, b in pairwise(order)) == 4


def test_a_scan_of_one_query_gives_all_its_records_and_no_other(store, maker) -> None:
    store.put(maker.context, maker.records(50))
    found = dict(store.scan(maker.context, maker.digest("q3")))
    assert found == {key: score for key, score in maker.records(50) if score.query == "q3"}
    assert dict(store.scan(maker.context, maker.digest("nobody"))) == {}


def test_a_writer_is_not_held_back_by_an_unfinished_scan(store, maker, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(db, "_ROWS_PER_READ", 5)
    store.put(maker.context, maker.records(20))
    scan = store.scan(maker.context)
    next(scan)
    with ScoreStore(tmp_path / "scores.db", timeout=0.2) as writer:
        assert writer.put(maker.context, [maker.record("late", "a")]) == 1
    assert len(list(scan)) >= 19


def test_stats_count_by_context(store, maker, other_maker) -> None:
    store.put(maker.context, maker.records(12, queries=4))
    store.put(other_maker.context, other_maker.records(2))
    stats = store.stats()
    first, second = stats["contexts"]
    assert (stats["records"], first["records"], second["records"]) == (14, 12, 2)
    assert (first["queries"], first["tokens"]) == (4, 12 * 120)
    assert first["seconds"] == pytest.approx(0.24)
    assert first["backend"]["model"] == "tiny"
    assert stats["bytes_per_record"] == stats["bytes"] / 14
    assert stats["journal"] == "wal"


def open_and_put(path: Path, canonical: str, records: list) -> int:
    with ScoreStore(path) as store:
        return sum(store.put(Context(canonical), records[start : start + 8]) for start in range(0, len(records), 8))


def test_four_processes_that_create_and_write_one_store_at_once_store_every_key_once(tmp_path, maker) -> None:
    path, records = tmp_path / "scores.db", maker.records(800)
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        added = list(pool.map(open_and_put, [path] * 4, [maker.context.canonical] * 4, [records] * 4))
    with ScoreStore(path) as store:
        assert sum(added) == store.count() == 800
        assert store.get(key for key, _ in records) == dict(records)
        assert verify(store).clean


def test_a_full_disk_refuses_the_batch_and_loses_nothing(store, maker) -> None:
    store.put(maker.context, maker.records(5))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match=r"disk is full.*free some space"):
        store.put(maker.context, maker.records(500))
    assert store.get(key for key, _ in maker.records(500)) == dict(maker.records(5))
    assert verify(store).clean
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.put(maker.context, maker.records(500)) == 495


def test_a_store_of_a_newer_schema_is_refused_and_left_alone(tmp_path, maker) -> None:
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        store.put(maker.context, maker.records(3))
        store._db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer Lever-Plus \(schema 99.*pip install --upgrade"):
        ScoreStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="not a score store"):
        ScoreStore(text)
    assert text.read_text() == "not a database, " * 100


def test_an_sqlite_file_of_another_program_is_refused_and_left_alone(tmp_path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a score store; name another"):
        ScoreStore(path)
    assert path.read_bytes() == before


def test_a_store_that_was_cut_off_is_refused(tmp_path, maker) -> None:
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        store.put(maker.context, maker.records(500))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(StoreError, match="damaged or cut off"), ScoreStore(path) as store:
        store.get(key for key, _ in maker.records(500))


@pytest.mark.parametrize("place", ["file/scores.db", "folder"])
def test_a_place_that_cannot_hold_a_store_is_named_with_a_way_out(tmp_path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="folder you may write with --store"):
        ScoreStore(tmp_path / place)


def test_a_store_that_must_exist_is_not_created(tmp_path) -> None:
    with pytest.raises(StoreError, match="there is no score store at"):
        ScoreStore(tmp_path / "scores.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_held_by_another_process_is_waited_for_and_then_reported(store, maker, tmp_path) -> None:
    with ScoreStore(tmp_path / "scores.db", timeout=0.1) as waiting:
        store._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has held it"):
            waiting.put(maker.context, maker.records(1))
        store._db.execute("ROLLBACK")
        assert waiting.put(maker.context, maker.records(1)) == 1


def test_a_file_system_without_shared_memory_gets_a_rollback_journal(tmp_path) -> None:
    """SQLite's dotfile locking has no shared memory, as on network file systems."""
    connection = sqlite3.connect(f"file:{tmp_path / 'scores.db'}?vfs=unix-dotfile", uri=True, isolation_level=None)
    assert opening.set_journal(connection, 1.0) == "delete"
    connection.close()
