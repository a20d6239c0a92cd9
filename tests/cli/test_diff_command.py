"""`lever diff`: settings of two recipes, weights of two checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from leverplus.cli.main import main
from leverplus.learn.checkpoint import save_checkpoint
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig

DIMS = {"image": 4, "text": 4, "answer": 4}


def checkpoint(folder: Path, *, shift: float = 0.0, hidden: int = 8) -> str:
    policy = build_policy(PolicyConfig(hidden=hidden), DIMS, seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(shift)
    save_checkpoint(folder, policy)
    return str(folder)


def test_settings_of_two_recipes_are_listed_with_both_values(capsys) -> None:
    assert main(["diff", "plan7_1", "plan7_2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert [row["key"] for row in rows] == ["grpo.kl_beta"], (
        "the two plans differ in a weight that had no effect"
    )
    assert main(["diff", "world", "world"]) == 0
    assert "0 settings differ between world and world." in capsys.readouterr().out


def test_weights_of_two_checkpoints_are_subtracted_by_part(tmp_path, capsys) -> None:
    first, second = (
        checkpoint(tmp_path / "a"),
        checkpoint(tmp_path / "b", shift=0.00047),
    )
    assert main(["diff", first, second, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["weights"]
    assert found["all"]["mean"] == pytest.approx(0.00047, rel=1e-2)
    assert found["all"]["largest"] == pytest.approx(0.00047, rel=1e-2)
    policy = build_policy(PolicyConfig(hidden=8), DIMS, seed=1)
    assert found["all"]["weights"] == sum(
        value.numel() for value in policy.state_dict().values()
    )
    assert {"projections", "attention"} <= set(found)
    assert main(["diff", first, second]) == 0
    assert "mean |change|" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("second", "words"),
    [("other", "other shapes"), ("nowhere", "there is no run, recipe")],
)
def test_what_cannot_be_compared_is_one_sentence(
    tmp_path, capsys, second, words
) -> None:
    checkpoint(tmp_path / "other", hidden=12)
    assert main(["diff", checkpoint(tmp_path / "a"), str(tmp_path / second)]) == 1
    assert words in capsys.readouterr().err


def test_a_recipe_and_a_checkpoint_have_nothing_in_common(tmp_path, capsys) -> None:
    assert main(["diff", "world", checkpoint(tmp_path / "a")]) == 2
    assert "name two runs or recipes, or two checkpoints" in capsys.readouterr().err
