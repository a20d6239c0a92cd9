"""Many threads, and processes that are killed: nothing that was acknowledged is lost, nothing deleted comes back."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest
from bundles import ids, make_bundle, open_words

OPERATIONS = int(os.environ.get("LEVER_TEST_OPERATIONS", "100"))
"""Of each thread; 10,000 / 8 in the long form."""


def test_eight_threads_select_add_and_delete(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "b", 60)
    selector = open_words(folder)
    gone: set[str] = set()
    added: set[str] = set()
    faults: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        rng = random.Random(number)
        own: list[str] = []
        try:
            for turn in range(OPERATIONS):
                kind = rng.random()
                if kind < 0.6:
                    with lock:
                        before = set(gone)
                    shown = ids(selector.select(question=f"word{rng.randrange(60)} thing{turn % 7}", shots=4))
                    if before & set(shown):
                        faults.append(f"{before & set(shown)} were shown after they were deleted")
                elif kind < 0.85 or not own:
                    name = f"t{number}-{turn}"
                    selector.add([{"question": f"fresh{number} word{turn}", "answer": "x", "id": name}])
                    found = ids(selector.select(question=f"fresh{number} word{turn}", shots=4))
                    if name not in found:
                        faults.append(f"{name} was added and not found among {found}")
                    own.append(name)
                    with lock:
                        added.add(name)
                else:
                    name = own.pop(rng.randrange(len(own)))
                    selector.delete([name])
                    with lock:
                        gone.add(name)
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


def killed_child(folder: Path, limit: int) -> tuple[list[str], bool]:
    """What a process said before it was killed at its `limit`-th write, and whether it lived to its end."""
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
    return lines, "done" in lines


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
    selector.add([{"question": "warm word1", "answer": "a", "id": "warm"}])  # whatever is opened late is open
    os.write(writer, b"ready\n")
    selector.source.store.db.set_trace_callback(step)  # type: ignore[attr-defined]  # before every statement
    Path.replace = replace  # type: ignore[method-assign,assignment]  # and around the write of every file
    selector.add([{"question": "killed word2", "answer": "b", "id": "new"}])
    os.write(writer, b"added\n")
    selector.delete(["d5"])
    os.write(writer, b"deleted\n")
    selector.add([{"question": "killed word9", "answer": "c", "id": "last"}])
    os.write(writer, b"done\n")


@pytest.mark.slow
def test_a_process_killed_between_any_two_writes_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Killed before the n-th statement or file, for every n until the child lives to its end."""
    limit, ended = 0, False
    while not ended:
        limit += 1
        folder = make_bundle(tmp_path / f"b{limit}", 20)
        said, ended = killed_child(folder, limit)
        assert "ready" in said
        selector = open_words(folder)
        held = {demo.id for _, demo in selector.source.all()}
        assert {"warm", "d0", "d19"} <= held
        assert len(selector) == len(held)
        assert "new" in held or "added" not in said
        assert "d5" not in held or "deleted" not in said
        assert "last" in held or not ended
        shown = set(ids(selector.select(question="killed word2", shots=22)))
        assert shown == held, "vectors and demonstrations agree"
        selector.add([{"question": "after word3", "answer": "d", "id": "after"}])
        assert ids(selector.select(question="after word3", shots=1)) == ["after"]
    assert limit > 40, "the child was killed in the middle of its work"
