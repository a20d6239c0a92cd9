"""The distribution of any reward: by hand on RL data, from a store, and with everything that cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_world import TinyRun

from leverplus.cli.main import main
from leverplus.doctor.spread import measure_spread, reward_of
from leverplus.errors import RecipeError

sys.path.insert(0, str(Path(__file__).parent.parent / "legacy"))
from legacy_files import rl_global


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rl.json"
    path.write_text(json.dumps(rl_global()))
    return path


def test_rewards_of_rl_data_are_those_by_hand(file: Path) -> None:
    """Accuracies 1, 0.6, 0 and 0, 1; twice correctness and once accuracy: 3, 2.6, 0 and 0, 3."""
    found = dict(measure_spread(file, reward_of("hard_plus_soft", ["hard_weight=2"])).rows())
    assert (found["groups"], found["sequences"], found["distinct values"]) == (2, 5, 3)
    assert found["mean"] == pytest.approx(8.6 / 5)
    assert found["gap: least right - best wrong"] == pytest.approx(2.6)
    three = (((3 - 5.6 / 3) ** 2 + (2.6 - 5.6 / 3) ** 2 + (5.6 / 3) ** 2) / 2) ** 0.5
    assert found["mean deviation inside a group (n - 1)"] == pytest.approx((three + 4.5**0.5) / 2)
    assert found["groups without spread"] == 0


def test_a_reward_without_spread_says_so(file: Path) -> None:
    found = dict(measure_spread(file, reward_of("hard_only", ["hard_weight=0"])).rows())
    assert found["share of groups without spread"] == 1.0


def test_every_member_is_in_one_bin(file: Path) -> None:
    spread = measure_spread(file, reward_of("soft_only", []))
    bins = spread.histogram()
    assert sum(right for *_, right, _ in bins) == 3
    assert sum(wrong for *_, wrong in bins) == 2


def test_a_store_and_its_files(tiny_run: TinyRun, tmp_path: Path, capsys: Any) -> None:
    table, page = tmp_path / "reward.csv", tmp_path / "reward.html"
    words = ["doctor", str(tiny_run.store), "--reward", "gt_prob", "--csv", str(table), "--html", str(page)]
    assert main(words) == 0
    assert "mean deviation inside a group" in capsys.readouterr().out
    assert table.read_text().startswith("measure,value\ngroups,")
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--reward", "hard_plus_sof"], 1, "did you mean 'hard_plus_soft'?"),
        (["--weights", "hard_weight=2"], 2, "add --reward MODE"),
        (["--reward", "hard_only", "--weights", "hard_weigth=2"], 1, "did you mean 'reward.hard_weight'?"),
        (["--reward", "choice_prob"], 1, "labels were not weighed"),
    ],
)
def test_what_cannot_be_is_a_sentence(file: Path, capsys: Any, words: list[str], code: int, said: str) -> None:
    assert main(["doctor", str(file), *words]) == code
    assert said in capsys.readouterr().err


def test_weights_are_checked_as_in_a_recipe() -> None:
    with pytest.raises(RecipeError, match="must be a number"):
        reward_of("hard_plus_soft", ["hard_weight=many"])
