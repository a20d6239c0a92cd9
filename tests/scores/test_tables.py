"""Recorded tables: what is written is read back, what is not recorded is named, and a changed item is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverplus.cli.main import main
from leverplus.data.rundir import shipped
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, MissingFile, ScoringError
from leverplus.models.base import Recorded
from leverplus.models.settings import ModelSection
from leverplus.run.evaluate import evaluate_run
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import open_run
from leverplus.run.train import train_run
from leverplus.scores.tables import TableBackend, TableRow, read_table, write_table
from tests.damaged_files import check_file

ITEMS = [
    Item(ItemId(name), f"what is {name}?", (name,) * 4, "train", image_id=name)
    for name in "abcd"
] + [
    Item(ItemId("q"), "what is q?", ("a", "a", "b", "b"), "test", image_id="q"),
    Item(ItemId("d1"), "what is d?", ("a",) * 4, "dev", image_id="d1"),
]
ROWS = [
    TableRow(ItemId("q"), tuple(map(ItemId, demos)), *values)
    for demos, *values in (
        ((), 0.0, 0.125, "c"),
        (("b",), 0.6, 0.5, "b"),
        (("d1",), 0.3, None, None),
        (("a",), 1.0, 0.25, "a"),
        (("b", "a"), 0.9, 0.1, "a"),
    )
]


def task_of(items=ITEMS, **more) -> FileTask:
    rules = AnswerRules("vqa_accuracy", "vqa")
    return FileTask("jsonl", items, answers=rules, **more)


def written(path: Path, rows=ROWS, **how) -> Path:
    write_table(path, rows, task_of(), {"model": "tiny"}, **how)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written(tmp_path / "scores.parquet")


def backend_of(path: Path | str, items=ITEMS) -> TableBackend:
    return TableBackend(task_of(items), ModelSection(name=str(path)))


def test_every_recorded_prompt_has_the_recorded_accuracy_probability_and_answer(table):
    backend = backend_of(table)
    assert isinstance(backend, Recorded)
    assert backend.notice == ""
    scores = backend.scores([(row.query, row.demos) for row in ROWS])
    assert [score.accuracy for score in scores] == [0.0, 0.6, 0.3, 1.0, 0.9]
    assert [score.answer for score in scores] == ["c", "b", "", "a", "a"]
    probabilities = [score.gt_prob for score in scores if score.weighed]
    assert probabilities == pytest.approx([0.125, 0.5, 0.25, 0.1], abs=1e-4)
    # demonstrations of split train in table order
    assert backend.candidates(ItemId("q")) == ("b", "a")
    with pytest.raises(ScoringError, match="query q with the demonstrations a, b"):
        backend.scores([(ItemId("q"), (ItemId("a"), ItemId("b")))])


def test_labels_keep_their_log_probabilities_and_several_files_are_one_table(tmp_path):
    rows = [row._replace(label_logprobs=(-0.5, -2.25)) for row in ROWS]
    files = [
        written(tmp_path / "a.parquet", rows[:2], labels=("b", "c"), full=True),
        written(tmp_path / "b.parquet", rows[2:], labels=("b", "c")),
    ]
    section = ModelSection(name=", ".join(map(str, files)))
    backend = TableBackend(task_of(labels=("b", "c")), section)
    scores = backend.scores([(row.query, row.demos) for row in ROWS])
    for score in scores:
        assert [(r.answer, r.count) for r in score.references] == [("b", 2), ("c", 0)]
        assert [r.logprob for r in score.references] == [-0.5, -2.25]
    assert [score.accuracy for score in scores] == [row.accuracy for row in ROWS]


def test_a_table_whose_items_changed_is_refused_and_the_item_named(table):
    changed = [
        replace(item, question="what was b?") if item.id == "b" else item
        for item in ITEMS
    ]
    with pytest.raises(DataError, match="1 changed since, item b among them"):
        backend_of(table, changed)
    with pytest.raises(DataError, match="holds item 'a'"):
        backend_of(table, ITEMS[1:])


def test_a_table_of_others_without_a_card_is_taken_with_a_note(tmp_path):
    path = tmp_path / "others.parquet"
    short = pa.array([0.3, 0.6], pa.float32())
    pq.write_table(
        pa.table({"accuracy": short, "query": ["q", "q"], "demos": [[], ["a"]]}), path
    )
    backend = backend_of(path)
    assert "no card" in backend.notice
    scores = backend.scores([(ItemId("q"), ()), (ItemId("q"), (ItemId("a"),))])
    assert [score.accuracy for score in scores] == [0.3, 0.6]
    assert not scores[0].weighed


def test_files_that_are_no_tables_get_a_sentence(tmp_path):
    with pytest.raises(MissingFile, match="lever record"):
        backend_of(tmp_path / "nothing.parquet")
    for name, columns in {
        "no column accuracy": {"query": ["q"], "demos": [[]]},
        "between 0 and 2": {
            "query": ["q"] * 2,
            "demos": [[]] * 2,
            "accuracy": [0.0, 2.0],
        },
        "has no query": {"query": [None], "demos": [[]], "accuracy": [0.0]},
    }.items():
        pq.write_table(pa.table(columns), tmp_path / "bad.parquet")
        with pytest.raises(DataError, match=name):
            backend_of(tmp_path / "bad.parquet")


def value_of(path: Path) -> tuple:
    found = read_table([path])
    columns = (found.queries, found.starts, found.demos, found.accuracy, found.gt_prob)
    texts = (found.ids, found.answers.to_pylist(), found.cards)
    return (*(column.tobytes() for column in columns), *texts)


def test_no_damage_changes_what_a_recorded_table_says(tmp_path):
    """Before rows carried checksums 87 of 150 flipped bits of such a table were read as other scores."""
    whole = shipped("tables:okvqa-sample.parquet")
    counts = check_file(whole, tmp_path, value_of, flips=150)
    assert counts["refused"] >= 120  # the flips do hit what is stored


def edited(table: Path, change) -> Path:
    with pq.ParquetFile(table) as file:
        rows, metadata = file.read(), file.metadata.metadata
    other = table.with_name("edited.parquet")
    pq.write_table(change(rows).replace_schema_metadata(metadata), other)
    return other


@pytest.mark.parametrize("column", ["query", "demos", "accuracy", "gt_prob", "answer"])
def test_a_row_that_was_edited_is_noticed(table, column):
    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(column)
        values = rows[column].to_pylist()
        values[0] = "a" if column == "query" else values[1]
        kind = rows.schema.types[at]
        return rows.set_column(at, rows.schema.field(at), [pa.array(values, kind)])

    said = r"edited\.parquet was changed .*4 of 5 rows are whole.*lever record"
    with pytest.raises(DataError, match=said):
        read_table([edited(table, change)])


def test_rows_checksums_and_seals_that_are_missing_are_noticed(table):
    losses = {
        "3 of 5 rows are whole": lambda rows: rows.slice(2),
        "its checksums are gone": lambda rows: rows.drop_columns(["checksum"]),
    }
    for said, change in losses.items():
        with pytest.raises(DataError, match=said):
            read_table([edited(table, change)])


SMALL = [
    "score.search=dense",
    "score.queries=6",
    "score.dev_queries=5",
    "score.dev_shots=[1]",
    "pool.size=6",
    "eval.dev_items=5",
    "eval.items=8",
    "eval.shots=[1]",
    "eval.candidates=pool",
    "eval.diagnostics=false",
    "sft.epochs=1",
]
# probabilities are halves, so an oracle may take another of two demonstrations that give the same answer
KEPT = ["item", "arm", "shots", "draw", "answer", "score"]


@pytest.mark.slow
def test_a_recorded_model_replays_every_arm_item_by_item(tmp_path):
    def opened(name: str, *more: str):
        recipe = load_recipe("world", [*SMALL, *more])
        place = {"store_path": store if name == "live" else tmp_path / "none.db"}
        return open_run(recipe, find_recipe("world"), tmp_path / name, seed=0, **place)

    table, store = tmp_path / "t.parquet", tmp_path / "s.db"
    recording = ["record", "world", "--out", str(table), "--store"]
    assert main([*recording, str(store), "--set", *SMALL]) == 0
    live = opened("live")
    policy = train_run(live)
    evaluate_run(live, policy)
    assert live.scorer.meter.fresh == 0, "everything asked at one shot was recorded"
    names = f"model.name={table},{table.with_stem('t-test')}"
    replayed = opened("replay", "score.backend=table", "pool.kind=recorded", names)
    evaluate_run(replayed, policy)
    first, second = (
        pq.read_table(tmp_path / run / "predictions.parquet", columns=KEPT)
        for run in ("live", "replay")
    )
    assert first.equals(second)
    assert train_run(replayed) is not None
