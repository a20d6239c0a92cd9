"""Damaged and hostile bundles, many threads, killed processes: nothing changed is used, nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from bundles import ids, make_bundle, open_words

from leverplus.arms.fixed import Fixed
from leverplus.bundle.bundle import TRUST
from leverplus.bundle.selector import Selector
from leverplus.errors import DataError, LeverError

OPERATIONS = int(os.environ.get("LEVER_TEST_OPERATIONS", "100"))
"""Of each thread; 10,000 / 8 in the long form."""
ASKED = "word3 thing4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle", 20)


def rewrite(folder: Path, **change: Any) -> Path:
    path = folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return folder


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": 2}, "format = 2: Input should be 3; make the bundle anew"),
        ({"arm": 5}, "arm = 5: Input should be a valid string"),
        ({"arm": "mmr"}, "was changed; copy the whole bundle"),
        ({"shots": "2"}, "shots = 2: Input should be a valid integer"),
        ({"shots": -1}, "shots = -1"),
        ({"fields": {"smell": 1}}, "fields.text"),
        ({"fields": {"text": 17}}, "was changed"),
        ({"model": {"instruction": 5}}, "model.instruction = 5"),
        ({"embedder": {"model": "/etc"}}, "embedder.model = /etc"),
        ({"code": "os:system"}, "code = os:system: Extra inputs"),
    ],
)
def test_a_manifest_that_is_not_understood_is_one_sentence(
    folder: Path, change: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=what):
        Selector.load(rewrite(folder, **change))


@pytest.mark.parametrize("name", ["bundle.json", "demos.sqlite", "arm/arm.json"])
def test_one_flipped_bit_is_refused_or_changes_nothing(folder: Path, name: str) -> None:
    """Of every file of a bundle: whatever is chosen and shown is what was packed."""
    asked = [{"question": f"word{row} thing{row % 7}"} for row in range(20)]

    def shown() -> list[Any]:
        selector = open_words(folder)
        picks = selector.select_many(asked, shots=3)
        return [[demo.as_json() for demo in own] for own in picks]

    rng, content, expected = random.Random(0), (folder / name).read_bytes(), shown()
    refused = 0
    for _ in range(40):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(flipped)
        try:
            assert shown() == expected
        except LeverError:
            refused += 1
    assert refused >= 5
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"damaged|was changed"):
        Selector.load(folder)


def test_a_changed_record_picture_or_vector_is_named(folder: Path) -> None:
    out = open_words(folder)
    red = b"P6 1 1 255\n\xff\x00\x00"
    out.add([{"question": ASKED, "answer": "red", "image": red, "id": "own"}])
    demo = out.select(question=ASKED, shots=1)[0]
    assert demo.image_bytes() == red
    with sqlite3.connect(folder / "demos.sqlite") as db:
        db.execute("UPDATE pictures SET content = ?", (red[:-1] + b"\x01",))
        db.execute("UPDATE demos SET record = replace(record, 'red', 'bad')")
    db.close()
    for use in (demo.image_bytes, lambda: out.select(question=ASKED, shots=1)):
        with pytest.raises(DataError, match=r"demos\.sqlite is damaged"):
            use()
    with sqlite3.connect(folder / "demos.sqlite") as db:
        db.execute("UPDATE demos SET vectors = zeroblob(64) WHERE row = 1")
    db.close()
    with pytest.raises(DataError, match=r"is damaged .a digest does not fit"):
        Selector.load(folder)


def test_a_database_that_brings_its_own_triggers_is_refused(folder: Path) -> None:
    with sqlite3.connect(folder / "demos.sqlite") as db:
        db.execute(
            "CREATE TRIGGER t AFTER INSERT ON demos BEGIN DELETE FROM demos; END"
        )
    db.close()
    with pytest.raises(DataError, match="is not the demonstrations of a bundle"):
        Selector.load(folder)


def test_an_arm_that_was_fitted_to_other_examples_is_refused(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "b", 5, arm=Fixed({2: [3, 9]}))
    with pytest.raises(DataError, match=r"arm fixed: .*; pack it again"):
        Selector.load(folder)


def test_code_is_imported_only_by_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedder that a bundle names is not run, wherever its file lies."""
    folder = make_bundle(tmp_path / "b", embedder={"name": "evil:E"})
    for place in (folder, tmp_path):
        (place / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LeverError, match=r"is code from outside; .*LEVER_TRUST=evil"):
        Selector.load(folder).select(question=ASKED)
    assert not Path("ran").exists()
    for load in (
        lambda: Selector.load(folder, trust=["evil"]),
        lambda: monkeypatch.setenv(TRUST, "other,evil") or Selector.load(folder),
    ):
        with pytest.raises(LeverError, match="module evil has no 'E'"):
            load().select(question=ASKED)


def test_a_bundle_that_cannot_be_written_says_so_and_goes_on_choosing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector = open_words(folder)
    with sqlite3.connect(folder / "demos.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        selector.source.store.db.execute("PRAGMA busy_timeout = 1")
        with pytest.raises(LeverError, match=r"is locked.*nothing was changed"):
            selector.delete(["d3"])
        other.execute("ROLLBACK")
    other.close()
    assert len(selector) == 20
    shutil.rmtree(folder / "arm")
    (folder / "bundle.json").unlink()
    (folder / "bundle.json").mkdir()
    assert selector.delete(["d3"]) == 1, "what stands in bundle.json is only a note"


@pytest.mark.slow
def test_eight_threads_select_add_and_delete(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "b", 60)
    selector = open_words(folder)
    gone: set[str] = set()
    added: set[str] = set()
    faults: list[str] = []

    def turn(rng: random.Random, name: str, own: list[str]) -> None:
        kind, words = rng.random(), f"fresh word{name}"
        if kind < 0.6:
            before = set(gone)
            asked = f"word{rng.randrange(60)} thing{rng.randrange(7)}"
            if shown := before & set(ids(selector.select(question=asked, shots=4))):
                faults.append(f"{shown} were shown after they were deleted")
        elif kind < 0.85 or not own:
            selector.add([{"question": words, "answer": "x", "id": name}])
            added.add(name)
            own.append(name)
            if name not in ids(selector.select(question=words, shots=4)):
                faults.append(f"{name} was added and not found")
        else:
            name = own.pop(rng.randrange(len(own)))
            selector.delete([name])
            gone.add(name)

    def work(number: int) -> None:
        rng, own = random.Random(number), []
        try:
            for place in range(OPERATIONS):
                turn(rng, f"t{number}-{place}", own)
        except Exception as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    again = open_words(folder)
    held = {demo.id for _, demo in again.source.all()}
    assert held == {f"d{row}" for row in range(60)} | (added - gone)
    assert again.fingerprint == selector.fingerprint
    assert len(again) == len(selector) == len(held)


def killed_child(folder: Path, limit: int) -> list[str]:
    """What a process said before it was killed at its `limit`-th write."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _work_until_killed(folder, limit, writer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        lines = said.read().split()
    status = os.waitpid(child, 0)[1]
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return lines


def _work_until_killed(folder: Path, limit: int, writer: int) -> None:
    seen = 0

    def step(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    def replace(path: Path, target: Path) -> Path:
        step()
        os.replace(path, target)
        step()
        return target

    selector = open_words(folder)
    selector.add([{"question": "warm word1", "answer": "a", "id": "warm"}])
    os.write(writer, b"ready\n")  # whatever is opened late is open
    selector.source.store.db.set_trace_callback(step)  # before every statement
    Path.replace = replace  # type: ignore[method-assign,assignment]  # and around the write of every file
    selector.add([{"question": "killed word2", "answer": "b", "id": "new"}])
    os.write(writer, b"added\n")
    selector.delete(["d5"])
    os.write(writer, b"deleted\n")
    selector.add([{"question": "killed word9", "answer": "c", "id": "last"}])
    os.write(writer, b"done\n")


@pytest.mark.slow
def test_a_process_killed_between_any_two_writes_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    """Killed before the n-th statement or file, for every n until the child lives to its end."""
    limit, said = 0, [""]
    while "done" not in said:
        limit += 1
        folder = make_bundle(tmp_path / f"b{limit}", 20)
        said = killed_child(folder, limit)
        assert "ready" in said
        selector = open_words(folder)
        held = {demo.id for _, demo in selector.source.all()}
        assert {"warm", "d0", "d19"} <= held
        assert len(selector) == len(held)
        assert "new" in held or "added" not in said
        assert "d5" not in held or "deleted" not in said
        assert "last" in held or "done" not in said
        shown = set(ids(selector.select(question="killed word2", shots=22)))
        assert shown == held, "vectors and demonstrations agree"
        selector.add([{"question": "after word3", "answer": "d", "id": "after"}])
        assert ids(selector.select(question="after word3", shots=1)) == ["after"]
    assert limit > 25, "the child was killed in the middle of its work"
