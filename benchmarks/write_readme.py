"""The table of README.md, from the records that come with the package; `make pages` writes it.

One row a task: those whose answers have structure from the records of `lever bench structured`, the others from those
of `lever bench real`, with the largest model that was asked. Settings were chosen before test was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leverplus.data.rundir import shipped
from leverplus.evaluate.advice import is_deployable
from leverplus.evaluate.stats import Comparison, compare
from leverplus_lab.real import WayRecord, best_of, read_records, shots_of_setting
from leverplus_lab.structured.report import (
    WITHOUT_MODEL,
    Setting,
    SplitReport,
    reports_of,
)
from leverplus_lab.structured.shown import read_folder

README = Path(__file__).resolve().parents[1] / "README.md"
MARKS = re.compile(r"<!-- records -->.*<!-- /records -->", re.DOTALL)
STRUCTURED = {
    "Advising": "text-to-SQL",
    "BANKING77": "77 labels, written",
    "GeoQuery": "text-to-SQL",
    "GeoQuery by query": "new SQL",
    "MTOP": "parses",
    "NL2Bash": "commands",
}
OTHERS = {
    "agnews": "AG News, 4 labels",
    "aokvqa": "A-OKVQA, short answers",
    "sst2": "SST-2, 2 labels",
    "trec": "TREC, 6 labels",
}
LARGEST = "qwen2.5-coder-1.5b"
OURS = "label_rank"
"""The way of choosing of the other tasks that needs no call to learn."""
CALLS = ("0", "1")
"""None of these ways learns from the model's answers; each asks one prompt a question."""
LEARNT_FROM = 64
"""Training questions whose answers `fused` weighs, list by list."""
FUSED = Path(__file__).parent / "real" / "fused-okvqa.parquet"
"""Lists of OK-VQA and their answers in one, by question; `benchmarks/fused.py` writes it."""
LISTS = (
    "nearest by both",
    "nearest by mixed",
    "nearest by question",
    "MMR by question",
    "MMR by mixed",
)
NO_MODEL = ("label_vote", "label_regression")
HEAD = (
    "task (test questions)",
    "best simple way",
    "without a model",
    "by likely answer",
    "calls to learn",
    "calls a question",
    "gain (95 %)",
)


def readme() -> str:
    """README.md with its table written anew."""
    rows = [HEAD, ["---"] * len(HEAD), *structured_rows(), fused_row(), *other_rows()]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    table = "\n".join(["<!-- records -->", *lines, "<!-- /records -->"])
    return MARKS.sub(lambda _: table, README.read_text(encoding="utf-8"))


def structured_reports() -> list[SplitReport]:
    """What the records of `lever bench structured` say, the largest gains first."""
    found = []
    for records in read_folder(shipped("tables:structured/records")):
        found += reports_of(records)
    found.sort(key=lambda own: own.simple.test_mean - own.advised.test_mean)
    return found


def structured_rows() -> Iterator[list[str]]:
    """One row a task and split whose answers have structure."""
    for report in structured_reports():
        pair, copied = report.of(report.simple), report.best[WITHOUT_MODEL]
        assert pair is not None
        name = f"{report.task_name}, {STRUCTURED[report.task_name]}"
        yield [
            f"{name} ({len(report.simple.test):,})",
            _setting(report.simple),
            _percent(copied.test_mean),
            _setting(report.advised),
            *CALLS,
            _difference(pair.found),
        ]


def other_rows() -> Iterator[list[str]]:
    """One row a task with labels or short answers, of the largest model."""
    tables: dict[str, list[WayRecord]] = {}
    for record in read_records(shipped("tables:real")):
        if record.model == LARGEST and record.shots == "best":
            tables.setdefault(record.task, []).append(record)
    rows = []
    for task, name in OTHERS.items():
        records = tables[task]
        simple, own = best_simple(records), one(records, OURS)
        alone = max((one(records, name) for name in NO_MODEL), key=_expected)
        asked = asked_all((simple, own, alone))
        found = paired(own, simple, asked)
        cells = [f"{name} ({found.n:,})", _way(simple, asked)]
        cells += [_percent(float(alone.accuracy[asked].mean())), _way(own, asked)]
        rows.append((found.diff, [*cells, *CALLS, _difference(found)]))
    for _, cells in sorted(rows, reverse=True):
        yield cells


def fused_row() -> list[str]:
    """OK-VQA: five lists of 16 fused with what labels predict, against the list that is best on test itself."""
    import pyarrow.parquet as pq

    table = pq.read_table(FUSED)
    scores = {name: table[name].to_numpy() for name in table.column_names[2:]}
    simple = max((f"{name} 16" for name in LISTS), key=lambda name: scores[name].mean())
    own = scores["fused, 5 lists"]
    found = compare(own, scores[simple], clusters=table["group"].to_pylist())
    alone = max(
        scores[name].mean() for name in ("label regression", "label vote of 40")
    )
    arm = "mmr" if simple.startswith("MMR") else "nearest"
    cells = [f"OK-VQA, short answers ({found.n:,})"]
    cells += [f"{_percent(scores[simple].mean())} {arm} (16)", _percent(alone)]
    cells += [f"{_percent(own.mean())} fused (16)", str(LEARNT_FROM * 5), "5"]
    return [*cells, _difference(found)]


def best_simple(records: Sequence[WayRecord]) -> WayRecord:
    """The best prompt without training on train and dev, of those that can be deployed."""
    usable = [record for record in records if is_deployable(record.arm)]
    found = best_of(usable, ("free",), "best")
    assert found is not None
    return found


def one(records: Sequence[WayRecord], arm: str) -> WayRecord:
    """The record of one arm."""
    (found,) = [record for record in records if record.arm == arm]
    return found


def asked_all(records: Sequence[WayRecord]) -> NDArray[np.bool_]:
    """The questions that all of these were asked."""
    asked = np.ones(len(records[0].items), bool)
    for record in records:
        asked &= ~np.isnan(record.accuracy)
    return asked


def paired(own: WayRecord, rival: WayRecord, asked: NDArray[np.bool_]) -> Comparison:
    """The difference on some questions; pictures are drawn whole."""
    groups = np.asarray(own.groups)[asked].tolist()
    return compare(own.accuracy[asked], rival.accuracy[asked], clusters=groups)


def _expected(record: WayRecord) -> float:
    return record.expected


def _way(record: WayRecord, asked: NDArray[np.bool_]) -> str:
    shots = shots_of_setting(record.setting)
    return f"{_percent(float(record.accuracy[asked].mean()))} {record.arm} ({shots})"


def _setting(setting: Setting) -> str:
    return f"{_percent(setting.test_mean)} {setting.label}"


def _difference(found: Comparison) -> str:
    low, high = (f"{100 * bound:+.1f}" for bound in found.ci95)
    luck = ", could be luck" if found.within_noise else ""
    return f"{100 * found.diff:+.1f} ({low} to {high}){luck}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
