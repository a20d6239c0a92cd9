"""Records of recorded tables: what is written is read, arms are compared pair by pair, shares count the outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leverplus.data.rundir import shipped
from leverplus.errors import DataError, MissingFile
from leverplus_lab.real import (
    WayRecord,
    comparison_lines,
    read_records,
    recommended,
    share_sentences,
    summarise_tables,
    task_lines,
)


def record(
    arm: str, kind: str, accuracy: np.ndarray, dev: float, shots: str = "best"
) -> WayRecord:
    items = [f"i{n}" for n in range(len(accuracy))]
    return WayRecord(
        "trec",
        "tiny",
        arm,
        kind,
        shots,
        f"{arm}, set",
        3,
        dev,
        items,
        list(range(len(items))),
        accuracy,
    )


def made(seed: int = 0) -> list[WayRecord]:
    rng = np.random.default_rng(seed)
    weak, same, strong = (
        (rng.random(400) < level).astype(float) for level in (0.4, 0.4, 0.7)
    )
    strong[:50] = np.nan
    return [
        record("nearest", "free", weak, 0.45),
        record("random", "free", same, 0.40),
        record("label_vote", "labels", same, 0.5),
        record("effects", "calls", strong, 0.7),
        record("effects", "calls", weak, 0.4, shots="1"),
        record("nearest", "free", weak, 0.4, shots="1"),
        record("oracle", "looks", np.ones(400), float("nan"), shots="1"),
    ]


def test_ours_is_compared_with_the_rival_that_dev_finds_best_on_common_items() -> None:
    found = summarise_tables(made())
    best = {
        (row["against"], row["shots"]): row
        for row in found["comparisons"]
        if row["arm"] == "effects"
    }
    assert best["free", "best"]["rival"] == "nearest"
    assert best["free", "best"]["n"] == 350
    assert best["free", "best"]["standing"] == "above"
    records = made()
    both = ~np.isnan(records[3].accuracy)
    assert best["free", "best"]["diff"] == pytest.approx(
        records[3].accuracy[both].mean() - records[0].accuracy[both].mean()
    )
    assert best["free", "1"]["standing"] == "within"
    assert best["free", "1"]["diff"] == 0.0
    shares = {
        (row["arm"], row["against"], row["shots"]): row for row in found["shares"]
    }
    assert (
        shares["effects", "free", "best"]["above"],
        shares["effects", "free", "best"]["tables"],
    ) == (1, 1)


def test_p_is_corrected_over_all_tables() -> None:
    alone = summarise_tables(made())["comparisons"][-1]
    many = []
    for number in range(8):
        many += [
            WayRecord(**{**vars(r), "task": f"task{number}"}) for r in made(number)
        ]
    row = next(
        r
        for r in summarise_tables(many)["comparisons"]
        if r["task"] == "task0"
        and r["shots"] == alone["shots"]
        and r["against"] == alone["against"]
    )
    assert row["p_value"] == alone["p_value"]
    assert row["mde80_adjusted"] > row["mde80"]


def test_the_arm_to_use_is_the_best_on_dev_and_never_one_that_looks() -> None:
    assert recommended(made()).arm == "effects"
    assert [
        row["arm"] for row in summarise_tables(made())["arms"] if row["recommended"]
    ] == ["effects"]


@pytest.mark.slow
def test_the_page_says_what_the_shipped_records_of_all_fifteen_tables_come_to() -> None:
    records = read_records(shipped("tables:real"))
    found = summarise_tables(records)
    assert len({(record.task, record.model) for record in records}) == 15
    page = (Path(__file__).parents[2] / "docs" / "recorded.md").read_text(
        encoding="utf-8"
    )
    for sentence in share_sentences(found):
        assert f"- {sentence}\n" in page
    for row in comparison_lines(found)[1]:
        assert f"| {' | '.join(row)} |\n" in page
    for task in ("okvqa", "aokvqa", "trec", "sst2", "agnews"):
        for row in task_lines(found, task)[1]:
            assert f"| {' | '.join(row)} |\n" in page


def test_a_folder_without_records_and_a_strange_file_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(MissingFile, match="holds no records"):
        read_records(tmp_path)
    pq.write_table(pa.table({"item": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="brings its own"):
        read_records(tmp_path)


def test_the_table_says_among_how_many_settings_an_arm_was_chosen() -> None:
    few = [replace(record, tries=3) for record in made()]
    more = [
        replace(record, model="b", tries=5 if record.arm == "effects" else 3)
        for record in made()
    ]
    head, rows = task_lines(summarise_tables([*few, *more]), few[0].task)
    tried = {row[0]: row[head.index("settings tried")] for row in rows}
    assert tried["effects"] == "3-5"
    assert tried["nearest, field and shots chosen"] == "3"
