from __future__ import annotations

import pytest

from leverplus.report.verdict import headline, verdict, within_noise
from leverplus.stats import Comparison


def row(baseline="nearest_text", shots=1, *, diff=0.1, ci95=(0.02, 0.18), p=0.01, arm="learned"):
    return {
        "arm": arm, "baseline": baseline, "shots": shots, "n": 200, "diff": diff, "ci95": list(ci95), "p_value": p,
        "p_adjusted": p, "mde80": 0.07, "helped": 30, "harmed": 10,
    }  # fmt: skip


def report(*rows, **accuracy):
    arms = {name: {"shots": {"1": value, "2": value}} for name, value in accuracy.items()}
    return {"comparisons": list(rows), "arms": arms}


def test_a_clear_difference_is_called_above_or_below_with_its_interval() -> None:
    text = verdict(report(row(), nearest_text=0.5))
    assert "is above nearest by text" in text
    assert "+10.0 points, 95 % interval +2.0 to +18.0, n = 200, p = 0.01 after correction" in text
    assert text.endswith("It helped 30 items and harmed 10.")
    assert "is below" in verdict(report(row(diff=-0.1, ci95=(-0.18, -0.02)), nearest_text=0.5))


@pytest.mark.parametrize("noisy", [row(p=0.2), row(ci95=(-0.01, 0.2)), row(ci95=(0.0, 0.2))])
def test_a_difference_inside_the_noise_claims_nothing_and_says_what_could_be_seen(noisy) -> None:
    text = verdict(report(noisy, nearest_text=0.5))
    assert "cannot be told from" in text
    assert "above" not in text
    assert "200 items miss a true difference below 7.0 points more than one time in five" in text


@pytest.mark.parametrize("p", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("ci95", [(-0.1, 0.1), (0.0, 0.1), (0.01, 0.1), (-0.2, -0.1)])
def test_noise_is_what_the_statistics_call_noise(p, ci95) -> None:
    comparison = Comparison(200, 0.1, ci95, p, p, 0.07, 30, 10)
    assert within_noise(row(ci95=ci95, p=p)) is comparison.within_noise


def test_the_rival_is_the_best_nearest_arm_at_the_fewest_shots() -> None:
    rows = [row("nearest_text", 2), row("nearest_both", 2), row("nearest_image", 4), row("zero_shot", 1)]
    rows.append(row("nearest_text", 1, arm="learned_auto"))
    chosen = headline({"comparisons": rows, "arms": {
        "nearest_text": {"shots": {"2": 0.4}}, "nearest_both": {"shots": {"2": 0.6}},
        "nearest_image": {"shots": {"4": 0.9}}, "zero_shot": {"shots": {"0": 0.9}},
    }})  # fmt: skip
    assert chosen is rows[1]
    assert "At 2 shots" in verdict(report(*rows[:2], nearest_text=0.4, nearest_both=0.6), shots=2)


def test_without_a_comparison_it_says_so() -> None:
    assert verdict(report()) == "No learned selector was compared with a nearest arm."
    assert verdict(report(row("zero_shot"))) == "No learned selector was compared with a nearest arm."
