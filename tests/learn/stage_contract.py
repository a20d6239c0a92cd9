"""What every training stage must hold, whoever wrote it: `check_stage` goes over all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import RewardConfig, StageConfig

ALTERED = 7
"""Another seed than the one that all else is trained with."""


@dataclass(frozen=True)
class Trial:
    """A stage with its settings, and what it is tried on."""

    name: str
    config: StageConfig
    planted: Any
    rows: list[Row]

    def fresh(self) -> Policy:
        policy: Policy = self.planted.policy(seed=1, dropout=0.2, state="gru")
        return policy

    def trained(
        self, folder: Path, *, seed: int = 3, epochs: int = 4
    ) -> tuple[Policy, str]:
        """A selector after the stage, and the log; the global generator stands elsewhere every time."""
        torch.manual_seed(epochs)
        policy, config = self.fresh(), replace(self.config, epochs=epochs)
        table, judge = self.planted.table, self.planted.evaluate
        inputs = StageInputs(self.name, config, table, seed, folder, judge=judge)
        run_stage(policy, FixedRows(self.rows), inputs)
        return policy, (folder / "log.jsonl").read_text()


def check_stage(name: str, config: StageConfig, planted: Any, folder: Path) -> None:
    """Raises AssertionError where a stage breaks a promise; `planted` is the small world of conftest."""
    config = replace(config, schedule="constant", warmup=0.0)
    rows = rows_from_groups(planted.groups(4, (1, 2)), planted.table, RewardConfig())
    trial = Trial(name, config, planted, rows)
    whole, log = trial.trained(folder / "whole")
    assert moved(whole, trial.fresh()), "a stage moves the selector"
    # a run that was stopped after its first epoch ends as one that was not, to the last bit
    trial.trained(folder / "cut", epochs=1)
    resumed, resumed_log = trial.trained(folder / "cut")
    assert not moved(whole, resumed), "a resumed run ends with the same weights"
    assert resumed_log == log, "a resumed run writes the same log"
    check_files(name, whole, folder / "whole")
    other, _ = trial.trained(folder / "other", seed=ALTERED)
    assert moved(whole, other), "another seed draws another order and dropout"
    check_freezing(trial)


def check_files(name: str, trained: Policy, folder: Path) -> None:
    """A checkpoint for every epoch, one of what the stage hands on, and a line of the log for each epoch."""
    checkpoints = folder / "checkpoints"
    found = sorted(path.name for path in checkpoints.iterdir())
    wanted = [f"{name}-epoch{number:03d}" for number in range(1, 5)]
    assert found == [name, *wanted], "a checkpoint an epoch, and what is handed on"
    assert not moved(trained, load_checkpoint(checkpoints / name)[0])
    lines = (folder / "log.jsonl").read_text().splitlines()
    told = [(json.loads(line)["stage"], json.loads(line)["epoch"]) for line in lines]
    assert told == [(name, number) for number in range(1, 5)]


def check_freezing(trial: Trial) -> None:
    """What is frozen stays, whatever the loss is."""
    policy = trial.fresh()
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    frozen = policy.named_groups()["projections"]
    config = replace(trial.config, epochs=1, freeze=("projections",))
    inputs = StageInputs(trial.name, config, trial.planted.table)
    run_stage(policy, FixedRows(trial.rows), inputs)
    after = policy.state_dict()
    for key in frozen:
        assert torch.equal(before[key], after[key]), "what is frozen stays as it is"
    assert any(not torch.equal(before[key], after[key]) for key in before)


def moved(left: Policy, right: Policy) -> bool:
    """Whether two selectors have other weights."""
    own, other = left.state_dict(), right.state_dict()
    return any(not torch.equal(own[name], other[name]) for name in own)
