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


def test_a_tiny_learning_rate_is_an_error_once_the_stage_has_moved_nothing():
    values = {"train": {"stages": ["grpo"]}, "grpo": {"lr": 5e-6}, "score": {"dev_queries": 64}}

    def severity(moves, rewards):
        lines = [
            {"stage": "grpo", "epoch": epoch, "step": 10 * epoch, "train/update/param_rel": move, "val/reward": reward}
            for epoch, (move, reward) in enumerate(zip(moves, rewards, strict=True), start=1)
        ]
        (found,) = [f for f in epoch_findings(lines, values) if f.code == "learning_rate_tiny"]
        assert found.fix == {"set": {"grpo.lr": 2e-4}}
        return found.severity

    assert severity([], []) == "warning"  # nothing is known yet
    assert severity([1e-3], [0.5]) == "warning"
    assert severity([1e-3, 4e-4], [0.5, 0.5]) == "error"
    assert severity([1e-3, 4e-4], [0.5, 0.515]) == "error"  # a quarter of 0.5 / sqrt(64) is 0.0156
    assert severity([1e-3, 4e-4], [0.5, 0.517]) == "warning"
    assert severity([3e-3, 4e-4], [0.5, 0.5]) == "warning"
    assert {f.severity for f in preflight(values) if f.code == "learning_rate_tiny"} == {"warning"}


def test_applying_the_fix_of_the_first_error_again_and_again_mends_a_recipe_with_every_old_mistake(plant, tmp_path):
    legacy = {
        "behaviour": "sft",
        "reference": "sft",
        "kl": "k3_inverted",
        "beta_rule": "batch",
        "dropout_in_ratio": True,
        "lr": 5e-6,
        "top_k": [3, 5],
        "topk_before_advantage": True,
        "batch_size": 16,
        "epochs": 3,
    }
    changes: dict[str, dict[str, object]] = {"grpo": legacy}
    mended = []
    for attempt in range(12):
        made = plant(**changes)
        values = made.recipe.values()
        findings = preflight(values)
        if not any(finding.severity == "error" for finding in findings):
            findings = epoch_findings(RunLog(made.train(tmp_path / str(attempt)) / "log.jsonl").lines(), values)
        errors = [finding for finding in findings if finding.severity == "error"]
        if not errors:
            break
        assert errors[0].fix is not None, errors[0].code
        for key, value in errors[0].fix["set"].items():
            section, name = key.split(".")
            changes.setdefault(section, {})[name] = value
        mended.append(errors[0].code)
    assert errors == []
    assert len(mended) == len(set(mended)) >= 6
    assert changes["grpo"]["lr"] != 5e-6
