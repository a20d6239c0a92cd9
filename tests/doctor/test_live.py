"""The preflight measures what it judges, stops on errors, and epochs are judged as they come."""

from __future__ import annotations

import pytest

from leverplus.doctor.live import epoch_findings, preflight, refuse
from leverplus.errors import TrainingError
from leverplus.training.runlog import RunLog


def test_a_sick_recipe_is_refused_with_what_to_do(plant):
    findings = preflight(plant(grpo={"behaviour": "sft"}).recipe.values())
    with pytest.raises(TrainingError, match=r"stale_behaviour.*Refresh the proximal policy"):
        refuse(findings)


def test_epochs_are_judged_as_they_come(plant, tmp_path):
    made = plant(grpo={"lr": 1e-6})
    lines = RunLog(made.train(tmp_path) / "log.jsonl").lines()
    values = made.recipe.values()
    grpo = [line for line in lines if line["stage"] == "grpo"]
    early = {finding.code for finding in epoch_findings(lines[:1], values)}
    late = {finding.code for finding in epoch_findings(grpo, values)}
    assert "dead_updates" not in early
    assert {"learning_rate_tiny", "dead_updates", "identical_picks"} <= late
