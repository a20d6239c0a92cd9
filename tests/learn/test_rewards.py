"""Rewards: hand-worked values of every mode, normalisations, and the refusal to invent what was not measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus import catalog
from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import NotMeasured
from leverplus.learn.maths import rewards
from leverplus.learn.maths.rewards import Evidence, Weights


def score(
    accuracy: float,
    p: float | None = 0.5,
    demos: tuple[str, ...] = ("a",),
    f1: float = 0.4,
    edit: float = 0.2,
) -> Score:
    logprob = None if p is None else math.log(p) if p else -math.inf
    return Score(
        query=ItemId("q"),
        demos=tuple(ItemId(demo) for demo in demos),
        raw="x",
        answer="x",
        accuracy=accuracy,
        correct=accuracy > 0,
        references=(
            Reference("x", 3, logprob),
            Reference("y", 0, None if p is None else math.log(0.5)),
        ),
        token_f1=f1,
        edit_similarity=edit,
        tokens=1,
        seconds=0.0,
    )


RIGHT = Evidence(
    score(0.6, 0.5),
    prefix=score(0.0, 0.46),
    log_mu=-2.0,
    rivals=(score(0.6, 0.5), score(0.0, 0.2)),
    expected=0.4,
)
WRONG = Evidence(
    score(0.0, 0.2),
    prefix=score(0.0, 0.05),
    log_mu=-3.0,
    rivals=(score(0.6, 0.5), score(0.0, 0.2)),
    expected=0.1,
)

HAND = {
    "hard_plus_soft": (1.6, 0.0),
    "hard_plus_soft_v2": (2.6, 0.0),
    "separated": (2.6, 0.0),
    "hard_only": (1.0, 0.0),
    "soft_only": (0.6, 0.0),
    "expected_accuracy": (0.4, 0.1),
    "gt_prob": (0.5, 0.2),
    "log_prob": (0.0, math.log(0.2 / 0.5)),
    "choice_prob": (0.5, 0.2 / 0.7),
    "hard_plus_gtprob": (1.5, 0.2),
    "hard01_plus_gtprob": (1.5, 0.2),
    "hard01_plus_gtprob_separated": (2.5, 0.2),
    "hard_plus_gtprob_plus_rel": (1.5, 0.24),
    "legacy": (0.5 * 0.04 + 1.0, 0.5 * 0.15),
    "hybrid": (0.5 * 0.4 + 0.5 * 1.3, 0.5),
    "rank": (1.0, 0.0),
}


def test_every_reward_of_the_catalog_gives_the_value_worked_by_hand() -> None:
    assert set(HAND) == set(catalog.REWARDS)
    for name, (right, wrong) in HAND.items():
        reward = catalog.load(catalog.REWARDS, name, "reward")
        assert reward(RIGHT, Weights()) == pytest.approx(right), name
        assert reward(WRONG, Weights()) == pytest.approx(wrong), name


def test_an_expectation_that_nobody_learnt_is_no_zero() -> None:
    with pytest.raises(NotMeasured, match="no model of expected accuracy"):
        rewards.expected_accuracy(Evidence(score(0.6, 0.5)), Weights())


def test_the_log_of_probabilities_tells_tiny_ones_apart() -> None:
    rivals = tuple(score(0.0, p) for p in (4e-30, 1e-30, 0.0))
    found = [
        rewards.log_prob(Evidence(one, rivals=rivals), Weights()) for one in rivals
    ]
    assert found == pytest.approx([0.0, -math.log(4.0), -5.0])
    shares = [math.exp(value) for value in found[:2]]
    assert shares[0] / shares[1] == pytest.approx(4.0)


def test_every_reward_is_clipped_at_five() -> None:
    heavy = Weights(hard=100.0, soft=100.0, alpha=1000.0, beta=1000.0)
    for name in catalog.REWARDS:
        value = catalog.load(catalog.REWARDS, name, "reward")(RIGHT, heavy)
        assert abs(value) <= 5.0


def test_separated_equals_hard_plus_soft_v2_for_binary_correctness() -> None:
    for evidence in (RIGHT, WRONG):
        weights = Weights(hard=0.7, soft=0.3)
        assert rewards.separated(evidence, weights) == pytest.approx(
            rewards.hard_plus_soft_v2(evidence, weights)
        )


@pytest.mark.parametrize(
    "mode",
    [
        "gt_prob",
        "log_prob",
        "hard_plus_gtprob",
        "hard_plus_gtprob_plus_rel",
        "hybrid",
        "rank",
    ],
)
def test_a_reward_whose_field_was_not_measured_raises(mode: str) -> None:
    blind = score(0.6, None)
    with pytest.raises(NotMeasured):
        catalog.load(catalog.REWARDS, mode, "reward")(
            Evidence(blind, prefix=blind, rivals=(blind, blind)), Weights()
        )


def test_a_gain_without_a_scored_prefix_raises_and_says_what_to_do() -> None:
    with pytest.raises(NotMeasured, match=r"reward\.mode"):
        rewards.hybrid(Evidence(score(1.0)), Weights())
    with pytest.raises(NotMeasured, match="log-probability of a sequence"):
        rewards.legacy(Evidence(score(1.0)), Weights(quality="logprob"))
    with pytest.raises(NotMeasured, match="group"):
        rewards.rank(Evidence(score(1.0)), Weights())


def test_legacy_can_use_the_log_density_and_plus_minus_one() -> None:
    weights = Weights(alpha=0.2, beta=1.0, quality="logprob", correctness="pm1")
    assert rewards.legacy(RIGHT, weights) == pytest.approx(0.2 * 2.0 + 1.0)
    assert rewards.legacy(WRONG, weights) == pytest.approx(0.2 * 3.0 - 1.0)


def test_weights_can_differ_by_the_number_of_shots() -> None:
    weights = Weights(
        hard=2.0, soft=1.0, hard_by_shots=(1.0, 0.5), soft_by_shots=(3.0,)
    )
    assert [weights.for_shots(n).hard for n in (0, 1, 2, 4)] == [2.0, 2.0, 1.0, 1.0]
    assert weights.for_shots(4).soft == 3.0


def test_rank_reward_shares_ties() -> None:
    group = (score(0.6, 0.5), score(0.6, 0.5), score(0.0, 0.9))
    values = [
        rewards.rank(Evidence(member, rivals=group), Weights()) for member in group
    ]
    assert values == pytest.approx([0.75, 0.75, 0.0])


def test_normalisations_match_hand_worked_values() -> None:
    values = [0.0, 0.0, 1.6, 2.0]
    mean, spread = 0.9, np.std(values, ddof=1)
    assert rewards.normalise(values, "z_score") == pytest.approx(
        (np.array(values) - mean) / spread
    )
    assert rewards.normalise(values, "rank") == pytest.approx(
        [-2 / 3, -2 / 3, 1 / 3, 1.0]
    )
    assert rewards.normalise([0.0] * 40 + [1.0], "z_score_clamp")[-1] == 3.0
    assert rewards.normalise([0.7, 0.7], "z_score").tolist() == [0.7, 0.7]
    assert rewards.normalise([0.7, 0.7], "rank").tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="z_score_clamp"):
        rewards.normalise([1.0], "zscore")


@given(st.lists(st.integers(0, 4), min_size=2, max_size=12))
def test_rank_normalisation_has_mean_zero_and_keeps_ties(values: list[int]) -> None:
    ranks = rewards.normalise([float(value) for value in values], "rank")
    assert abs(ranks.mean()) < 1e-9
    assert len(set(ranks.tolist())) == len(set(values))


def test_components_are_normalised_before_they_are_summed() -> None:
    wide, narrow = np.array([0.0, 100.0, 0.0, 100.0]), np.array([0.0, 0.0, 0.01, 0.01])
    both = rewards.combine([wide, narrow], [1.0, 1.0], "z_score")
    assert both[3] == pytest.approx(-both[0])
    assert both[1] == pytest.approx(both[2])


def test_adaptive_weights_give_every_component_the_same_spread() -> None:
    generator = np.random.default_rng(0)
    groups = [
        [generator.normal(0, 2.0, 50), generator.normal(0, 0.1, 50), np.zeros(50)]
        for _ in range(30)
    ]
    weights = rewards.adaptive_weights(groups, [1.0, 1.0, 1.0])
    spreads = [
        weight * np.mean([np.std(group[c]) for group in groups])
        for c, weight in enumerate(weights)
    ]
    assert spreads[0] == pytest.approx(spreads[1])
    assert weights[2] == 0.0
    assert sum(weights) == pytest.approx(3.0)


@pytest.mark.parametrize(("gain", "quality"), [(0.04, 0.4), (0.3, 1.0), (-0.4, 0.0)])
def test_the_gain_in_hybrid_is_bounded_on_both_sides(
    gain: float, quality: float
) -> None:
    evidence = Evidence(score(0.0, 0.5), prefix=score(0.0, 0.5 - gain, ()))
    assert rewards.hybrid(evidence, Weights(alpha=0.5)) == pytest.approx(0.5 * quality)


WEIGHED = {
    "hard_plus_soft": 0.5 + 3.0 * 0.6,
    "hard_plus_soft_v2": 1.0 + 3.0 * 0.6,
    "separated": 1.0 + 3.0 * 0.6,
    "hard_only": 0.5,
    "soft_only": 3.0 * 0.6,
    "expected_accuracy": 3.0 * 0.4,
    "gt_prob": 3.0 * 0.5,
    "log_prob": 0.0,
    "choice_prob": 3.0 * 0.5,
    "hard_plus_gtprob": 0.5 + 3.0 * 0.5,
    "hard01_plus_gtprob": 0.5 + 3.0 * 0.5,
    "hard01_plus_gtprob_separated": 1.0 + 3.0 * 0.5,
    "hard_plus_gtprob_plus_rel": 0.5 + 3.0 * 0.5,
    "legacy": 0.25 * 0.04 + 2.0,
    "hybrid": 0.25 * 0.4 + 0.75 * 1.3,
    "rank": 3.0,
}


@pytest.mark.parametrize("name", sorted(WEIGHED))
def test_every_reward_is_weighed_by_its_own_weights(name: str) -> None:
    weights = Weights(hard=0.5, soft=3.0, rel=0.7, alpha=0.25, beta=2.0)
    reward = catalog.load(catalog.REWARDS, name, "reward")
    assert reward(RIGHT, weights) == pytest.approx(WEIGHED[name])


def test_weights_are_those_of_the_manual_unless_told() -> None:
    usual = Weights()
    assert (usual.hard, usual.soft, usual.rel, usual.alpha, usual.beta) == (
        1.0,
        1.0,
        0.1,
        0.5,
        1.0,
    )
    assert rewards.LIMIT == 5.0
    assert rewards.soft_only(Evidence(score(1.0)), Weights(soft=-100.0)) == -5.0
    assert rewards.soft_only(Evidence(score(1.0)), Weights(soft=100.0)) == 5.0
    assert rewards.soft_only(Evidence(score(1.0)), Weights(soft=4.5)) == 4.5


def test_relevance_counts_for_wrong_answers_only() -> None:
    wrong = rewards.hard_plus_gtprob_plus_rel(WRONG, Weights(rel=0.5))
    assert wrong == pytest.approx(0.2 + 0.5 * WRONG.score.relevance)
    right = rewards.hard_plus_gtprob_plus_rel(RIGHT, Weights(rel=0.5))
    assert right == pytest.approx(1.5)


def test_without_weight_on_quality_legacy_needs_no_gain() -> None:
    assert rewards.legacy(Evidence(score(1.0)), Weights(alpha=0.0, beta=2.0)) == 2.0


def test_a_prompt_alone_is_in_the_middle_and_ties_share_over_a_larger_group() -> None:
    assert rewards.rank(
        Evidence(score(1.0), rivals=(score(1.0),)), Weights(soft=0.8)
    ) == pytest.approx(0.4)
    group = (score(0.6, 0.5), score(0.0, 0.9), score(0.0, 0.2), score(0.0, 0.2))
    values = [
        rewards.rank(Evidence(member, rivals=group), Weights()) for member in group
    ]
    assert values == pytest.approx([1.0, 2 / 3, 1 / 6, 1 / 6])


def test_ranks_share_ties() -> None:
    assert rewards.average_ranks(np.array([0.3, 0.1, 0.3, 0.9])).tolist() == [
        1.5,
        0.0,
        1.5,
        3.0,
    ]


def test_a_spread_above_rounding_is_scaled_however_small_it_is() -> None:
    """The n - 1 deviation of 0 and x is x / sqrt(2): 1.5e-12 is a spread, 0.9e-12 is rounding."""
    root = 2.0**0.5
    assert rewards.normalise(
        [0.0, 1.5e-12 * root], "z_score"
    ).tolist() == pytest.approx([-1 / root, 1 / root])
    assert rewards.normalise([0.0, 0.9e-12 * root], "z_score").tolist() == [
        0.0,
        0.9e-12 * root,
    ]


def test_normalising_small_groups_and_its_bounds() -> None:
    assert rewards.normalise([0.7], "rank").tolist() == [0.0]
    assert rewards.normalise([0.7], "z_score").tolist() == [0.7]
    assert rewards.normalise([0.0, 1.0], "rank").tolist() == [-1.0, 1.0]
    assert rewards.normalise([0.0, 2.0], "z_score").tolist() == pytest.approx(
        [-(0.5**0.5), 0.5**0.5]
    )
    assert rewards.normalise([0.1, 0.2], "none").tolist() == [0.1, 0.2]
    far = [0.0] * 40 + [1.0]
    assert rewards.normalise(far, "z_score").max() > 6.0
    assert rewards.normalise(far, "z_score_clamp", 2.0).max() == 2.0
    assert rewards.normalise([-value for value in far], "z_score_clamp").min() == -3.0
    tiny = rewards.normalise([0.0, 1e-11], "z_score")
    assert tiny.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5]), (
        "a small spread is a spread"
    )


def test_components_are_weighed_and_must_match() -> None:
    found = rewards.combine(
        [np.array([0.0, 1.0]), np.array([3.0, 1.0])], [2.0, 0.5], "none"
    )
    assert found.tolist() == [1.5, 2.5]
    clamped = rewards.combine([np.array([0.0] * 40 + [1.0])], [1.0], "z_score_clamp")
    assert clamped.max() == 3.0
    for components, weights in (([], []), ([np.zeros(2)], [1.0, 2.0])):
        with pytest.raises(ValueError, match="components"):
            rewards.combine(components, weights, "none")


def test_adaptive_weights_by_hand_and_where_nothing_spreads() -> None:
    groups = [
        [np.array([0.0, 2.0]), np.array([0.0, 0.5])],
        [np.array([0.0, 6.0]), np.array([0.0, 1.5])],
    ]
    assert rewards.adaptive_weights(groups, [1.0, 2.0]) == pytest.approx(
        [3.0 * 0.5 / 4.5, 3.0 * 4.0 / 4.5]
    )
    flat = [[np.zeros(2), np.ones(2)]]
    assert rewards.adaptive_weights(flat, [1.0, 3.0]) == [1.0, 3.0]
    hardly = [[np.array([0.0, 1.6e-6]), np.array([0.0, 2.0])]]
    assert rewards.adaptive_weights(hardly, [1.0, 1.0])[0] == 0.0, (
        "less than a millionth is no spread"
    )
    with pytest.raises(NotMeasured, match="at least one group"):
        rewards.adaptive_weights([], [1.0])
