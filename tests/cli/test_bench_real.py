"""`lever bench real` makes its table of the records that are shipped, and the page holds what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leverplus.cli.main import main
from leverplus.data.rundir import shipped
from leverplus_lab.real import read_file

PAGE = Path(__file__).parents[2] / "docs" / "recorded.md"


@pytest.mark.slow
def test_every_arm_of_every_table_is_printed_from_item_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "real", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = [
        record
        for path in sorted(shipped("tables:real").glob("*.parquet"))
        for record in read_file(path)
    ]
    assert len(found["arms"]) == len(kept)
    for row, record in zip(
        sorted(
            found["arms"], key=lambda r: (r["task"], r["model"], r["arm"], r["shots"])
        ),
        sorted(kept, key=lambda r: (r.task, r.model, r.arm, r.shots)),
        strict=True,
    ):
        assert row["accuracy"] == pytest.approx(float(np.nanmean(record.accuracy)))
    for row in found["comparisons"]:
        assert row["p_adjusted"] >= row["p_value"]
        assert row["standing"] in ("above", "within", "below")


@pytest.mark.slow
def test_the_page_says_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "real"]) == 0
    out = capsys.readouterr().out
    page = PAGE.read_text(encoding="utf-8")
    tables = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(tables) > 150
    assert [line for line in tables if line not in page] == []
    shares = [
        line
        for line in out.splitlines()
        if ", against the " in line and not line.startswith("|")
    ]
    assert len(shares) == 9
    assert [line for line in shares if f"- {line}\n" not in page] == []


def test_options_of_the_other_table_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "real", "--quick"]) == 2
    assert "`lever bench real` has no --quick" in capsys.readouterr().err
    assert main(["bench", "plans", "--records", "x"]) == 2
    assert "`lever bench plans` has no --records" in capsys.readouterr().err
