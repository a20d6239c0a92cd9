"""The table of README.md on real recorded models, from the records of `lever bench real`; `make pages` writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from leverplus.data.rundir import shipped
from leverplus_lab.real import (
    WayRecord,
    best_of,
    read_records,
    shots_of_setting,
    summarise_tables,
)

README = Path(__file__).resolve().parents[1] / "README.md"
MARKS = re.compile(r"<!-- real -->.*<!-- /real -->", re.DOTALL)
TASKS = {
    "trec": "TREC, 6 labels",
    "sst2": "SST-2, 2 labels",
    "agnews": "AG News, 4 labels",
    "aokvqa": "A-OKVQA, free answers",
    "okvqa": "OK-VQA, free answers",
}
WITHOUT_MODEL = ("label_vote", "label_regression")
SAME_FOR_ALL = ("fixed", "fixed_calibrated")
HEAD = (
    "task, model (test questions)",
    "no example",
    "random",
    "best without training",
    "same for all",
    "by labels",
    "network",
    "by effects",
    "by effects less best without training (95 %)",
    "classifier, no model",
)


def readme() -> str:
    """README.md with its table written anew."""
    rows = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *table_rows()]
    table = "\n".join(["<!-- real -->", *rows, "<!-- /real -->"])
    return MARKS.sub(lambda _: table, README.read_text(encoding="utf-8"))


def table_rows() -> list[str]:
    """One row per task and model: rivals at the number of shots that training and dev items choose for each."""
    records = read_records(shipped("tables:real"))
    compared = summarise_tables(records)["comparisons"]
    rows = []
    for task, model in sorted({(record.task, record.model) for record in records}):
        own = [
            record for record in records if (record.task, record.model) == (task, model)
        ]
        prompt, effects = best_of(own, ("free",), "best"), one(own, "effects")
        drawn, network = one(own, "random"), one(own, "learned")
        by_labels = best_of(
            [record for record in own if record.arm not in WITHOUT_MODEL],
            ("labels",),
            "best",
        )
        alone, same = (
            best_named(own, names) for names in (WITHOUT_MODEL, SAME_FOR_ALL)
        )
        (pair,) = [
            row
            for row in compared
            if (row["task"], row["model"], row["arm"], row["against"], row["shots"])
            == (task, model, "effects", "free", "best")
        ]
        low, high = (100 * bound for bound in pair["ci95"])
        assert prompt is not None
        assert by_labels is not None
        cells = [
            f"{TASKS.get(task, task)}, {model} ({len(effects.items):,})",
            f"{100 * one(own, 'zero_shot').mean:.1f}",
            f"{100 * drawn.mean:.1f}{shots_of(drawn)}",
            f"{100 * prompt.mean:.1f}{shots_of(prompt)}",
            f"{100 * same.mean:.1f}{shots_of(same)}",
            f"{100 * by_labels.mean:.1f}{shots_of(by_labels)}",
            f"{100 * network.mean:.1f}{shots_of(network)}",
            f"{100 * effects.mean:.1f}{shots_of(effects)}",
            f"{100 * pair['diff']:+.1f} ({low:+.1f} to {high:+.1f}){'' if pair['standing'] != 'within' else ', noise'}",
            f"{100 * alone.mean:.1f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def one(records: Sequence[WayRecord], arm: str) -> WayRecord:
    (found,) = [
        record for record in records if record.arm == arm and record.shots == "best"
    ]
    return found


def best_named(records: Sequence[WayRecord], arms: Sequence[str]) -> WayRecord:
    """The one of some arms that training and dev items find best; tasks without labels have no calibrated form."""
    there = {record.arm for record in records}
    return max(
        (one(records, arm) for arm in arms if arm in there),
        key=lambda record: record.expected,
    )


def shots_of(record: WayRecord) -> str:
    """The number of demonstrations it shows and whether its answers are calibrated, in brackets."""
    said = [shots_of_setting(record.setting) or "0"]
    if record.setting.endswith("calibrated"):
        said.append("cal.")
    return f" ({', '.join(said)})"
