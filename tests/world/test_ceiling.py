"""The informed chooser: its expectation is exact, it knows no annotator, and no one-shot choice expects more."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmarking import load_benchmark

from leverplus.experiment.run import Run
from leverplus.metrics import normalise_answer, vqa_accuracy
from leverplus.recipe.recipe import load_recipe
from leverplus.scoring.search import dense_groups
from leverplus.tasks.world import draw_items
from leverplus.world import questions
from leverplus.world.facts import draw_facts
from leverplus.world.questions import NONE
from leverplus.world.words import VOCABULARY

DRAWS = 20_000
ONE = ((5, NONE), (0.95, 0.05))
TWO = ((5, 11), (0.35, 0.65))
"""An elevator (lift) probably labelled in American; an elevator and a sweater (jumper), more likely in British."""


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("ceiling")


@pytest.fixture(scope="module")
def simulated() -> dict[Any, list[tuple[str, ...]]]:
    """What ten annotators said to the two questions, drawn anew by the world's own generator."""
    found = {}
    for number, (truth, dialects) in enumerate((ONE, TWO)):
        rng = np.random.default_rng(number)
        dialect = (rng.random(DRAWS) < dialects[1]).astype(np.int64)
        mislabelled = rng.random(DRAWS) < questions.MISLABELLED
        drawn = questions._annotate(rng, np.tile(truth, (DRAWS, 1)), dialect, mislabelled)
        words = np.array([*VOCABULARY, ""])[drawn]  # NONE is the last
        found[truth] = [tuple(" ".join(pair).strip() for pair in row) for row in words.tolist()]
    return found


def _ahead(benchmark: ModuleType, case: tuple[tuple[int, int], tuple[float, float]]) -> Any:
    return benchmark.Outlook(tuple(thing for thing in case[0] if thing != NONE), case[1])


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        (ONE, "elevator"),
        (ONE, "lift"),
        (ONE, "cookie"),
        (ONE, "biscuit"),
        (TWO, "elevator sweater"),
        (TWO, "lift jumper"),
        (TWO, "lift biscuit"),
        (TWO, "jumper lift"),
    ],
)
def test_the_expectation_is_that_of_the_generator(benchmark, simulated, case, answer) -> None:
    values = np.array([vqa_accuracy(answer, references) for references in simulated[case[0]]])
    error = values.std(ddof=1) / np.sqrt(DRAWS)
    assert error > 0
    assert benchmark.expected_accuracy(answer, _ahead(benchmark, case)) == pytest.approx(values.mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("case", "answer"),
    [(TWO, "lift sweater"), (TWO, "lift"), (ONE, "elevator sweater"), (ONE, "<unknown>"), (ONE, "")],
)
def test_what_no_annotator_can_say_is_worth_nothing(benchmark, simulated, case, answer) -> None:
    assert not any(answer in references for references in simulated[case[0]])
    assert benchmark.expected_accuracy(answer, _ahead(benchmark, case)) == 0.0


def test_with_careful_annotators_the_expectation_is_the_chance_of_the_dialect(benchmark, monkeypatch) -> None:
    for name in ("MISLABELLED", "OTHER_DIALECT", "CARELESS"):
        monkeypatch.setattr(questions, name, 0.0)
    benchmark.expected_accuracy.cache_clear()
    assert benchmark.expected_accuracy("elevator", _ahead(benchmark, ONE)) == pytest.approx(0.95)
    assert benchmark.expected_accuracy("lift jumper", _ahead(benchmark, TWO)) == pytest.approx(0.65)
    monkeypatch.setattr(questions, "OTHER_DIALECT", 0.5)  # five of ten in the mean, whatever the dialect
    benchmark.expected_accuracy.cache_clear()
    below = (1 + 10 * 0.7 + 45 * 0.4 + 120 * 0.1) / 1024  # none, one, two, three of ten: 0, 0.3, 0.6, 0.9
    assert benchmark.expected_accuracy("elevator", _ahead(benchmark, ONE)) == pytest.approx(1 - below)
    benchmark.expected_accuracy.cache_clear()


def test_names_are_as_the_metric_compares_them(benchmark: ModuleType) -> None:
    assert len(benchmark.NAMES) == 48
    assert all(normalise_answer(name) == name for name in benchmark.NAMES)


def test_over_the_items_of_a_world_the_expectation_is_right_in_the_mean(benchmark: ModuleType) -> None:
    facts, drawn = draw_facts(3), questions.draw_questions(3, "test")
    differences = []
    for row, item in enumerate(draw_items(3, "test")):
        ahead = benchmark.outlook(item, facts)
        assert ahead.things == tuple(thing for thing in drawn.truth[row].tolist() if thing != NONE)
        name = {place: name for name, place in benchmark.NAMES.items()}
        likely = int(ahead.dialects[1] > ahead.dialects[0])
        answer = " ".join(name[thing, likely] for thing in ahead.things)
        differences.append(vqa_accuracy(answer, item.answers) - benchmark.expected_accuracy(answer, ahead))
    by_picture = np.array(differences).reshape(-1, questions.QUESTIONS_PER_IMAGE).mean(axis=1)
    assert abs(by_picture.mean()) < 4 * by_picture.std(ddof=1) / np.sqrt(len(by_picture))


def test_the_outlook_does_not_depend_on_what_the_annotators_said(benchmark: ModuleType) -> None:
    facts = draw_facts(1)
    for item in draw_items(1, "dev")[:50]:
        hidden = {**item.meta, "dialect": "unknown", "mislabelled": "unknown", "unknown": "unknown"}
        silent = replace(item, answers=("nothing",), meta=hidden)
        assert benchmark.outlook(silent, facts) == benchmark.outlook(item, facts)


@pytest.mark.slow
def test_no_one_shot_choice_expects_more_and_steps_are_greedy(benchmark: ModuleType, tmp_path: Path) -> None:
    run = Run(load_recipe("best", ["task.world_seed=1", "pool.size=8"]), tmp_path, 0, tmp_path / "scores.db")
    items = run.chosen_items("dev", 20)
    chosen = benchmark.informed(run, items, 2)
    ahead = benchmark.outlooks(run, items)
    choosable = 0
    for (first, second), group in zip(chosen, dense_groups(run.scorer, run.pools(items)[0], False), strict=True):
        expected = [benchmark.expected_accuracy(score.answer, ahead[group.query]) for score in group.scores]
        assert first.expected == max(expected)
        assert first.expected == benchmark.expected_accuracy(first.score.answer, ahead[group.query])
        assert second.score.demos[:1] == first.score.demos
        assert len(set(second.score.demos)) == 2
        choosable += max(expected) > min(expected)
    assert choosable > 10, "there was something to choose"


def test_the_share_of_the_gap_varies_as_items_drawn_together(benchmark: ModuleType) -> None:
    rng = np.random.default_rng(4)
    n = 300
    arms = {"random": rng.choice([0, 0.3, 1.0], n), "oracle": rng.choice([0.6, 0.9, 1.0], n)}
    arms["informed"] = np.where(rng.random(n) < 0.6, arms["oracle"], arms["random"])
    arms["informed_expected"] = np.clip(arms["informed"] + rng.normal(0, 0.05, n), 0, 1)
    accuracy = {arm: [own.tolist()] for arm, own in arms.items()}
    images = [f"image{row // 2}" for row in range(n)]
    found = benchmark.figures([{"world": 1, "images": images, "accuracy": accuracy, "pairs": None}])
    got = found["gap_closed"]["informed"]["1"]
    low, own, high = (arms[arm].mean() for arm in ("random", "informed", "oracle"))
    assert got["share"] == pytest.approx((own - low) / (high - low))
    assert found["arms"]["informed"]["mean"]["accuracy"] == pytest.approx(own)
    pictures = rng.integers(0, n // 2, (4000, n // 2))
    drawn = {arm: own.reshape(-1, 2).sum(axis=1)[pictures].sum(axis=1) for arm, own in arms.items()}
    shares = (drawn["informed"] - drawn["random"]) / (drawn["oracle"] - drawn["random"])
    np.testing.assert_allclose(got["ci95"], np.quantile(shares, [0.025, 0.975]), atol=0.01)


@pytest.mark.slow
def test_the_benchmark_measures_worlds_and_pairs(benchmark: ModuleType, tmp_path: Path, monkeypatch, capsys) -> None:
    sizes = ["--worlds", "1", "2", "--n", "8", "--shots", "2", "--pairs", "4", "--set", "pool.size=6"]
    place = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "ceiling.json")]
    monkeypatch.setattr(sys, "argv", ["ceiling.py", *sizes, *place])
    benchmark.main()
    found = json.loads((tmp_path / "ceiling.json").read_text())
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1]) == found
    assert "| all | informed_expected |" in printed
    assert found["fresh_calls"] > 0
    assert found["all"]["n"] == 16
    for arm in benchmark.ARMS:
        worlds = [row["arms"][arm]["mean"]["accuracy"] for row in found["by_world"]]
        assert found["all"]["arms"][arm]["mean"]["accuracy"] == pytest.approx(np.mean(worlds))
    for own in found["all"]["pairs"].values():
        assert own["n"] == 8
        assert own["best"] >= own["greedy"]
        assert own["diff"] == pytest.approx(own["best"] - own["greedy"])
    benchmark.main()
    assert json.loads((tmp_path / "ceiling.json").read_text())["fresh_calls"] == 0
