"""Causes are found in a log alone: our own without settings, and numbers printed in a text."""

from __future__ import annotations

import json
import math
import random

import pytest

from leverplus.doctor.curves import Curve
from leverplus.doctor.examine import examine
from leverplus.doctor.logs.find import record_of
from leverplus.doctor.logs.names import LogLine
from leverplus.doctor.read import read_target


def own_log(tmp_path, stage="grpo", **curves):
    """A log.jsonl of this package, an epoch a line."""
    path = tmp_path / "log.jsonl"
    rows = [dict(zip(curves, values, strict=True)) for values in zip(*curves.values(), strict=True)]
    lines = [
        {"stage": stage, "epoch": n, **{name.replace("__", "/"): v for name, v in row.items()}}
        for n, row in enumerate(rows, start=1)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return [finding.code for finding in examine(read_target(path)) if finding.severity != "info"]


@pytest.mark.parametrize("stage", ["sft", "rce", "grpo"])
def test_a_stage_that_gets_worse_on_held_out_groups_overfits(tmp_path, stage):
    fitted = [0.40, 0.50, 0.60, 0.68, 0.75, 0.81, 0.86, 0.90]
    held = [0.40, 0.47, 0.52, 0.50, 0.46, 0.42, 0.39, 0.36]
    assert own_log(tmp_path, stage, train__fit__group_reward=fitted, val__group_reward=held)[0] == "overfits"
    assert own_log(tmp_path, stage, train__fit__group_reward=fitted, val__group_reward=fitted) == []


def test_a_held_out_loss_that_rises_with_a_policy_gradient_is_no_overfitting(tmp_path):
    found = own_log(tmp_path, train__fit__loss=[5, 4, 3, 2, 1], val__loss=[5, 5.5, 6, 7, 8], val__reward=[0.5] * 5)
    assert "overfits" not in found


def test_a_kl_that_explodes_is_named_first_without_settings(tmp_path):
    kl = [0.04, 0.3, 1.1, 4.0, 9.0, 18.0, 29.0]
    assert own_log(tmp_path, train__kl=kl, val__reward=[0.6, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])[0] == "kl_explodes"


def test_entropy_that_collapses_late_is_found(tmp_path):
    assert own_log(tmp_path, train__entropy__norm=[0.6, 0.55, 0.5, 0.5, 0.45, 0.4, 0.03, 0.01]) == ["entropy_collapsed"]


def test_the_same_few_demonstrations_for_every_probe_are_found_in_the_log(tmp_path):
    assert own_log(tmp_path, train__picks__unique_demos=[40, 12, 2, 2]) == ["query_ignored"]
    assert own_log(tmp_path, train__picks__unique_demos=[40, 38, 35, 36]) == []


def test_centred_advantages_of_a_training_that_learns_are_no_error(tmp_path):
    curves = {"train__adv__std": [0.031] * 6, "train__frac_reward_zero_std": [0.05] * 6}
    assert own_log(tmp_path, **curves, val__reward=[0.3, 0.36, 0.41, 0.45, 0.5, 0.54]) == []
    assert "advantage_std_tiny" in own_log(tmp_path, train__adv__std=[0.031] * 6, val__reward=[0.3] * 6)


def test_printed_seeds_are_held_against_the_printed_gain(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("Results on 500 samples.\n\nseed 1: 52.4%\nseed 2: 47.9%\nseed 3: 50.6%\n\nAverage gain: 1.2%\n")
    found = {finding.code: finding for finding in examine(read_target(path))}
    assert found["seeds_outweigh_gain"].evidence["runs"] == 3
    assert found["seeds_outweigh_gain"].evidence["gain"] == pytest.approx(0.012)


def test_rows_before_and_after_a_change_are_judged(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("- **200 samples (before)**: shot_num=1: 57.3%, shot_num=2: 50.2%\n"
                    "- **200 samples (after)**: shot_num=1: 51.6%, shot_num=2: 48.0%\n")  # fmt: skip
    (noise,) = [f for f in examine(read_target(path)) if f.code == "difference_inside_noise"]
    assert (noise.evidence["n"], noise.evidence["settled"]) == (200, 0)
    assert noise.evidence["largest_diff"] == pytest.approx(-0.057)


def test_a_straight_line_has_no_noise_and_a_zigzag_has():
    line = Curve(tuple(0.1 * n for n in range(20)))
    assert line.noise == pytest.approx(0.0, abs=1e-12)
    assert line.rises
    zigzag = Curve(tuple(0.5 + 0.2 * (-1) ** n for n in range(20)))
    assert zigzag.noise == pytest.approx(1.4826 * 0.8 / 6**0.5)  # |a - 2b + c| = 0.8 everywhere
    assert not zigzag.moves


def test_noise_of_few_held_out_items_is_not_called_overfitting() -> None:
    """Healthy trainings whose accuracy is that of 100 items: its best value is luck, and the last lies below it."""
    luck = random.Random(99)
    named = []
    for _ in range(100):
        lines = []
        for step in range(100):
            right = 0.3 + 0.25 * (1.0 - math.exp(-0.06 * step))
            values: dict[str, float | None] = {"step": float(step), "reward": right + luck.gauss(0.05, 0.03)}
            if step % 2 == 0:
                values["eval/accuracy"] = sum(luck.random() < right for _ in range(100)) / 100.0
            lines.append(LogLine(values))
        found = examine(record_of({"": lines}, "healthy.csv", {}))
        named += [finding.code for finding in found if finding.severity != "info"]
    assert named == []


def test_the_middle_of_a_long_curve_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for at every step, it took nine minutes on a log of 60,000 lines."""
    from leverplus.doctor import curves

    asked: list[int] = []
    monkeypatch.setattr(curves, "median", lambda values: asked.append(len(values)) or 1.0)
    curve = curves.Curve(tuple(float(step % 7) for step in range(500)))
    assert sum(value > curve.middle for value in curve.values) > 0
    assert asked == [500]
