"""A choice laid open: probabilities that sum to one, the taken are the evaluated, beams that are what they claim."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from leverplus.errors import LeverError
from leverplus.evaluation.predictions import read_predictions
from leverplus.selector.selector import Selector
from leverplus.view.choice import ChoiceStep, explain_pooled, step_figures


@pytest.fixture(scope="module")
def selector(runs: Path) -> Selector:
    return Selector.load(runs / "first")


def test_every_step_is_a_distribution_over_what_is_left(selector: Selector, runs: Path) -> None:
    results = read_predictions(runs / "first" / "predictions.parquet")
    for row in (0, 3):
        choice = explain_pooled(selector, selector.run.task.item(results.items[row]), 2)
        assert choice.demos == results.draws["learned"][2][0][row].demos
        for step in choice.steps:
            assert sum(step.probabilities) == pytest.approx(1.0, abs=1e-5)
            assert step.probabilities[step.taken] == max(step.probabilities)
        assert choice.steps[1].probabilities[choice.steps[0].taken] == 0.0


def test_the_greedy_list_has_the_product_of_its_steps_as_probability(selector: Selector) -> None:
    choice = explain_pooled(selector, selector.run.task.items("test")[7], 3)
    product = math.prod(step.probabilities[step.taken] for step in choice.steps)
    same = [beam.probability for beam in choice.beams if beam.demos == choice.demos]
    assert not same or same[0] == pytest.approx(product, rel=1e-4)
    likely = [beam.probability for beam in choice.beams]
    assert likely == sorted(likely, reverse=True)
    assert likely[0] >= product * (1 - 1e-4)
    assert len({beam.demos for beam in choice.beams}) == 5


def test_entropy_counts_the_candidates_it_amounts_to(selector: Selector) -> None:
    choice = explain_pooled(selector, selector.run.task.items("test")[7], 1)
    [step] = choice.steps
    assert step.entropy == pytest.approx(-sum(p * math.log(p) for p in step.probabilities if p > 0))
    assert 1.0 < math.exp(step.entropy) <= len(choice.pool)


def test_the_taken_is_shown_even_when_it_is_not_among_the_likeliest() -> None:
    assert ChoiceStep((0.5, 0.3, 0.15, 0.05), 3, 0.0).best(2) == [0, 3]
    assert ChoiceStep((0.1, 0.3, 0.6), 2, 0.0).best(2) == [2, 1]


def test_charts_hold_every_candidate(selector: Selector) -> None:
    choice = explain_pooled(selector, selector.run.task.items("test")[7], 2)
    first, second = step_figures(choice)
    assert first.data[0]["y"] == list(choice.steps[0].probabilities)
    assert second.table is not None
    assert [row[0] for row in second.table.rows] == list(choice.pool)


def test_more_than_a_selector_chooses_is_refused(selector: Selector) -> None:
    for shots in (0, 9):
        with pytest.raises(LeverError, match=f"not {shots}"):
            explain_pooled(selector, selector.run.task.items("test")[0], shots)
