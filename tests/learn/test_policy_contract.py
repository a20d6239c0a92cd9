"""Every named selector keeps the contract, and the check finds one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from policy_contract import check_policy
from torch import Tensor

from leverplus import catalog
from leverplus.learn.policies.base import Encoded, Features, State
from leverplus.learn.policies.pointer import PointerPolicy
from leverplus.learn.policies.settings import PolicyConfig


def small(name: str) -> PolicyConfig:
    config: PolicyConfig = catalog.load(catalog.POLICIES, name, "preset")
    heads = 2 if config.heads > 1 else 1
    return replace(config, hidden=16, heads=heads, topics=min(config.topics, 4))


@pytest.mark.parametrize("name", sorted(catalog.POLICIES))
def test_every_named_selector_keeps_the_contract(name: str, tmp_path: Path) -> None:
    check_policy(small(name), tmp_path)


class LooksAtPlaces(PointerPolicy):
    """Prefers what stands further behind in its pool."""

    def scores(self, encoded: Encoded, state: State) -> Tensor:
        scores = super().scores(encoded, state)
        return scores + torch.arange(scores.shape[-1]).to(scores.dtype)


class LooksAtOthers(PointerPolicy):
    """Reads the other queries of its batch."""

    def prepare(self, features: Features) -> Encoded:
        mean = {name: block.mean(0) for name, block in features.query.items()}
        query = {name: block + mean[name] for name, block in features.query.items()}
        return super().prepare(replace(features, query=query))


class KeepsNothing(PointerPolicy):
    """Scores by a number that no checkpoint holds."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.made = KeepsNothing.count = getattr(KeepsNothing, "count", 0) + 1

    def scores(self, encoded: Encoded, state: State) -> Tensor:
        return super().scores(encoded, state) * self.made


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (LooksAtPlaces, "order and padding"),
        (LooksAtOthers, "a batch of one"),
        (KeepsNothing, "scores the same"),
    ],
)
def test_the_check_finds_a_selector_that_breaks_it(
    broken: type[PointerPolicy],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(catalog.MODELS, "pointer", f"{__name__}:{broken.__name__}")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=said):
        check_policy(small("bi_encoder_gate"), tmp_path)
