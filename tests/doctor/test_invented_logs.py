"""Short logs that people print, in twenty-one forms: the planted cause is named first, and nothing in healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from invented_logs import CASES, FORMS, NAMED

from leverplus.doctor.examine import examine
from leverplus.doctor.findings import INFO
from leverplus.doctor.read import read_target


def first_words(path: Path) -> list[str]:
    return [finding.code for finding in examine(read_target(path)) if finding.severity != INFO]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_the_planted_cause_is_named_first(tmp_path: Path, form: str, case: str) -> None:
    found = first_words(FORMS[form](CASES[case], tmp_path / case))
    named = found[0] if found else ""
    assert named in NAMED[case] or not (named or NAMED[case]), found


@pytest.mark.parametrize(
    ("said", "row"),
    [
        (
            "Resuming from checkpoint-600, optimizer state not found",
            "step {n}: reward {reward:.3f}, grad norm {norm:.2f}",
        ),
        ("从断点恢复训练", "第{n}步：奖励 {reward:.3f}，梯度范数 {norm:.2f}"),
    ],
)
def test_a_resumption_that_lost_its_optimiser_is_told_in_running_text(tmp_path: Path, said: str, row: str) -> None:
    lines = [row.format(n=n, reward=0.3 + 0.01 * n, norm=0.8 + 0.02 * (-1) ** n) for n in range(1, 13)]
    after = [(13, 0.12, 24.0), (14, 0.2, 11.0), (15, 0.31, 3.0)]
    after += [(n, 0.3 + 0.01 * n, 0.8 + 0.02 * (-1) ** n) for n in range(16, 25)]
    lines += [said, *(row.format(n=n, reward=reward, norm=norm) for n, reward, norm in after)]
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert first_words(path)[0] == "resumed_without_optimiser"


def test_a_log_that_begins_with_blanks_is_not_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "frame.txt"
    path.write_text(" " * 40 + "epoch    reward\n" + "".join(f"{n:>45}    {0.3 + 0.03 * n:.2f}\n" for n in range(1, 9)))
    record = read_target(path)
    assert [line.epoch for line in record.series[0].epochs] == list(range(1, 9))


@pytest.mark.parametrize("case", ["kl_explosion", "lr_tiny", "healthy"])
def test_a_report_that_compares_results_stays_a_report(tmp_path: Path, case: str) -> None:
    """Accuracies of two runs by shots beside a table of epochs: the results are read too."""
    path = FORMS["markdown"](CASES[case], tmp_path / case)
    shown = "\n## Results (800 samples)\n\n| Shot | Baseline | New |\n|---|---|---|\n| 1 | 48.0% | 50.1% |\n"
    path.write_text(path.read_text(encoding="utf-8") + shown, encoding="utf-8")
    record = read_target(path)
    assert record.published is not None
    assert [arm.name for arm in record.published.arms] == ["Baseline", "New"]
