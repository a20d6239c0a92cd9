"""Stores on read-only mounts, on full disks, in files that are empty or of other people."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from leverplus.errors import StoreError
from leverplus.store import opening
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import verify

ROOT = Path(__file__).parents[2]
LEVER = [sys.executable, "-m", "leverplus.cli.main"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


mounts = pytest.mark.skipif(not can_mount(), reason="mounting a file system needs root")


def in_mount(script: str, **places: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own; $LEVER is the command, places are variables."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LEVER": " ".join(LEVER)} | {k: str(v) for k, v in places.items()}
    command = ["unshare", "-m", "bash", "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)


@pytest.fixture
def place(tmp_path, maker) -> Path:
    (tmp_path / "place").mkdir()
    with ScoreStore(tmp_path / "place" / "a.db") as store:
        store.put(maker.context, maker.records(12))
    return tmp_path / "place"


@mounts
@pytest.mark.parametrize("logged", [False, True])
def test_a_store_on_a_read_only_mount_is_read_whole(place, maker, tmp_path, logged) -> None:
    """With and without scores that are only in the write-ahead log, as a killed process leaves them."""
    if logged:
        with ScoreStore(place / "a.db") as store:
            store.put(maker.context, [maker.record("late", "d")])
            (tmp_path / "log").write_bytes((place / "a.db-wal").read_bytes())
            (tmp_path / "file").write_bytes((place / "a.db").read_bytes())
        shutil.copyfile(tmp_path / "file", place / "a.db")
        shutil.copyfile(tmp_path / "log", place / "a.db-wal")
    script = """
        mount --bind $PLACE $PLACE && mount -o remount,ro,bind $PLACE || exit 99
        $LEVER store stats --store $PLACE/a.db && $LEVER store verify --store $PLACE/a.db &&
        $LEVER store export $OUT/a.parquet --store $PLACE/a.db &&
        $LEVER store merge $PLACE/a.db --store $OUT/new.db
    """
    done = in_mount(script, PLACE=place, OUT=tmp_path)
    assert done.returncode == 0, done.stderr
    count = 13 if logged else 12
    assert f"a.parquet: {count} scores" in done.stdout
    assert f"{count} of {count} scores were new" in done.stdout
    assert "clean" in done.stdout


@mounts
def test_writing_to_a_store_on_a_read_only_mount_is_one_sentence(place, tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "b.db") as store:
        store.put(maker.context, [maker.record("new", "d")])
    script = """
        mount --bind $PLACE $PLACE && mount -o remount,ro,bind $PLACE || exit 99
        $LEVER store merge $OUT/b.db --store $PLACE/a.db
    """
    done = in_mount(script, PLACE=place, OUT=tmp_path)
    assert done.returncode == 1
    assert "folder you may write with --store" in done.stderr
    assert "Traceback" not in done.stderr


@mounts
def test_a_full_disk_ends_a_merge_and_an_export_with_a_sentence(place, tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "big.db") as store:
        store.put(maker.context, maker.records(20_000))
    script = """
        mount -t tmpfs -o size=1m tmpfs $PLACE || exit 99
        $LEVER store merge $OUT/big.db --store $PLACE/new.db; echo code $?
        $LEVER store verify --store $PLACE/new.db; rm $PLACE/new.db*
        head -c 900000 /dev/zero > $PLACE/filler
        $LEVER store export $PLACE/big.parquet --store $OUT/big.db; echo code $?
        ls -A $PLACE
    """
    done = in_mount(script, PLACE=place, OUT=tmp_path)
    assert done.stdout.count("code 1") == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "disk is full" in done.stderr
    assert "cannot write" in done.stderr
    assert "problems" not in done.stdout
    assert done.stdout.splitlines()[-1] == "filler"


def test_a_store_that_may_not_be_written_is_opened_to_be_read(place, maker, monkeypatch) -> None:
    monkeypatch.setattr(opening.os, "access", lambda *_: False)
    with ScoreStore(place / "a.db") as store:
        assert store.read_only
        assert store.get(key for key, _ in maker.records(12)) == dict(maker.records(12))
        assert verify(store).clean
        with pytest.raises(StoreError, match="folder you may write with --store"):
            store.put(maker.context, [maker.record("new", "d")])


def test_an_empty_file_is_no_store_to_look_into_and_may_become_one(tmp_path, maker) -> None:
    (tmp_path / "a.db").touch()
    with pytest.raises(StoreError, match=r"is empty \(0 bytes\)"):
        ScoreStore(tmp_path / "a.db", must_exist=True)
    with ScoreStore(tmp_path / "a.db") as store:
        assert store.put(maker.context, maker.records(2)) == 2


def test_stores_are_readable_by_their_owner_only_and_existing_folders_keep_their_mode(tmp_path, maker) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared").chmod(0o755)
    before = os.umask(0)
    try:
        with ScoreStore(tmp_path / "shared" / "mine" / "deep" / "a.db") as store:
            store.put(maker.context, maker.records(2))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "shared").rglob("*")}
    finally:
        os.umask(before)
    assert modes == {"mine": 0o700, "deep": 0o700, "a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_a_store_that_others_may_read_stays_so(tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "a.db") as store:
        store.put(maker.context, maker.records(2))
    (tmp_path / "a.db").chmod(0o640)
    with ScoreStore(tmp_path / "a.db") as store:
        store.put(maker.context, maker.records(3))
    assert stat.S_IMODE((tmp_path / "a.db").stat().st_mode) == 0o640


def test_verify_reads_scores_and_contexts_that_are_not_ascii(tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "a.db") as store:
        store.put(maker.context, [maker.record("größe", "ボール", raw="ответ", answer="ответ")])
        assert verify(store).clean
        store._db.execute("UPDATE contexts SET canonical = replace(canonical, 'tiny', 'größe')")
        report = verify(store)
        assert any("a context was changed" in problem for problem in report.problems)
        store._db.execute("UPDATE contexts SET canonical = CAST(x'fffe80' AS TEXT)")
        assert not verify(store).clean


def test_an_interrupted_merge_says_so_and_leaves_a_store_that_goes_on(tmp_path, maker) -> None:
    with ScoreStore(tmp_path / "big.db") as store:
        store.put(maker.context, maker.records(25_000))
    command = [*LEVER, "store", "merge", "--store", str(tmp_path / "new.db"), str(tmp_path / "big.db")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    working = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    deadline = time.monotonic() + 30
    while not (tmp_path / "new.db-wal").exists() and working.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    working.send_signal(signal.SIGINT)
    _, said = working.communicate(timeout=30)
    assert working.returncode == 130
    assert "stopped" in said
    assert "Traceback" not in said
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert "25,000 in all" in done.stdout
