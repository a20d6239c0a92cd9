"""The record of one comparison: its numbers by hand, its correction, and what it forbids to claim."""

import json
from dataclasses import replace

import numpy as np
import pytest

from leverplus.evaluate.stats import (
    Changes,
    adjust,
    compare,
    known_interval,
    mcnemar_test,
    mean_interval,
    minimum_detectable_effect,
    paired_bootstrap,
    sign_flip_test,
)
from leverplus.evaluate.stats.paired import blocks

A = np.array([1.0] * 60 + [0.0] * 40)
B = np.array([1.0] * 40 + [0.0] * 20 + [1.0] * 5 + [0.0] * 35)


def test_the_record_holds_difference_help_harm_and_p_value() -> None:
    result = compare(A, B)
    assert (result.n, result.helped, result.harmed) == (100, 20, 5)
    assert result.diff == pytest.approx(0.15)
    assert result.p_value == result.p_adjusted == pytest.approx(mcnemar_test(20, 5))
    assert result.ci95[0] < 0.15 < result.ci95[1]
    assert result.mde80 == minimum_detectable_effect(100, Changes(0.25))
    assert not result.within_noise


def test_the_json_form_has_the_names_of_the_result_file() -> None:
    record = json.loads(json.dumps(compare(A, B).as_json()))
    assert set(record) == {
        "n",
        "diff",
        "ci95",
        "p_value",
        "p_adjusted",
        "mde80",
        "mde80_adjusted",
        "helped",
        "harmed",
    }
    assert isinstance(record["ci95"], list)


def test_swapping_the_arms_turns_the_sign_and_nothing_else() -> None:
    forward, backward = compare(A, B), compare(B, A)
    assert backward.diff == -forward.diff
    assert (backward.helped, backward.harmed) == (forward.harmed, forward.helped)
    assert (backward.p_value, backward.mde80) == (forward.p_value, forward.mde80)


def test_equal_arms_claim_nothing() -> None:
    result = compare(A, A)
    assert (result.diff, result.p_value, result.helped, result.harmed) == (
        0.0,
        1.0,
        0,
        0,
    )
    assert result.ci95[0] < 0.0 < result.ci95[1]
    assert result.mde80 == minimum_detectable_effect(100, Changes(0.0))
    assert result.within_noise


def test_correction_over_many_comparisons_can_take_a_claim_back() -> None:
    weak = compare([1.0] * 8 + [0.0] * 92, [0.0] * 99 + [1.0])  # 8 helped, 1 harmed
    assert weak.p_value < 0.05 < 20 * weak.p_value
    adjusted = adjust([weak] * 20)
    assert all(result.within_noise for result in adjusted)
    assert adjusted[0].p_adjusted == pytest.approx(20 * weak.p_value)
    assert adjusted[0].p_value == weak.p_value
    assert adjust([]) == []


def test_copies_of_an_image_make_no_difference_more_certain() -> None:
    clusters = np.repeat(np.arange(100), 4).tolist()
    once, copied = (
        compare(A, B),
        compare(np.repeat(A, 4), np.repeat(B, 4), clusters=clusters),
    )
    assert copied.n == 400
    assert copied.p_value == pytest.approx(once.p_value)
    assert copied.mde80 == pytest.approx(once.mde80)
    assert copied.ci95 == pytest.approx(once.ci95, abs=0.01)


def test_a_single_item_or_picture_is_compared_and_claims_nothing() -> None:
    one = compare([1.0], [0.0])
    assert (one.n, one.diff, one.ci95, one.p_value, one.mde80) == (
        1,
        1.0,
        (-1.0, 1.0),
        1.0,
        1.0,
    )
    assert (one.helped, one.harmed) == (1, 0)
    assert one.within_noise
    picture = compare([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], clusters=["a", "a", "a"])
    assert (picture.n, picture.ci95, picture.p_value) == (3, (-1.0, 1.0), 1.0)


def test_a_single_item_or_picture_has_no_interval() -> None:
    assert known_interval([1.0]) is None
    assert known_interval([1.0, 0.0], clusters=["a", "a"]) is None
    assert known_interval([1.0, 0.0, 1.0]) == mean_interval([1.0, 0.0, 1.0])


def test_a_claim_needs_a_small_p_value_and_an_interval_on_one_side() -> None:
    base = compare(A, B)
    for p_adjusted, ci95, noise in (
        (0.049, (0.01, 0.2), False),
        (0.05, (0.01, 0.2), True),
        (0.01, (0.0, 0.2), True),
        (0.01, (-0.2, 0.0), True),
        (0.01, (-0.2, -0.01), False),
        (0.2, (-0.1, 0.1), True),
    ):
        assert replace(base, p_adjusted=p_adjusted, ci95=ci95).within_noise is noise


@pytest.mark.slow
def test_a_comparison_takes_its_defaults_and_hands_on_what_it_is_told() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(40), rng.random(40)
    assert compare(a, b) == compare(a, b, resamples=10_000, seed=0)
    assert compare(a, b).ci95 == paired_bootstrap(a, b)
    assert compare(a, b, seed=1).ci95 == paired_bootstrap(a, b, seed=1)
    assert compare(a, b).p_value == sign_flip_test(a, b)
    images = [place // 2 for place in range(40)]
    grouped = compare(a, b, clusters=images)
    assert grouped.p_value == sign_flip_test(a, b, clusters=images)
    pieces = blocks(a - b, images)
    assert grouped.mde80 == minimum_detectable_effect(20, Changes.seen_in(pieces))


def test_what_is_detectable_under_the_correction_is_the_effect_found_at_its_first_step() -> (
    None
):
    alone = compare(A, B)
    among = adjust([alone] * 10)[0]
    assert alone.mde80_adjusted == alone.mde80 == among.mde80
    assert among.mde80_adjusted == minimum_detectable_effect(
        100, Changes(0.25), alpha=0.005
    )
    assert among.mde80_adjusted > 1.2 * among.mde80
