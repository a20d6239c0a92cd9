"""What printed accuracies can show is checked against simulations whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from doctor_cases import REPORT, WORLD, compared, near, report

from leverplus.doctor.evaluation import below_training_free, settled_differences
from leverplus.doctor.examine import examine
from leverplus.doctor.ratio import _inverse_k3
from leverplus.doctor.records import Arm, Published, Record, Series
from leverplus.doctor.records import Epoch as Line
from leverplus.doctor.shots import beyond_trained_length


def published(rng: np.random.Generator, n: int, gain: float, shared: float) -> Record:
    """Two arms on n items at four numbers of shots; with chance `shared` both see the same luck on an item."""
    left, right = {}, {}
    for shots in (1, 2, 3, 4):
        luck = rng.random(n)
        other = np.where(rng.random(n) < shared, luck, rng.random(n))
        left[shots], right[shots] = float((luck < 0.5).mean()), float((other < 0.5 + gain).mean())
    arms = (Arm("baseline", left, n, 1, True), Arm("plan 1", right, n, 1))
    return Record(published=Published(arms=arms))


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_equal_arms_are_rarely_told_apart_however_much_they_share(shared):
    rng = np.random.default_rng(0)
    false = sum(bool(settled_differences(published(rng, 400, 0.0, shared))) for _ in range(150))
    assert false <= 13  # 5 % of 150 is 7.5; 13 has a chance of 3 % even then


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_a_large_true_gain_on_many_items_is_settled_and_a_small_one_on_few_is_not(shared):
    rng = np.random.default_rng(1)
    large, small = published(rng, 3000, 0.12, shared), published(rng, 200, 0.02, shared)
    assert len(settled_differences(large)) == 4
    assert "difference_inside_noise" not in {finding.code for finding in examine(large)}
    assert "difference_inside_noise" in {finding.code for finding in examine(small)}


def test_the_inverted_estimate_is_solved_for_the_nats_behind_it():
    for nats in (0.1, 1.0, 3.06, 6.0):
        assert _inverse_k3(math.exp(nats) - 1.0 - nats) == pytest.approx(nats)
    assert math.exp(3.06) - 1.0 - 3.06 == pytest.approx(17.27, abs=0.01)


def test_three_kept_members_of_two_levels_leave_the_print_the_doctor_looks_for():
    kept = np.array([1.0, 0.0, 0.0])
    z = (kept - kept.mean()) / kept.std(ddof=1)
    assert z.max() / z.std(ddof=1) == pytest.approx(1.155, abs=1e-3)
    five = [np.array([1.0] * k + [0.0] * (5 - k)) for k in (1, 2)]
    ratios = [(v.max() - v.mean()) / v.std(ddof=1) for v in five]
    assert np.mean(ratios) == pytest.approx(1.44, abs=0.01)
    live = 0.006
    lines = tuple(Line(e, {"adv/std": live, "adv/max": live * r}) for e, r in ((1, z.max()), (2, np.mean(ratios))))
    (finding,) = examine(Record(series=(Series("grpo", lines),), published=Published()))
    assert finding.code == "advantage_std_tiny"
    assert "which fits" in finding.cause


@pytest.mark.parametrize("spread", [0.03, 0.2])
def test_a_small_spread_of_rewards_that_were_only_centred_is_no_missing_signal(spread):
    lines = tuple(Line(e, {"adv/std": spread, "frac_reward_zero_std": 0.02}) for e in (1, 2))
    codes = {"top_k_before_baseline", "advantage_std_tiny"}
    whole = {"grpo.topk_before_advantage": False}
    found = {f.code for f in examine(Record(series=(Series("grpo", lines),), settings=whole))}
    assert not found & codes
    assert codes & {f.code for f in examine(Record(series=(Series("grpo", lines),)))}
    flat = tuple(Line(e, {"adv/std": 0.03, "frac_reward_zero_std": 0.97}) for e in (1, 2))
    assert "advantage_std_tiny" in {f.code for f in examine(Record(series=(Series("grpo", flat),), settings=whole))}


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        ([near(-0.076, -0.138, -0.014, 0.016)], "error"),  # clearly below after correction
        ([near(-0.076, -0.138, -0.014, 0.4)], "warning"),  # below, and one of many comparisons
        ([near(-0.05, -0.1, 0.0, 0.5), near(0.02, -0.1, 0.1, 1.0, shots=2)], "warning"),
        ([near(-0.02, -0.1, 0.06, 1.0), near(0.03, -0.1, 0.1, 1.0, shots=2)], None),  # above in the mean
        ([{**near(-0.2, -0.3, -0.1, 0.001), "arm": "learned_auto"}], None),
        ([{**near(-0.2, -0.3, -0.1, 0.001), "baseline": "label_vote"}], None),  # chooses no demonstrations
    ],
)
def test_a_selector_below_the_nearest_demonstrations_is_named_with_its_rival(rows, severity):
    found = below_training_free(report(comparisons=rows))
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])
    assert all("nearest by both" in finding.title for finding in found)
    if severity == "warning":
        assert "cannot tell from noise" in found[0].title


def test_the_rival_is_the_one_that_is_furthest_above():
    far = {**near(-0.1, -0.2, -0.02, 0.01), "baseline": "mmr"}
    (finding,) = below_training_free(report(comparisons=[near(-0.02, -0.1, 0.05, 1.0), far]))
    assert finding.evidence["rival"] == "mmr"


@pytest.mark.parametrize(("gain", "said"), [(0.01, True), (0.04, True), (0.15, False)])
def test_a_gain_that_lasts_beyond_the_trained_length_is_no_warning_though_few_items_hide_it(gain, said):
    record = Record(
        settings={**WORLD, "score.search": "dense"},
        report={**REPORT, "comparisons": [compared(0.1, 0.02, 0.18, 1), compared(gain, gain - 0.2, gain + 0.2, 4)]},
    )
    found = beyond_trained_length(record)
    assert bool(found) is said
    if said:
        assert found[0].title.startswith(f"Trained on 1 shot; at 4 it is {100 * gain:+.1f} points from random (")
