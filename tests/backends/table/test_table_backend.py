"""Recorded tables: what is written is read back, what is not recorded is named, and a changed item is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverplus.backends.base import Recorded
from leverplus.backends.table.backend import TableBackend
from leverplus.backends.table.format import TableRow, TableWriter
from leverplus.errors import DataError, MissingFile, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.recipe import load_recipe
from leverplus.tasks.files import FileTask
from leverplus.types import Item, ItemId

ITEMS = [Item(ItemId(name), f"what is {name}?", (name,) * 4, "train", image_id=name) for name in "abcd"] + [
    Item(ItemId("q"), "what is q?", ("a", "a", "b", "b"), "test", image_id="q"),
    Item(ItemId("d1"), "what is d?", ("a",) * 4, "dev", image_id="d1"),
]
ROWS = [
    TableRow(ItemId("q"), (), 0.0, 0.125, "c"),
    TableRow(ItemId("q"), (ItemId("b"),), 0.6, 0.5, "b"),
    TableRow(ItemId("q"), (ItemId("d1"),), 0.3, None, None),
    TableRow(ItemId("q"), (ItemId("a"),), 1.0, 0.25, "a"),
    TableRow(ItemId("q"), (ItemId("b"), ItemId("a")), 0.9, 0.1, "a"),
]


def task_of(items=ITEMS) -> FileTask:
    return FileTask("jsonl", items, metric="vqa_accuracy", postprocess="vqa")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "scores.parquet"
    with TableWriter(path) as writer:
        for row in ROWS:
            writer.add(row)
        writer.finish(task_of(), {"model": "tiny"})
    return path


def backend_of(path: Path, items=ITEMS) -> TableBackend:
    return TableBackend(task_of(items), ModelSection(name=str(path)))


def test_every_recorded_prompt_has_the_recorded_accuracy_probability_and_answer(table):
    backend = backend_of(table)
    assert isinstance(backend, Recorded)
    scores = backend.scores([(row.query, row.demos) for row in ROWS])
    assert [score.accuracy for score in scores] == [0.0, 0.6, 0.3, 1.0, 0.9]
    assert [score.answer for score in scores] == ["c", "b", "", "a", "a"]
    assert [score.gt_prob for score in scores if score.weighed] == pytest.approx([0.125, 0.5, 0.25, 0.1], abs=1e-4)
    assert backend.notice == ""


def test_candidates_are_recorded_demonstrations_of_split_train_in_table_order(table):
    assert backend_of(table).candidates(ItemId("q")) == ("b", "a")
    assert not backend_of(table).holds(ItemId("a"))


def test_a_prompt_that_was_not_recorded_is_named(table):
    with pytest.raises(ScoringError, match="prompt of query q with the demonstrations a, b"):
        backend_of(table).scores([(ItemId("q"), (ItemId("a"), ItemId("b")))])


def test_a_table_whose_items_changed_is_refused_and_the_item_named(table):
    changed = [replace(item, question="what was b?") if item.id == "b" else item for item in ITEMS]
    with pytest.raises(DataError, match="1 changed since, item b among them"):
        backend_of(table, changed)
    with pytest.raises(DataError, match="holds item 'a'"):
        backend_of(table, ITEMS[1:])


def test_a_table_without_a_card_is_taken_with_a_note(tmp_path):
    path = tmp_path / "others.parquet"
    columns = {"query": ["q", "q"], "demos": [[], ["a"]], "accuracy": pa.array([0.3, 0.6], pa.float32())}
    pq.write_table(pa.table(columns), path)
    backend = backend_of(path)
    assert "no card" in backend.notice
    scores = backend.scores([(ItemId("q"), ()), (ItemId("q"), (ItemId("a"),))])
    assert [score.accuracy for score in scores] == [0.3, 0.6]
    assert not scores[0].weighed


def test_files_that_are_no_tables_get_a_sentence(tmp_path):
    with pytest.raises(MissingFile, match="lever record"):
        backend_of(tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        backend_of(tmp_path / "text.parquet")


def test_the_shipped_recipe_names_files_that_travel_with_the_package():
    from leverplus.rundir import shipped

    recipe = load_recipe("okvqa_table")
    names = [recipe.task.file, recipe.embed.model, *recipe.model.name.split(",")]
    assert all(shipped(name).is_file() for name in names)
    assert sum(path.stat().st_size for path in shipped(names[0]).parent.iterdir()) < 10_000_000
    card = json.loads(pq.ParquetFile(shipped(names[2])).metadata.metadata[b"leverplus.card"])
    assert card["model"] == "qwen2.5-coder-1.5b"
    assert "CC-BY-4.0" in card["licence"]
