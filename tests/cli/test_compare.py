"""`lever compare`: tables, JSON and Markdown; nothing within noise is called better; bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leverplus.cli.main import main
from leverplus.data.types import ItemId, Pool
from leverplus.evaluate.conditions import conditions_of
from leverplus.evaluate.predictions import Prediction, Results, write_predictions
from leverplus.scores.keys import Context

CONTEXT = Context.of(
    {"model": "m", "template": "plain", "decoding": "greedy"},
    task="t",
    task_version="1",
    metric="vqa_accuracy",
    cut="plain",
)


def evaluated(
    folder: Path,
    chance: float,
    *,
    recipe: str,
    seed: int = 0,
    n: int = 200,
    arm: str = "",
) -> str:
    """A run folder with two shots of coin-flip answers and a zero-shot arm that is right on a third."""
    folder.mkdir()
    rng = np.random.default_rng([int(1000 * chance), seed])
    items = [ItemId(f"q{number}") for number in range(n)]
    results = Results(items, [str(item) for item in items])
    results.add(
        "zero_shot",
        0,
        [
            Prediction(item, (), "x", float(row % 3 == 0))
            for row, item in enumerate(items)
        ],
    )
    for shots in (1, 2):
        demos = tuple(ItemId(f"d{place}") for place in range(shots))
        right = rng.random(n) < chance
        results.add(
            "learned",
            shots,
            [
                Prediction(i, demos, "x", float(r))
                for i, r in zip(items, right, strict=True)
            ],
        )
        if arm:
            results.add(
                arm,
                shots,
                [
                    Prediction(item, demos, "x", float(row % 2))
                    for row, item in enumerate(items)
                ],
            )
    conditions = conditions_of(
        CONTEXT, "test", items, [Pool(item, (), "b") for item in items]
    )
    (folder / "run.json").write_text(
        json.dumps({"recipe": recipe, "recipe_hash": recipe, "seed": seed})
    )
    record = {
        "n": n,
        "arms": {"learned": {"shots": {"1": chance}}},
        "conditions": conditions,
        "checkpoint": "sft",
    }
    (folder / "eval.json").write_text(json.dumps(record))
    write_predictions(results, folder / "predictions.parquet")
    return str(folder)


def test_json_is_one_object_with_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        evaluated(tmp_path / "a", 0.4, recipe="a"),
        evaluated(tmp_path / "b", 0.8, recipe="b"),
    ]
    assert main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["shots"] for row in found["comparisons"]] == ["1", "2", "mean"]
    row = found["comparisons"][0]
    assert {
        "arm",
        "baseline",
        "n",
        "diff",
        "ci95",
        "p_value",
        "p_adjusted",
        "mde80",
        "helped",
        "harmed",
    } <= set(row)
    assert (row["arm"], row["baseline"], row["n"], row["within_noise"]) == (
        "b",
        "a",
        200,
        False,
    )


def test_a_difference_within_noise_is_never_called_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        evaluated(tmp_path / "a", 0.500, recipe="a"),
        evaluated(tmp_path / "b", 0.501, recipe="b"),
    ]
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    assert out.count("within noise") == 3
    assert not any(word in out for word in ("above", "below", "better", "**", "↑"))


def test_a_clear_difference_is_called_above_and_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        evaluated(tmp_path / "a", 0.3, recipe="a"),
        evaluated(tmp_path / "b", 0.8, recipe="b"),
    ]
    assert main(["compare", *runs]) == 0
    assert capsys.readouterr().out.count(" above ") == 3
    assert main(["compare", *runs, "--baseline", "b"]) == 0
    assert capsys.readouterr().out.count(" below ") == 3


def test_an_arm_can_be_the_baseline_of_several_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        evaluated(tmp_path / f"a{seed}", 0.7, recipe="a", seed=seed)
        for seed in range(3)
    ]
    assert main(["compare", *runs, "--baseline", "zero_shot", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["arm"], row["baseline"]) for row in found["comparisons"]} == {
        ("a", "zero_shot")
    }
    assert found["comparisons"][0]["seeds"] == [3, 1]


@pytest.mark.slow
def test_a_published_table_states_what_it_assumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    path.write_text(
        json.dumps({"n": 800, "arms": {"baseline": {"1": 48.0}, "new": {"1": 49.0}}})
    )
    assert main(["compare", "--from-summary", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Accuracies were read as percent" in out
    assert "Assumed here: 5 % to 30 %" in out
    assert "if 5 % of the items differ it is within noise" in out
    assert "items would settle it" in out
    assert main(["compare", "--from-summary", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["discordance"] == [0.05, 0.3]


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ([], "name run folders"),
        (["nowhere"], "there is no folder nowhere; name a run folder"),
        (["--from-summary", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_missing_input_is_one_sentence(
    arguments: list[str],
    phrase: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == (1 if arguments else 2)
    captured = capsys.readouterr()
    assert phrase in captured.err
    assert captured.out == ""


def test_accuracies_above_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = evaluated(tmp_path / "a", 0.5, recipe="a")
    items = [ItemId("q0"), ItemId("q1")]
    results = Results(items, ["q0", "q1"])
    results.add("learned", 1, [Prediction(item, (), "x", 1.5) for item in items])
    write_predictions(results, tmp_path / "a" / "predictions.parquet")
    assert main(["compare", run, "--baseline", "zero_shot"]) == 1
    assert "it must lie in [0, 1]" in capsys.readouterr().err


def test_a_bundle_of_a_fit_stands_for_the_run_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(tmp_path / "mine.run", 0.8, recipe="mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bundle.json").write_text("{}")
    assert main(["compare", str(tmp_path / "mine"), "--baseline", "zero_shot"]) == 0
    assert "difference from zero-shot on 200 test items" in capsys.readouterr().out


def test_a_bundle_is_compared_by_its_own_way_of_choosing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(tmp_path / "mine.run", 0.8, recipe="mine", arm="nearest_both")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bundle.json").write_text('{"arm": "nearest_both"}')
    mine = str(tmp_path / "mine")
    assert main(["compare", mine, "--baseline", "zero_shot", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert (
        main(
            [
                "compare",
                mine,
                "--baseline",
                "zero_shot",
                "--arm",
                "nearest_both",
                "--json",
            ]
        )
        == 0
    )
    named = json.loads(capsys.readouterr().out)
    assert own["comparisons"] == named["comparisons"]
    assert (
        "the bundle chooses by nearest by both; --arm learned compares the learned selector"
        in own["notes"]
    )


def test_a_bundle_that_is_its_own_baseline_is_refused_where_nothing_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(tmp_path / "mine.run", 0.8, recipe="mine", arm="nearest_both")
    record = json.loads((tmp_path / "mine.run" / "eval.json").read_text())
    record["arms"] = {"nearest_both": record["arms"]["learned"]}
    (tmp_path / "mine.run" / "eval.json").write_text(json.dumps(record))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bundle.json").write_text('{"arm": "nearest_both"}')
    mine = str(tmp_path / "mine")
    assert main(["compare", mine, "--baseline", "nearest_both"]) == 2
    assert "no selector was trained; name another --baseline" in capsys.readouterr().err
    assert main(["compare", mine, "--baseline", "zero_shot"]) == 0
    assert "--arm learned" not in capsys.readouterr().out


def test_a_row_names_the_way_of_choosing_and_not_the_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    evaluated(tmp_path / "mine.run", 0.8, recipe="mine", arm="nearest_both")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bundle.json").write_text('{"arm": "nearest_both"}')
    said = "the bundle itself chooses by nearest by both, the baseline, so the learned selector, which the bundle "
    for baseline, row in (
        ("zero_shot", "nearest by both"),
        ("nearest_both", "learned"),
    ):
        mine = str(tmp_path / "mine")
        assert main(["compare", mine, "--baseline", baseline]) == 0
        out = capsys.readouterr().out
        assert f"│ {row}" in out
        assert "│ mine" not in out
        assert out.startswith(said) == (baseline == "nearest_both")


def test_a_comparison_that_finds_nothing_names_the_row_and_the_command_that_plans_items(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        evaluated(tmp_path / "a", 0.500, recipe="a"),
        evaluated(tmp_path / "b", 0.501, recipe="b"),
    ]
    assert main(["compare", *runs, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["comparisons"]
    row = max(rows, key=lambda row: abs(row["diff"]))
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    assert "\nb at " in out or "\nb in the mean" in out
    assert (
        f": a true difference of {100 * max(row['mde80_adjusted'] for row in rows):.1f} points"
        in out
    )
    planned = next(line for line in out.splitlines() if "lever plan-n" in line)
    words = planned.split("lever ")[1].split()
    assert words[2] == f"{abs(row['diff']):.3g}"
    assert words[4] == f"{(row['helped'] + row['harmed']) / row['n']:.3g}"
    assert words[6] == "3"
    assert main(words) == 0


def test_a_run_alone_is_told_which_baselines_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", evaluated(tmp_path / "a", 0.5, recipe="a", arm="mmr")]) == 1
    assert "--baseline with one of zero_shot, mmr\n" in capsys.readouterr().err
