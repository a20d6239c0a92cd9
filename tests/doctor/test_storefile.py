"""A store is read query by query."""

from __future__ import annotations

import math

import pytest

from leverplus.doctor.examine import examine
from leverplus.doctor.read import read_target
from leverplus.errors import DataError, MissingFile
from leverplus.store.db import ScoreStore
from leverplus.store.keys import Context, item_digest, score_key
from leverplus.types import Item, ItemId, Reference, Score

CONTEXT = Context.of({"model": "m"}, task="t", task_version="1", metric="vqa", postprocess="p")


def digest(name, role):
    return item_digest(Item(ItemId(name), "q?", ("a",), "train"), "", role=role)


def put(store, query, demos, accuracy, p):
    answer = "a" if accuracy else "b"
    references = (Reference("a", 3, math.log(p)),)
    score = Score(query, demos, answer, answer, accuracy, accuracy > 0, references, accuracy, accuracy, 1, 0.0)
    key = score_key(CONTEXT.digest, digest(query, "query"), [digest(demo, "demo") for demo in demos])
    store.put(CONTEXT, [(key, score)])


def test_groups_of_a_store_are_its_queries(tmp_path):
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        for number in range(30):
            query = ItemId(f"q{number}")
            put(store, query, (), 0.0, 0.2)
            for place in range(6):
                put(store, query, (ItemId(f"d{place}"),), float(place < number % 7), 0.1 + 0.1 * place)
    groups = read_target(path).groups
    assert (groups.queries, groups.members, groups.lengths) == (30, 180, {1: 180})
    expected = sum(min(number % 7, 6) for number in range(30)) / 180
    assert groups.accuracy == pytest.approx(expected)
    assert groups.gt_prob == pytest.approx(sum(0.1 + 0.1 * place for place in range(6)) / 6)
    assert groups.flat == 0.0


def test_a_store_of_equal_scores_is_called_flat_and_without_headroom(tmp_path):
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        for number in range(25):
            for place in range(4):
                put(store, ItemId(f"q{number}"), (ItemId(f"d{place}"),), 0.0, 0.3)
    assert {"flat_groups", "no_headroom", "never_right"} <= {finding.code for finding in examine(read_target(path))}


def test_an_empty_store_and_a_missing_file_are_refused(tmp_path):
    path = tmp_path / "scores.db"
    ScoreStore(path).close()
    with pytest.raises(DataError, match="no scores with demonstrations"):
        read_target(path)
    with pytest.raises(MissingFile, match="there is no file or folder"):
        read_target(tmp_path / "nowhere.db")
