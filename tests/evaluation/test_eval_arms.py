"""Arms and summaries worked by hand."""

from __future__ import annotations

import pytest
from handmade import results_from

from leverplus.evaluation.arms import oracle_any, prefixes, suffixes, vote
from leverplus.evaluation.cost import call_cost, query_cost
from leverplus.evaluation.evaluate import comparisons, gap_closed, summary
from leverplus.evaluation.predictions import Prediction
from leverplus.types import Demos, ItemId


def demos(text: str) -> Demos:
    return tuple(ItemId(letter) for letter in text)


def own(text: str, accuracy: float) -> Prediction:
    return Prediction(ItemId("q"), demos(text), "x", accuracy)


def test_shorter_lists_are_the_first_picks_or_the_ones_next_to_the_query() -> None:
    assert prefixes([demos("abc")], [1, 2]) == {1: [demos("a")], 2: [demos("ab")]}
    assert suffixes([demos("abc")], [1, 2]) == {1: [demos("c")], 2: [demos("bc")]}


def test_a_vote_goes_to_the_most_common_answer_and_a_tie_to_the_nearest() -> None:
    assert vote(["red", "blue", "Red."]) == "Red."
    assert vote(["red", "blue"]) == "blue"
    assert vote(["red", "red", "blue"]) == "red"


def test_an_oracle_that_may_stop_takes_the_shortest_of_the_best() -> None:
    zero, steps = [own("", 0.6)], [[own("a", 0.3), own("ab", 0.6), own("abc", 1.0)]]
    assert [oracle_any(zero, steps, n)[0].demos for n in (1, 2, 3)] == [(), (), demos("abc")]


def test_the_summary_has_means_over_shots_intervals_and_spreads_of_draws() -> None:
    results = results_from(
        {
            "zero_shot": {0: [0, 0, 1, 0]},
            "random": {1: [0, 0, 1, 0], 2: [0, 0, 1, 1]},
            "learned": {1: [1, 0, 1, 0], 2: [1, 0, 1, 1]},
            "oracle": {1: [1, 1, 1, 0], 2: [1, 1, 1, 1]},
            "oracle_exhaustive": {1: [1, 1, 1, 0]},
        }
    )
    results.add("random", 1, [Prediction(item, (), "x", 1.0) for item in results.items])
    found = summary(results)
    assert found["arms"]["learned"]["mean"] == 0.625
    assert found["arms"]["zero_shot"]["mean"] == 0.25
    assert "mean" not in found["arms"]["oracle_exhaustive"]
    assert found["arms"]["random"]["shots"]["1"] == 0.625
    assert found["arms"]["random"]["draw_sd"] == {"1": pytest.approx(0.75 / 2**0.5)}
    low, high = found["arms"]["learned"]["ci95"]["1"]
    assert low < 0.5 < high
    assert set(found["gap_closed"]) == {"learned"}
    assert found["gap_closed"]["learned"]["2"] == 0.5


def test_no_gap_is_closed_where_there_is_none() -> None:
    assert gap_closed({"random": {"shots": {"1": 0.5}, "mean": 0.5}}) == {}
    arms = {name: {"shots": {"1": 0.5}, "mean": 0.5} for name in ("random", "oracle", "learned")}
    assert gap_closed(arms) == {"learned": {}}


def test_an_arm_without_demonstrations_is_compared_with_every_shot() -> None:
    results = results_from({"zero_shot": {0: [0, 0, 1, 0]}, "learned": {1: [1, 0, 1, 0], 2: [1, 1, 1, 1]}})
    rows = comparisons(results, [("learned", "zero_shot")])
    assert [(row["shots"], row["helped"], row["harmed"]) for row in rows] == [(1, 1, 0), (2, 3, 0)]
    assert all(row["p_adjusted"] >= row["p_value"] for row in rows)


def test_calls_for_every_point_gained_are_none_where_nothing_is_gained() -> None:
    arms = {
        name: {"mean": mean} for name, mean in (("zero_shot", 0.2), ("mmr", 0.6), ("label_vote", 0.9), ("learned", 0.5))
    }
    found = call_cost(arms, [], 3000)
    assert found["zero_shot"]["calls_per_point"] == pytest.approx(100.0)
    assert found["best_baseline"]["baseline"] == "mmr"
    assert found["best_baseline"]["calls_per_point"] is None


def test_tokens_for_every_point_are_those_beyond_zero_shot() -> None:
    results = results_from({"zero_shot": {0: [0, 0]}})
    results.draws["zero_shot"][0][0] = [Prediction(item, (), "x", 0.0, 10, 0.1) for item in results.items]
    results.add("learned", 1, [Prediction(item, demos("a"), "x", 0.5, 30, 0.2) for item in results.items])
    assert query_cost(results)["learned"]["1"] == {
        "tokens": 30.0,
        "seconds": pytest.approx(0.2),
        "tokens_per_point": pytest.approx(20 / 50),
        "points": pytest.approx(50.0),
    }
