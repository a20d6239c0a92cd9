"""The pilot of a run: what it asks, what it says, the list for everybody as an arm, and training that is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_world import TinyRun, run_tiny

from leverplus import Selector
from leverplus.cli.main import main
from leverplus.errors import RecipeError
from leverplus.run.forecast import DataSizes, forecast
from leverplus.run.pilot import (
    by_effect,
    different_answers_first,
    room_to_choose,
)
from leverplus.run.recipe import load_recipe

PILOT = ["--set", "score.pilot=6", "score.pilot_demos=4", "score.budget=500"]

DEAF = """
from dataclasses import replace
from leverplus_lab.world.backend import WorldBackend

class Deaf(WorldBackend):
    # it hears only what is said of the very question, as the self-test does
    def answer(self, requests):
        heard = [tuple(demo for demo in own.demos if demo.question == own.query.question) for own in requests]
        return super().answer([replace(own, demos=demos) for own, demos in zip(requests, heard)])

def backend(task, model):
    return Deaf(task)
"""


NEEDS_TWO = DEAF.replace("Deaf", "NeedsTwo").replace(
    "for own in requests]\n        return",
    "if len(own.demos) < 2 else own.demos for own in requests]\n        return",
)
"""It hears one demonstration as little, and two as well as the world does."""


@pytest.fixture(scope="module")
def piloted(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("piloted")
    return run_tiny(folder / "run", folder / "scores.db", *PILOT)


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "deaf_model.py").write_text(DEAF)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "deaf_model:backend"
    sys.modules.pop("deaf_model", None)


@pytest.mark.slow
def test_a_pilot_asks_every_demonstration_with_every_query_and_its_lists_are_an_arm(
    piloted: TinyRun,
) -> None:
    found = json.loads((piloted.folder / "pilot.json").read_text())
    assert (found["queries"], found["demonstrations"]) == (6, 4)
    assert 6 * (1 + 4 + 1) <= found["calls"] <= 6 * (1 + 4 + 2)
    assert set(found["fixed"]) == {"1", "2"}
    low, high = found["any_choice"]["ci95"]
    assert 0.0 <= low <= found["any_choice"]["gain"] <= high
    assert found["says"][-1] == "training goes on"
    report = piloted.report
    assert report["pilot"] == found
    assert set(report["arms"]["fixed"]["shots"]) == {"1", "2"}
    assert "fixed" in report["advice"]["dev_accuracy"]
    assert any(row["baseline"] == "fixed" for row in report["comparisons"]), (
        "the selector is compared with it"
    )
    assert report["model_calls"] <= 500
    page = (piloted.folder / "report.html").read_text()
    assert "Pilot, before training." in page
    assert "one list for everybody" in page


@pytest.mark.slow
def test_the_list_for_everybody_can_be_packed_without_naming_it(
    piloted: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "pack",
        str(piloted.folder),
        "--arm",
        "fixed",
        "-k",
        "2",
        "--out",
        str(tmp_path / "b"),
    ]
    assert main([*words, "--store", str(piloted.store)]) == 0
    wanted = json.loads((piloted.folder / "pilot.json").read_text())["fixed"]["2"][
        "demos"
    ]
    selector = Selector.load(tmp_path / "b")
    assert [
        demo.id for demo in selector.select(question="anything at all", shots=2)
    ] == wanted
    capsys.readouterr()
    words = [
        "pack",
        str(piloted.folder),
        "--arm",
        "fixed",
        "-k",
        "3",
        "--out",
        str(tmp_path / "c"),
    ]
    assert main([*words, "--store", str(piloted.store)]) == 1
    assert "arm fixed shows at most 2 examples, not 3" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_ignores_demonstrations_is_not_trained_for(
    tmp_path: Path, deaf: str
) -> None:
    made = run_tiny(
        tmp_path / "run",
        tmp_path / "scores.db",
        *PILOT,
        f"score.backend={deaf}",
        "eval.oracle=false",
        "task.world_seed=0",
    )
    pilot = made.report["pilot"]
    assert not pilot["worth_training"]
    assert pilot["any_choice"]["gain"] < 0.005
    assert "training is left out" in pilot["says"][-1]
    assert "learned" not in made.report["arms"]
    assert not (made.folder / "checkpoints").exists()
    assert made.report["model_calls"] == pilot["calls"], "only the pilot was paid for"
    assert (made.folder / "report.html").is_file()
    assert made.report["advice"]["arm"] is not None
    assert made.report["notes"] == []


@pytest.mark.slow
def test_a_model_that_only_lists_move_is_trained_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_two.py").write_text(NEEDS_TWO)
    monkeypatch.syspath_prepend(str(tmp_path))
    sets = [
        *PILOT,
        "score.backend=needs_two:backend",
        "eval.oracle=false",
        "task.world_seed=0",
    ]
    made = run_tiny(tmp_path / "run", tmp_path / "scores.db", *sets)
    sys.modules.pop("needs_two", None)
    pilot = made.report["pilot"]
    assert pilot["any_choice"]["gain"] < 0.005, "one demonstration changes nothing"
    assert pilot["list_gains"]["2"] >= 0.005
    assert pilot["worth_training"]
    said = "knowing the better of two such lists of 2 for every query would be worth +"
    assert said in pilot["says"][-2]
    assert "learned" in made.report["arms"]


def test_the_best_means_come_first_then_finer_scores_then_their_place() -> None:
    scores = np.array([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert by_effect(scores) == [1, 2, 3, 0], "means 0, .5, .5, .5"
    finer = np.array([[0.9, 0.1, 0.1, 0.3], [0.9, 0.1, 0.2, 0.3]])
    assert by_effect(scores, finer) == [3, 2, 1, 0]


def test_lists_with_different_answers_take_the_best_of_every_answer_first() -> None:
    assert different_answers_first([3, 1, 0, 2], ["a", "a", "b", "a"]) == [3, 2, 1, 0]
    assert different_answers_first([0, 1, 2], ["x", "y", "z"]) == [0, 1, 2]


def test_the_room_to_choose_is_the_best_less_the_mean_of_every_query() -> None:
    room = room_to_choose(np.array([[1.0, 0.0, 0.5], [0.3, 0.3, 0.3]]))
    assert room == pytest.approx([0.5, 0.0])


def test_the_forecast_holds_the_pilot_inside_the_budget() -> None:
    sizes = DataSizes(train=1000, dev=100, test=100, pictures=True)
    sets = [
        "score.rounds=2",
        "score.budget=3000",
        "score.search=dense",
        "score.dev_queries=8",
    ]
    plain = load_recipe("world", sets)
    with_pilot = load_recipe("world", [*sets, "score.pilot=20"])
    calls = {part.what: part.calls for part in forecast(with_pilot, sizes)}
    longer = sum(shots > 1 for shots in with_pilot.eval.shots)
    assert calls["pilot"] == 20 * (1 + 10 + 2 * longer)
    for recipe in (plain, with_pilot):
        parts = {part.what: part.calls or 0 for part in forecast(recipe, sizes)}
        training = sum(
            parts.get(name, 0)
            for name in ("pilot", "search", "rounds of asking", "judging on dev")
        )
        assert training <= 3000
    assert plain.hash != with_pilot.hash


def test_a_pilot_of_a_recorded_table_is_refused() -> None:
    with pytest.raises(RecipeError, match="a recorded table cannot be asked"):
        load_recipe("okvqa_table", ["score.pilot=10"])
