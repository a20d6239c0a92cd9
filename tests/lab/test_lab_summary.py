"""The figures of the benchmark: by hand, against a known truth, and as tables and a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.lab.drawing import gap_picture
from leverplus.lab.pages import markdown
from leverplus.lab.summary import harm, method_sample, share_of_gap, summary_of

N = 8


def arms(world: int = 0, pool: int = 64) -> dict[str, Any]:
    """Zero-shot is right on 2 items, random on 2 (1 shot) and 4 (2 shots), nearest on 4, the oracle on 7 of 8."""
    accuracy = {
        "zero_shot": {"0": first(2)},
        "random": {"1": first(2), "2": first(4)},
        "nearest_both": {"1": first(4), "2": first(4)},
        "oracle": {"1": first(7), "2": first(7)},
    }
    images = [f"picture{row // 2}" for row in range(N)]
    return {**where(method="arms", budget=0, world=world, pool=pool), "accuracy": accuracy, "images": images}


def first(count: int) -> list[float]:
    return [1.0] * count + [0.0] * (N - count)


def where(**given: Any) -> dict[str, Any]:
    own = {"method": "best", "budget": 8_000, "world": 0, "seed": 0, "pool": 64, "queries": 0, **given}
    return {**own, "n": N, "conditions": f"world {own['world']}, pool {own['pool']}"}


def trained(one: list[float], two: list[float], **place: Any) -> dict[str, Any]:
    cost = {"model_calls": 7_900, "groups": 100.0, "training_seconds": 12.0, "none_share": {}, "commit": "abc"}
    return {**where(**place), **cost, "accuracy": {"learned": {"1": one, "2": two}}}


def keyed(*records: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(number): record for number, record in enumerate(records)}


def test_a_row_by_hand() -> None:
    # seeds have means (5/8 + 6/8) / 2 and (3/8 + 6/8) / 2; random (2/8 + 4/8) / 2, oracle 7/8
    found = summary_of(keyed(arms(), trained(first(5), first(6)), trained(first(3), first(6), seed=1)))
    (row,) = found["methods"]
    assert row["accuracy"] == {"1": 0.5, "2": 0.75, "mean": 0.625}
    assert row["gap_closed"]["mean"]["share"] == pytest.approx((0.625 - 0.375) / (0.875 - 0.375))
    assert row["gap_closed"]["1"] == pytest.approx((0.5 - 0.25) / (0.875 - 0.25))
    assert row["gap_closed"]["worlds"] == {"0": pytest.approx(0.5)}
    low, high = row["gap_closed"]["mean"]["ci95"]
    assert low < 0.5 < high
    assert row["seed_sd"] == pytest.approx(np.std([11 / 16, 9 / 16], ddof=1))
    assert (row["model_calls"], row["seconds"], row["seeds"], row["worlds"]) == (7_900, 12.0, [0, 1], [0])
    assert row["against_nearest"]["arm"] == "nearest_both"
    assert row["against_nearest"]["diff"] == pytest.approx(0.125)
    assert row["against_labels"] is None
    assert row["harm"]["1"] == {"helped": pytest.approx(2 / 8), "harmed": 0.0, "broken": 0.0}
    nearest = next(row for row in found["arms"] if row["arm"] == "nearest_both")
    assert nearest["gap_closed"]["mean"]["share"] == pytest.approx(0.25)


def test_ranking_by_labels_is_a_rival_of_its_own() -> None:
    measured = arms()
    measured["accuracy"] |= {"label_rank": {"1": first(6), "2": first(6)}, "label_regression": {"0": first(7)}}
    found = summary_of(keyed(measured, trained(first(5), first(6))))
    (row,) = found["methods"]
    assert row["against_nearest"]["arm"] == "nearest_both"
    assert row["against_labels"]["diff"] == pytest.approx((5 + 6 - 12) / 16)
    ranked = next(row for row in found["arms"] if row["arm"] == "label_rank")
    assert ranked["gap_closed"]["mean"]["share"] == pytest.approx((0.75 - 0.375) / (0.875 - 0.375))
    page = markdown({**found, "failed": {}, "left_out": [], "quick": False})
    assert "| best | 8 k | ranked by labels | -6.2 |" in page


def test_harm_counts_items_lowered_and_right_ones_made_wrong() -> None:
    zero = np.array([1.0, 0.6, 0.3, 0.0])
    own = np.array([[0.0, 0.9, 0.0, 0.0], [1.0, 0.3, 0.3, 1.0]])
    # lowered: items 0 and 2 in the first run, item 1 in the second; of 2 x 2 right ones two became wrong
    assert harm(own, zero) == {"helped": 2 / 8, "harmed": 3 / 8, "broken": 2 / 4}
    assert harm(own, np.zeros(4))["broken"] is None


def test_without_an_oracle_or_a_way_there_is_no_share() -> None:
    flat = np.full(6, 0.5)
    assert share_of_gap(flat, flat, flat, list("abcdef")) is None
    bare = arms(pool=256)
    del bare["accuracy"]["oracle"]
    (row,) = summary_of(keyed(bare, trained(first(5), first(6), pool=256)))["methods"]
    assert row["gap_closed"] is None


def test_only_seeds_that_every_world_has_are_counted() -> None:
    records = [trained(first(5), first(5), world=world, seed=seed) for world, seed in ((0, 0), (0, 1), (1, 1), (2, 1))]
    sample = method_sample(records, {0: arms(0), 1: arms(1)})  # the arms of world 2 are not measured yet
    assert (list(sample.worlds), list(sample.seeds)) == ([0, 1], [1])
    apart = method_sample(records[:1] + records[2:3], {0: arms(0), 1: arms(1)})
    assert (list(apart.worlds), list(apart.seeds)) == ([0], [0])
    assert sample.own["learned"]["1"].shape == (1, 2 * N)
    assert summary_of(keyed(*records))["methods"] == []


def test_records_of_other_items_or_pools_are_refused() -> None:
    other = {**trained(first(5), first(5)), "conditions": "other items"}
    with pytest.raises(EvaluationError, match="measured on different items or pools"):
        summary_of(keyed(arms(), other))


def test_the_interval_of_a_share_covers_the_truth_as_often_as_it_says() -> None:
    """Items differ in how likely each arm is right, seeds shift the selector; two items share a picture."""
    rng = np.random.default_rng(5)
    n, seeds, rounds = 300, 5, 150
    truth = (0.62 - 0.30) / (0.80 - 0.30)
    covered = 0
    for _ in range(rounds):
        ease = np.repeat(rng.uniform(-0.15, 0.15, n // 2), 2)
        random, oracle = ((rng.random(n) < level + ease).astype(float) for level in (0.30, 0.80))
        shift = rng.normal(0.0, 0.02, (seeds, 1))
        own = (rng.random((seeds, n)) < 0.62 + ease + shift).astype(float)
        found = share_of_gap(own, random, oracle, [f"0:picture{row // 2}" for row in range(n)])
        assert found is not None
        covered += found["ci95"][0] <= truth <= found["ci95"][1]
    assert 0.90 <= covered / rounds <= 0.99


def test_an_ablation_is_compared_with_best_by_world_and_seed() -> None:
    best = [trained(first(5), first(6), seed=seed) for seed in (0, 1)]
    worse = [trained(first(4), first(4), method="no_dropout", seed=seed) for seed in (0, 1, 2)]
    other = trained(first(4), first(4), method="listwise")
    (row,) = summary_of(keyed(arms(), *best, *worse, other))["ablations"]
    assert (row["change"], row["budget"], row["seeds"]) == ("no_dropout", 8_000, [0, 1])
    assert row["diff"] == pytest.approx(8 / 16 - 11 / 16)
    assert row["p_adjusted"] == row["p_value"]


def test_an_ablation_that_lacks_a_world_is_compared_in_the_others() -> None:
    best = [trained(first(5), first(6), world=0), trained(first(8), first(8), world=1)]
    changed = trained(first(6), first(6), method="no_dropout", world=1)
    (row,) = summary_of(keyed(arms(), arms(world=1), *best, changed))["ablations"]
    assert row["worlds"] == [1]
    assert row["diff"] == pytest.approx(6 / 8 - 1)


@pytest.fixture
def found() -> dict[str, Any]:
    records = [
        arms(),
        arms(pool=16),
        *(trained(first(5), first(6), seed=seed, budget=budget) for seed in (0, 1) for budget in (8_000, 128_000)),
        trained(first(4), first(4), method="sft_rce_grpo"),
        trained(first(4), first(5), pool=16, budget=128_000),
        trained(first(3), first(3), queries=125, budget=128_000),
        trained(first(3), first(3), method="no_dropout", budget=128_000),
    ]
    extra = {"failed": {"best/32000/world0/seed0": "out of luck"}, "left_out": ["x"], "quick": False}
    return {**summary_of(keyed(*records)), **extra}


def test_the_tables_say_n_intervals_runs_and_what_is_missing(found: dict[str, Any]) -> None:
    text = markdown(found)
    assert text.startswith("8 test items of worlds 0;")
    assert "| best | 128 k | 62.5 | 75.0 | 68.8 | 62.5 (" in text
    assert "| SFT + RCE + GRPO (plans) | 8 k | 50.0 | 50.0 | 50.0 |" in text
    assert "| nearest by both |  | 50.0 | 50.0 | 50.0 | 25.0 (" in text
    assert "| best | 8 k | 0.0 / 0.0 | 37.5 / 50.0 | 0.00 | 0.0 |" in text
    assert "| random |  | 0.0 / 0.0 | 0.0 / 25.0 | 0.00 | 0.0 |" in text
    assert "| best | 8 k | 7,900 | 100 | 12 | 1 x 2 |" in text
    assert "| who chooses | 16 | 64 |" in text
    assert "| best | 56.2 | 68.8 |" in text
    assert "| best | 125 | 7,900 | 37.5 |" in text
    assert "| no dropout | 128 k | -" in text
    assert "before 1 trainings" in text
    assert "best/32000/world0/seed0 failed: out of luck" in text


def test_the_picture_shows_every_method_once_and_higher_shares_higher(found: dict[str, Any]) -> None:
    root = ET.fromstring(gap_picture(found))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    for name in ("best", "SFT + RCE + GRPO (plans)", "nearest by both", "8 k", "128 k"):
        assert texts.count(name) == 1
    circles = [(float(c.get("cx") or 0), float(c.get("cy") or 0)) for c in root.iter(f"{space}circle")]
    assert len(circles) == 3  # the plans at 8 k; best at 8 k and 128 k
    (plan_x, plan_y), (best_x, best_y), (far_x, _) = circles
    assert plan_x == best_x < far_x
    assert best_y < plan_y, "the better one stands higher"


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    ET.fromstring(gap_picture({"arms": [], "methods": []}))
