"""Logs as libraries print them, with all that stands around the numbers: the planted cause is named first."""

from __future__ import annotations

from pathlib import Path

import pytest
from library_logs import LOGS, text

from leverplus.doctor.examine import examine
from leverplus.doctor.findings import INFO
from leverplus.doctor.logs.names import user_names
from leverplus.doctor.read import read_target
from leverplus.errors import DataError


@pytest.mark.parametrize("name", LOGS)
def test_the_planted_cause_is_named_first(tmp_path: Path, name: str) -> None:
    planted = LOGS[name]
    record = read_target(planted.write(tmp_path), chosen=user_names(planted.names))
    found = [finding.code for finding in examine(record) if finding.severity != INFO]
    named = found[0] if found else ""
    assert named in planted.named or not (named or planted.named), found


def test_a_qualified_loss_is_not_the_loss_of_the_training(tmp_path: Path) -> None:
    lines = [f"step {n} | auxiliary loss: {n}.0 | the loss: 2.{n} | balance loss: 7.0" for n in range(1, 8)]
    record = read_target(text(tmp_path / "log.txt", lines))
    assert [line.values for line in record.series[0].epochs] == [{"loss/total": float(f"2.{n}")} for n in range(1, 8)]


def test_a_line_of_pairs_goes_on_with_the_step_above_and_other_lines_do_not(tmp_path: Path) -> None:
    lines = []
    for n in range(1, 7):
        lines += [f"Step: {n} | Actor Loss: 0.{n}", f"reward: 1.{n} | actor loss: 9.0", "a note with reward 5 in it"]
    record = read_target(text(tmp_path / "log.txt", lines))
    assert [line.values for line in record.series[0].epochs] == [
        {"loss/pg": float(f"0.{n}"), "reward": float(f"1.{n}")} for n in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("cells", "reward"),
    [("0,25;1,5", 0.25), ("1,234;0,5", 1.234), ("1,234;2,345", None), ("0.25;1", 0.25)],
    ids=["decimal commas", "one cell tells for all", "thousands are no decimals", "points"],
)
def test_decimal_commas_are_known_by_a_comma_that_marks_no_thousands(tmp_path, cells, reward) -> None:
    path = text(tmp_path / "lauf.csv", ["step;reward;kl", *(f"{n};{cells}" for n in range(1, 7))])
    if reward is None:
        with pytest.raises(DataError, match="no metric was recognised"):
            read_target(path)
        return
    assert {line.values["reward"] for line in read_target(path).series[0].epochs} == {reward}


def test_runs_of_one_exported_chart_are_apart_and_one_run_with_several_metrics_is_one(tmp_path: Path) -> None:
    several = [
        "Step,a - 1 - eval/accuracy,b - eval/accuracy",
        *(f"{n},0.{n},{'' if n % 2 else 0.5}" for n in range(1, 9)),
    ]
    record = read_target(text(tmp_path / "several.csv", several))
    assert [(own.label, len(own.epochs)) for own in record.series] == [("a - 1", 8), ("b", 4)]
    one = ["Step,a - train/kl,a - train/reward", *(f"{n},0.{n},0.5" for n in range(1, 9))]
    assert [own.label for own in read_target(text(tmp_path / "one.csv", one)).series] == [""]


def test_a_column_of_steps_may_stand_behind_the_loss_but_not_behind_the_name_of_a_run(tmp_path: Path) -> None:
    card = ["| Training Loss | Epoch | Step | Validation Loss |", "|---|---|---|---|", "| No log | 0.5 | 50 | 2.1 |"]
    card += [f"| 1.{9 - n} | {n} | {100 * n} | 2.{n} |" for n in range(1, 7)]
    record = read_target(text(tmp_path / "README.md", card))
    assert [line.epoch for line in record.series[0].epochs] == [50, *range(100, 700, 100)]
    assert record.series[0].epochs[0].values == {"val/loss": 2.1}
    runs = ["| Run | Epoch | Reward |", "|---|---|---|", *(f"| plan {n} | {n} | 0.{n} |" for n in range(1, 7))]
    with pytest.raises(DataError, match="no training table, log line or result was recognised"):
        read_target(text(tmp_path / "report.md", runs))


def test_settings_that_are_printed_as_a_dict_over_several_lines_are_no_step(tmp_path: Path) -> None:
    settings = ["{'learning_rate': 1e-06,", " 'epochs': 3,", " 'kl_coef': 0.05}"]
    steps = [f"step {n}: reward 0.{n}, kl 0.0{n}" for n in range(1, 9)]
    record = read_target(text(tmp_path / "train.log", [*settings, *steps]))
    assert len(record.series[0].epochs) == 8
