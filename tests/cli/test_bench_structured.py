"""`lever bench structured` prints what the shipped records hold, and the page about them says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from leverplus.cli.main import main
from leverplus.data.rundir import shipped
from leverplus_lab.structured.records import Records
from leverplus_lab.structured.report import (
    as_markdown,
    pairs_as_markdown,
    reports_of,
    shots_as_markdown,
    sizes_as_markdown,
)
from leverplus_lab.structured.shown import laid_open, named, read_folder

RECORDS = shipped("tables:structured/records")
PAGE = Path(__file__).parents[2] / "docs" / "structured-figures.md"


@pytest.fixture(scope="module")
def read() -> list[Records]:
    return read_folder(RECORDS)


def test_the_accuracies_are_those_of_the_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "structured", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in found] == [
        *("Advising", "BANKING77", "GeoQuery", "GeoQuery", "MTOP", "NL2Bash")
    ]
    (mtop,) = [row for row in found if row["task"] == "MTOP"]
    table = pq.read_table(RECORDS / "mtop-smollm2-135m.parquet")
    for row in mtop["arms"]:
        own = table.filter(
            (pc.field("split") == "split")
            & (pc.field("part") == "test")
            & (pc.field("arm") == row["arm"])
            & (pc.field("shots") == row["shots"])
        )
        assert len(own) == row["n"] == 995
        assert row["test"] == pytest.approx(pc.mean(own["accuracy"]).as_py(), abs=1e-6)


def test_one_task_is_laid_open_with_a_question_that_only_the_second_gets_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "structured"]) == 0
    out = capsys.readouterr().out
    written = [line for line in out.splitlines() if line.startswith("  model writes")]
    (right,) = [line for line in out.splitlines() if line.startswith("  right answer")]
    answers = [line.removeprefix("  model writes").strip() for line in written]
    expected = right.removeprefix("  right answer").strip()
    assert answers[1] == expected != answers[0]
    assert "GeoQuery by query" in out


def test_texts_that_may_not_be_passed_on_are_not_looked_for(
    read: list[Records],
) -> None:
    records = named(read, "geoquery")
    assert [laid_open(records, report) for report in reports_of(records)] == [[], []]


def test_the_page_has_the_tables_that_the_records_give(read: list[Records]) -> None:
    reports = []
    for records in read:
        reports += reports_of(records)
    tables = as_markdown(reports) + pairs_as_markdown(reports)
    tables += shots_as_markdown(reports) + sizes_as_markdown(read)
    page = PAGE.read_text(encoding="utf-8").splitlines()
    lines = tables.splitlines()
    assert len(lines) > 120
    assert [line for line in lines if line not in page] == []


def test_the_first_run_says_what_the_command_prints(read: list[Records]) -> None:
    (report,) = reports_of(named(read, "MTOP"))
    own, simple = report.advised, report.simple
    pair, copied = report.of(simple), report.best["copy_nearest"]
    against = report.of(copied)
    assert pair is not None
    assert against is not None
    assert against.found.within_noise
    assert (own.label, simple.label) == ("by_answer (16)", "hybrid (16)")
    page = " ".join((PAGE.parent / "first_run.md").read_text("utf-8").split())
    means = [f"{100 * way.test_mean:.1f}" for way in (simple, own, copied)]
    simply, ranked, alone = means
    assert f"{simply} % on {len(own.test)} test questions" in page
    gain, _, interval = pair.difference.partition(" ")
    assert f"shape {ranked} %: {gain} points {interval}" in page
    assert f"has {alone} %, which cannot be told from {ranked}" in page


def test_what_the_command_does_not_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "structured", "--quick"]) == 2
    assert "`lever bench structured` has no --quick" in capsys.readouterr().err
    assert main(["bench", "real", "--task", "MTOP"]) == 2
    assert "`lever bench real` has no --task" in capsys.readouterr().err
    assert main(["bench", "structured", "--task", "mtpo"]) == 2
    assert "there are records of Advising, BANKING77" in capsys.readouterr().err
    assert main(["bench", "structured", "--records", str(tmp_path)]) == 1
    assert "holds no records of arms" in capsys.readouterr().err
