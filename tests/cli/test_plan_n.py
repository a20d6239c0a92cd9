"""`lever plan-n` says how many items a claim needs."""

from __future__ import annotations

import json

import pytest

from leverplus.cli.main import main
from leverplus.evaluate.stats import Changes, plan_n


def test_it_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-n", "--effect", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one, ten = plan_n(0.05, Changes(0.2)), plan_n(0.05, Changes(0.2), alpha=0.005)
    asked = {
        "effect": 0.05,
        "discordance": 0.2,
        "power": 0.8,
        "alpha": 0.05,
        "comparisons": 10,
    }
    assert found == {**asked, "n": one, "n_corrected": ten}
    assert one < ten


def test_one_comparison_needs_no_correction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-n", "--effect", "0.05", "--comparisons", "1"]) == 0
    assert "corrected" not in capsys.readouterr().out
    assert main(["plan-n", "--effect", "0.05"]) == 0
    assert (
        f"{plan_n(0.05, Changes(0.2), alpha=0.005):,} items where it is one of 10"
        in capsys.readouterr().out
    )


def test_fewer_items_are_needed_where_fewer_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    needed = []
    for share in ("0.1", "0.3"):
        assert (
            main(["plan-n", "--effect", "0.05", "--discordance", share, "--json"]) == 0
        )
        needed.append(json.loads(capsys.readouterr().out)["n"])
    assert needed[0] < needed[1]


def test_the_sentence_names_effect_power_and_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan-n", "--effect", "0.05", "--power", "0.9"]) == 0
    out = capsys.readouterr().out
    assert (
        f"{plan_n(0.05, Changes(0.2), power=0.9):,} items: a true difference of 5 points"
        in out
    )
    assert "90 % of the time" in out
    assert "if they differ on 30 %" in out


def test_a_large_effect_needs_as_many_differing_items(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan-n", "--effect", "0.4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["discordance"] == 0.4


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["--effect", "1.5"], "--effect 1.5"),
        (["--effect", "0"], "--effect 0"),
        (["--effect", "nan"], "--effect nan"),
        (
            ["--effect", "0.05", "--discordance", "0.01"],
            "differ on at least that share",
        ),
        (["--effect", "0.05", "--power", "1"], "--power 1"),
        (["--effect", "0.05", "--comparisons", "0"], "--comparisons 0"),
    ],
)
def test_values_that_mean_nothing_are_refused(
    arguments: list[str], phrase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-n", *arguments]) == 1
    captured = capsys.readouterr()
    assert phrase in captured.err
    assert captured.out == ""
