"""What is saved from stores with damage in all the places that matter."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from leverplus.errors import StoreError
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import MergeReport, merge, verify
from leverplus.store.keys import Context
from leverplus.store.pages import rows_in_file
from leverplus.store.salvage import Salvage, mend_bit

COUNT = 2_000
PAGE = 4096


@pytest.fixture
def path(tmp_path, maker) -> Path:
    with ScoreStore(tmp_path / "a.db") as store:
        store.put(maker.context, maker.records(COUNT, queries=40))
        store.put(maker.context, [maker.record("long", "d", raw="word " * 5_000)])
    return tmp_path / "a.db"


def expected(maker) -> dict:
    return dict([*maker.records(COUNT, queries=40), maker.record("long", "d", raw="word " * 5_000)])


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def saved(path: Path, maker) -> tuple[MergeReport, dict]:
    with ScoreStore(path.with_name("new.db")) as store:
        report = merge(store, path)
        assert verify(store).clean
        found = dict(store.scan(maker.context))
    whole = expected(maker)
    assert all(whole[key] == score for key, score in found.items())
    return report, found


def test_the_pages_of_a_whole_store_hold_every_row(path, maker) -> None:
    salvage = Salvage(path)
    found = list(salvage.rows())
    assert {row.key for _, row in found} == expected(maker).keys()
    assert len(found) == COUNT + 1
    assert {context.canonical for context, _ in found} == {maker.context.canonical}
    assert salvage.damaged == 0


def test_rows_that_are_only_in_the_write_ahead_log_are_found(path, maker, tmp_path) -> None:
    with ScoreStore(path) as store:
        store.put(maker.context, [maker.record("late", "d")])
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        copy.with_name("copy.db-wal").write_bytes(path.with_name("a.db-wal").read_bytes())
    assert maker.key("late", "d") in {row.key for _, row in Salvage(copy).rows()}


def test_a_damaged_page_costs_its_own_rows_and_no_others(path, maker) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // PAGE * PAGE
    data[middle : middle + PAGE] = random.Random(0).randbytes(PAGE)
    path.write_bytes(data)
    on_page = sum(1 for _ in rows_in_file(path))
    report, found = saved(path, maker)
    assert report.salvaged == 1
    assert COUNT + 1 - 40 < len(found) < COUNT + 1  # about 30 rows fit on a page
    assert on_page < COUNT + 1 + 10


@pytest.mark.parametrize("part", ["header", "schema", "root"])
def test_damage_above_the_rows_costs_none_of_them(path, maker, part) -> None:
    connection = sqlite3.connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'").fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    start, length = {"header": (0, 100), "schema": (100, 400), "root": ((root - 1) * PAGE, 12)}[part]
    data[start : start + length] = b"\xa5" * length
    path.write_bytes(data)
    report, found = saved(path, maker)
    assert (len(found), report.damaged, report.salvaged) == (COUNT + 1, 0, 1)


def place_of(path: Path, what: bytes) -> int:
    place = path.read_bytes().index(what)
    return place + len(what) // 2


def test_one_bit_of_a_context_costs_nothing_and_its_text_is_found_again(path, maker) -> None:
    flip(path, place_of(path, maker.context.canonical.encode()), 6)
    with ScoreStore(path) as store:
        with pytest.raises(StoreError, match=r"lever store merge --store NEW\.db"):
            store.contexts()
        assert not verify(store).clean
        key, score = maker.record("q0", "d0")
        assert store.get([key]) == {key: score}  # proven by the digest, so it may be read
    report, found = saved(path, maker)
    assert (len(found), report.lost_texts) == (COUNT + 1, 0)


def test_a_digest_that_was_changed_costs_nothing(path, maker) -> None:
    data = path.read_bytes()
    for place in [at for at in range(len(data)) if data.startswith(maker.context.digest, at)]:
        flip(path, place + 7)
    report, found = saved(path, maker)
    assert (len(found), report.damaged) == (COUNT + 1, 0)


def test_a_context_whose_text_is_lost_keeps_its_scores_under_the_digest(path, maker) -> None:
    data = path.read_bytes()
    text = maker.context.canonical.encode()
    path.write_bytes(data.replace(text, b"?" * len(text)))
    report, found = saved(path, maker)
    assert (len(found), report.lost_texts) == (COUNT + 1, 1)
    new = path.with_name("new.db")
    with ScoreStore(new) as store:
        assert store.contexts() == [Context.lost(maker.context.digest)]
        assert store.stats()["contexts"][0]["backend"] == {"model": "unknown"}
        store.put(maker.context, [maker.record("another", "d")])  # the same model and task are measured again
        assert store.contexts() == [maker.context]
        assert store.count(maker.context) == COUNT + 2


def test_another_store_gives_a_lost_text_back(path, maker) -> None:
    data = path.read_bytes()
    text = maker.context.canonical.encode()
    path.write_bytes(data.replace(text, b"?" * len(text)))
    with ScoreStore(path.with_name("new.db")) as store:
        store.put(maker.context, [maker.record("another", "d")])
        assert merge(store, path).lost_texts == 0
        assert store.contexts() == [maker.context]


def test_a_store_that_was_cut_off_gives_what_is_left(path, maker) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1_000])
    _, found = saved(path, maker)
    assert len(found) > COUNT // 3


def test_a_file_without_any_record_is_refused_as_before(path, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, " * 1_000)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    with ScoreStore(tmp_path / "new.db") as store:
        for name in ("notes.txt", "other.db"):
            with pytest.raises(StoreError, match="not a score store"):
                merge(store, tmp_path / name)
        assert store.count() == 0


def test_a_text_is_mended_by_one_bit_and_not_by_two(maker) -> None:
    text = bytearray(maker.context.canonical.encode())
    text[30] ^= 4
    assert mend_bit(bytes(text), maker.context.digest) == maker.context.canonical.encode()
    text[50] ^= 1
    assert mend_bit(bytes(text), maker.context.digest) is None
