"""`lever bench plans --quick` runs two recipes, goes on where it stopped, and writes its table twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.cli.main import main
from leverplus.data.rundir import read_json
from leverplus.run.recipe import find_recipe
from leverplus_lab.plans import PLANS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bench")
    assert (
        main(
            [
                "bench",
                "--quick",
                "--out",
                str(place / "runs"),
                "--store",
                str(place / "s.db"),
            ]
        )
        == 0
    )
    return place


def test_the_quick_benchmark_runs_two_recipes_with_two_seeds(quick: Path) -> None:
    found = read_json(quick / "runs" / "bench.json")
    assert [row["recipe"] for row in found["recipes"]] == ["baseline", "plan5"]
    assert (found["n"], found["seeds"], found["quick"]) == (12, 2, True)
    row = found["recipes"][1]
    assert (
        row["difference"]["ci95"][0]
        <= row["difference"]["diff"]
        <= row["difference"]["ci95"][1]
    )
    means = [
        read_json(quick / "runs" / f"plan5-seed{n}" / "eval.json")["arms"]["learned"][
            "mean"
        ]
        for n in (0, 1)
    ]
    assert row["accuracy"]["mean"] == pytest.approx(sum(means) / 2)
    assert row["reported"] == PLANS["plan5"]
    assert 0 < row["model_calls"] <= 900
    assert (quick / "runs" / "bench.md").read_text().startswith("Quick sizes")


def test_a_benchmark_is_taken_up_and_prints_one_json_object(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_json(quick / "runs" / "bench.json")
    weights = (
        quick / "runs" / "plan5-seed1" / "checkpoints" / "grpo" / "model.safetensors"
    )
    made = weights.stat().st_mtime_ns
    words = [
        "bench",
        "plans",
        "--quick",
        "--json",
        "--out",
        str(quick / "runs"),
        "--store",
        str(quick / "s.db"),
    ]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == before
    assert before["failed"] == {}
    assert weights.stat().st_mtime_ns == made


def test_wrong_usage_ends_with_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "methods"])
    assert caught.value.code == 2
    assert main(["bench", "plans", "--seeds", "0"]) == 2


def test_an_unknown_recipe_or_the_baseline_alone_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for recipes, sentence in (
        ("plan99", "no recipe called 'plan99'"),
        ("baseline", "name a recipe beside baseline"),
    ):
        assert (
            main(
                [
                    "bench",
                    "plans",
                    "--recipes",
                    recipes,
                    "--out",
                    str(tmp_path),
                    "--store",
                    "x.db",
                ]
            )
            == 1
        )
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_cannot_run_is_named_and_the_others_are_compared(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = quick / "broken.toml"
    broken.write_text(
        f"{find_recipe('baseline_sft').read_text()}\n[sft]\neasy_epochs = 1\neasy_count = 99\n"
    )
    where = ["--out", str(quick / "runs"), "--store", str(quick / "s.db")]
    assert (
        main(
            [
                "bench",
                "plans",
                "--quick",
                "--json",
                "--recipes",
                f"plan5,{broken}",
                *where,
            ]
        )
        == 1
    )
    found = json.loads(capsys.readouterr().out)
    assert [row["recipe"] for row in found["recipes"]] == ["baseline", "plan5"]
    assert "groups is left for epoch 1" in found["failed"][str(broken)]
