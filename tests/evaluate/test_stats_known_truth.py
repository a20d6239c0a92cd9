"""A smaller run of the known-truth benchmark: what the statistics state is what happens."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SIMULATIONS = 250


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "known_truth.py"
    spec = importlib.util.spec_from_file_location("known_truth", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["known_truth"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    module.RESAMPLES = 400  # type: ignore[attr-defined]
    return module


def _assert_kept(rows: list, simulations: int) -> None:
    """Inside the band, widened by three standard errors of so few simulations."""
    for row in rows:
        middle = min(max(row.measured, row.low), row.high)
        slack = 3 * np.sqrt(middle * (1 - middle) / simulations)
        assert row.low - slack <= row.measured <= row.high + slack, row


@pytest.mark.slow
@pytest.mark.parametrize("index", range(5))
def test_alarms_coverage_and_power_are_as_stated(
    script: ModuleType, index: int
) -> None:
    rows = list(
        script.rows_of_population(script.POPULATIONS[index], 200, SIMULATIONS, seed=7)
    )
    assert len(rows) in (5, 6)
    _assert_kept(rows, SIMULATIONS)


@pytest.mark.slow
def test_questions_on_one_picture_are_not_taken_as_independent(
    script: ModuleType,
) -> None:
    _assert_kept(list(script.rows_of_images(200, SIMULATIONS, seed=7)), SIMULATIONS)


@pytest.mark.slow
def test_seeds_and_items_together_are_as_stated(script: ModuleType) -> None:
    _assert_kept(list(script.rows_of_seeds(200, 3, SIMULATIONS, seed=7)), SIMULATIONS)


@pytest.mark.slow
def test_a_difference_among_ten_is_found_as_often_as_stated_under_correction(
    script: ModuleType,
) -> None:
    rows = list(script.rows_of_family(200, 10, SIMULATIONS, seed=7))
    _assert_kept(rows, SIMULATIONS)
    assert rows[1].measured < 0.6, (
        "what one test alone would find is found far less often among ten"
    )


@pytest.mark.parametrize("index", range(5))
def test_the_simulated_populations_have_the_truth_they_claim(
    script: ModuleType, index: int
) -> None:
    population = script.POPULATIONS[index]
    difference = population.first - population.second
    for effect in (0.0, 0.04):
        chance = population.chance + effect * population.tilt
        assert chance.sum() == pytest.approx(1.0)
        assert chance.min() >= 0.0
        assert chance @ difference == pytest.approx(effect, abs=1e-12)
        assert chance @ difference**2 == pytest.approx(
            population.chance @ difference**2
        )
