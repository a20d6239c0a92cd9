"""The store: committed scores are there whatever happens, and what cannot be used is one sentence."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from leverplus.errors import ScoringError, StoreError
from leverplus.scores import store as module
from leverplus.scores.exchange import verify
from leverplus.scores.store import ScoreStore, set_journal

ROOT = Path(__file__).parents[2]
LEVER = f"{sys.executable} -m leverplus"


def test_what_was_put_is_got_and_the_first_score_of_a_key_stays(store, maker) -> None:
    records = maker.records(1200)
    assert store.put(maker.context, records) == 1200
    absent = maker.key("q0", "never")
    assert store.get([absent, *(key for key, _ in records)]) == dict(records)
    assert store.count() == store.count(maker.context) == 1200
    again = maker.record("q0", "d0", raw="later")
    assert store.put(maker.context, [again, maker.record("q", "b")]) == 1
    assert store.get([again[0]]) == dict(records[:1])


def test_one_bad_score_refuses_its_whole_batch_and_leaves_the_store_whole(
    store, maker
) -> None:
    store.put(maker.context, maker.records(3))
    with pytest.raises(ScoringError, match="not valid Unicode"):
        store.put(maker.context, [maker.record("q"), maker.record("r", raw="\ud800")])
    assert store.count() == 3
    assert verify(store).clean


def test_a_scan_gives_the_records_of_each_query_together_and_holds_no_writer_back(
    store, maker, other_maker, monkeypatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_READ", 7)
    store.put(maker.context, maker.records(50))
    store.put(other_maker.context, other_maker.records(20))
    found = list(store.scan(maker.context))
    assert dict(found) == dict(maker.records(50))
    assert [key for key, _ in found] == sorted(key for key, _ in found)
    assert sum(a.query != b.query for (_, a), (_, b) in pairwise(found)) == 4
    scan = store.scan(maker.context)
    next(scan)
    with ScoreStore(store.path, timeout=0.2) as writer:
        assert writer.put(maker.context, [maker.record("late", "a")]) == 1
    assert len(list(scan)) >= 49


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


@pytest.mark.slow
def test_killed_writers_lose_nothing_committed_and_ask_nothing_committed_again(
    tmp_path,
) -> None:
    """A reduced run of the benchmark: four writers, kill -9, start again; on shares, then all on the same prompts."""
    options = ["--records", "0", "--kills", "2", "--queries", "160", "--json"]
    command = [sys.executable, ROOT / "benchmarks/store.py", "--folder", tmp_path]
    done = subprocess.run([*command, *options], capture_output=True, check=True)
    result = json.loads(done.stdout)
    for run in (result["kill"], result["race"]):
        assert run["workers_killed"] >= 2
        assert run["records"] == run["expected"]
        lost = (run["unfinished"], run["committed_lost"], run["committed_asked_again"])
        assert lost == (0, 0, 0)
        assert run["clean"]
    assert result["kill"]["repeated"] <= result["kill"]["repeats_allowed"]


def test_a_full_disk_refuses_the_batch_and_loses_nothing(store, maker) -> None:
    store.put(maker.context, maker.records(5))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match=r"disk is full.*free some space"):
        store.put(maker.context, maker.records(500))
    assert dict(store.scan(maker.context)) == dict(maker.records(5))
    assert verify(store).clean
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.put(maker.context, maker.records(500)) == 495


def foreign(path: Path) -> None:
    sqlite3.connect(path).execute(
        "CREATE TABLE bookmarks (url TEXT)"
    ).connection.close()


def of_another_format(path: Path) -> None:
    with ScoreStore(path) as store:
        store._db.execute("PRAGMA user_version = 99")


def under_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


REFUSED = {
    "not a score store; name another": foreign,
    r"store format 99.*open it with the version that wrote it": of_another_format,
    r"is empty \(0 bytes\)": Path.touch,
    "not an SQLite file": lambda path: path.write_text("notes, " * 999),
    "there is no score store": lambda _path: None,
    "folder you may write with --store": Path.mkdir,
    "with --store FILE": under_a_file,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_store_is_named_with_a_way_out_and_left_alone(
    tmp_path, said
) -> None:
    path = tmp_path / "place" / "scores.db"
    path.parent.mkdir()
    REFUSED[said](path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=said):
        ScoreStore(path, must_exist=True)
    assert before is None or path.read_bytes() == before


def test_a_store_that_was_cut_off_is_refused(store, maker) -> None:
    store.put(maker.context, maker.records(500))
    store.close()
    store.path.write_bytes(store.path.read_bytes()[:20_000])
    with pytest.raises(StoreError, match=r"damaged or cut off.*lever store merge"):
        ScoreStore(store.path).get(key for key, _ in maker.records(500))


def test_a_store_held_by_another_process_is_waited_for_and_then_reported(
    store, maker
) -> None:
    with ScoreStore(store.path, timeout=0.1) as waiting:
        store._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has held it"):
            waiting.put(maker.context, maker.records(1))
        store._db.execute("ROLLBACK")
        assert waiting.put(maker.context, maker.records(1)) == 1


def test_a_file_system_without_shared_memory_gets_a_rollback_journal(tmp_path) -> None:
    """SQLite's dotfile locking has no shared memory, as on network file systems."""
    address = f"file:{tmp_path / 'scores.db'}?vfs=unix-dotfile"
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    assert set_journal(connection, 1.0) == "delete"
    connection.close()


def test_a_store_that_may_not_be_written_is_opened_to_be_read(
    store, maker, monkeypatch
) -> None:
    store.put(maker.context, maker.records(12))
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    with ScoreStore(store.path) as reader:
        assert reader.read_only
        assert dict(reader.scan(maker.context)) == dict(maker.records(12))
        assert verify(reader).clean
        with pytest.raises(StoreError, match="folder you may write with --store"):
            reader.put(maker.context, [maker.record("new", "d")])


def test_stores_are_readable_by_their_owner_only_and_folders_keep_their_mode(
    tmp_path, maker
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    before = os.umask(0)
    try:
        with ScoreStore(shared / "mine" / "deep" / "a.db") as store:
            store.put(maker.context, maker.records(2))
            paths = [shared, *shared.rglob("*")]
            modes = {
                path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in paths
            }
    finally:
        os.umask(before)
    files = dict.fromkeys(("a.db", "a.db-wal", "a.db-shm"), "0o600")
    assert modes == {"shared": "0o755", "mine": "0o700", "deep": "0o700", **files}


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return tried.returncode == 0


mounts = pytest.mark.skipif(not can_mount(), reason="mounting a file system needs root")


def in_mount(script: str, **places: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own; $LEVER is the command, places are variables."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LEVER": LEVER}
    env |= {name: str(place) for name, place in places.items()}
    command = ["unshare", "-m", "bash", "-c", textwrap.dedent(script)]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, check=False, timeout=120
    )


@pytest.mark.slow
@mounts
@pytest.mark.parametrize("logged", [False, True])
def test_a_store_on_a_read_only_mount_is_read_whole(tmp_path, maker, logged) -> None:
    """With and without scores that are only in the write-ahead log, as a killed process leaves them."""
    place, working = tmp_path / "place", tmp_path / "working"
    with ScoreStore(working / "a.db") as store:
        store.put(maker.context, maker.records(12))
        if logged:
            shutil.copytree(working, place)
    if not logged:
        shutil.copytree(working, place)
    script = """
        mount --bind $PLACE $PLACE && mount -o remount,ro,bind $PLACE || exit 99
        $LEVER store verify --store $PLACE/a.db &&
        $LEVER store export $OUT/a.parquet --store $PLACE/a.db &&
        $LEVER store merge $PLACE/a.db --store $OUT/new.db
    """
    done = in_mount(script, PLACE=place, OUT=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("clean", "a.parquet: 12 scores", "12 of 12 scores were new"):
        assert said in done.stdout
