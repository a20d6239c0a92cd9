"""Every stage of the catalog keeps the contract, and the check finds one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stage_contract import check_stage

from leverplus import catalog
from leverplus.learn.data.batch import GroupBatch
from leverplus.learn.maths.losses import LossParts
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import SECTIONS, StageConfig
from leverplus.learn.stages import Progress, Sft

SETTINGS: dict[str, dict[str, Any]] = {
    "sft": {"labels": "weighted"},
    # the temperature falls over all planned steps, of which a shorter run plans fewer
    "rce": {"temperature_start": 0.2, "temperature_end": 0.2},
    "grpo": {
        "trust_kl": 0.0,
        "kl_beta": 0.001,
        "inner_epochs": 2,
        "beta_rule": "epoch",
    },
}


def config_of(name: str) -> StageConfig:
    section = SECTIONS.get(name, SECTIONS["sft"])
    return section(batch_size=10, keep="last", lr=3e-3, **SETTINGS.get(name, {}))


@pytest.mark.parametrize("name", sorted(catalog.STAGES))
def test_every_stage_keeps_the_contract(
    name: str, planted: Any, tmp_path: Path
) -> None:
    check_stage(name, config_of(name), planted, tmp_path)


class DrawsFreely(Sft):
    """Adds noise from the global generator, which a resumed run finds elsewhere."""

    dropout = False

    def loss(self, policy: Policy, batch: GroupBatch, progress: Progress) -> LossParts:
        found = super().loss(policy, batch, progress)
        return LossParts(found.total * (1.0 + torch.rand(())), found.parts)


class Forgets(Sft):
    """Counts its steps where no state is kept."""

    def begin(self, policy: Policy) -> None:
        self.seen = 0

    def loss(self, policy: Policy, batch: GroupBatch, progress: Progress) -> LossParts:
        self.seen += 1
        found = super().loss(policy, batch, progress)
        return LossParts(found.total * self.seen, found.parts)


class Idle(Sft):
    """Learns nothing."""

    def loss(self, policy: Policy, batch: GroupBatch, progress: Progress) -> LossParts:
        found = super().loss(policy, batch, progress)
        return LossParts(found.total.detach(), {})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (DrawsFreely, "the same weights"),
        (Forgets, "the same weights"),
        (Idle, "moves the selector"),
    ],
)
def test_the_check_finds_a_stage_that_breaks_it(
    broken: type[Sft],
    said: str,
    planted: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(catalog.STAGES, "sft", f"{__name__}:{broken.__name__}")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=said):
        check_stage("sft", config_of("sft"), planted, tmp_path)
