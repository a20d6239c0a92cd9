from __future__ import annotations

import pytest

from leverplus.report.verdict import advice, headline, notes, strongest, verdict, within_noise
from leverplus.stats import Comparison


def row(baseline="nearest_text", shots=1, *, diff=0.1, ci95=(0.02, 0.18), p=0.01, arm="learned"):
    return {
        "arm": arm, "baseline": baseline, "shots": shots, "n": 200, "diff": diff, "ci95": list(ci95), "p_value": p,
        "p_adjusted": p, "mde80": 0.07, "helped": 30, "harmed": 10,
    }  # fmt: skip


def report(*rows, **accuracy):
    arms = {name: {"shots": {"1": value, "2": value}, "mean": value} for name, value in accuracy.items()}
    return {"comparisons": list(rows), "arms": arms}


def test_a_clear_difference_is_called_above_or_below_with_its_interval() -> None:
    text = verdict(report(row(), nearest_text=0.5, learned=0.6))
    assert text.startswith("At 1 shot the learned selector has 60.0 % on 200 items.")
    assert "Its strongest rival, nearest by text, has 50.0 %" in text
    assert "is above it at 1 shot (+10.0 points, +2.0 to +18.0)" in text
    assert "is below" in verdict(report(row(diff=-0.1, ci95=(-0.18, -0.02)), nearest_text=0.5, learned=0.4))


@pytest.mark.parametrize("noisy", [row(p=0.2), row(ci95=(-0.01, 0.2)), row(ci95=(0.0, 0.2))])
def test_a_difference_inside_the_noise_claims_nothing(noisy) -> None:
    text = verdict(report(noisy, nearest_text=0.5, learned=0.5))
    assert "has 50.0 %: the learned selector cannot be told from it at 1 shot" in text
    assert "above" not in text


def test_an_interval_beside_zero_that_supports_no_claim_is_explained() -> None:
    corrected_away = report(row(p=0.2), nearest_text=0.5, learned=0.6)
    assert "(Differences are judged after correction for all comparisons;" in verdict(corrected_away)
    for other in (row(), row(ci95=(-0.01, 0.2), p=0.2)):
        assert "correction" not in verdict(report(other, nearest_text=0.5, learned=0.6))


def test_the_mean_is_said_to_be_over_the_shots_that_it_is_over() -> None:
    own = report(row(shots=1), row(shots=4), row(shots=16), nearest_text=0.5, learned=0.6)
    assert verdict(own).startswith("On average over 1 and 4 shots the learned selector has 60.0 %")
    many = report(row(shots=8), row(shots=16), nearest_text=0.5, learned=0.6)
    for arm in many["arms"].values():
        del arm["mean"]
    assert verdict(many).startswith("On average over 8 and 16 shots")


@pytest.mark.parametrize("p", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("ci95", [(-0.1, 0.1), (0.0, 0.1), (0.01, 0.1), (-0.2, -0.1)])
def test_noise_is_what_the_statistics_call_noise(p, ci95) -> None:
    comparison = Comparison(200, 0.1, ci95, p, p, 0.07, 30, 10)
    assert within_noise(row(ci95=ci95, p=p)) is comparison.within_noise


def test_every_number_of_shots_and_the_strongest_rival_of_all_are_named() -> None:
    lost = row("label_vote", 1, diff=-0.09, ci95=(-0.14, -0.03))
    rows = [row("mmr", 1), row("mmr", 2, p=0.5), lost, row("label_vote", 2, p=0.5), row("nearest_text")]
    own = report(*rows, learned=0.6, mmr=0.55, nearest_text=0.5)
    own["arms"]["label_vote"] = {"shots": {"0": 0.69}, "mean": 0.69}
    assert (strongest(own), strongest(own, prompts_only=True)) == ("label_vote", "mmr")
    text = verdict(own)
    assert "On average over 1 and 2 shots the learned selector has 60.0 %" in text
    assert "Its strongest rival, label vote (no model), has 69.0 %" in text
    assert "is below it at 1 shot (-9.0 points, -14.0 to -3.0) and cannot be told from it at 2 shots" in text
    assert "The strongest prompt without training, nearest, diverse (MMR), has 55.0 %" in text


def test_pictures_show_the_strongest_prompt_at_the_fewest_shots() -> None:
    rows = [row("nearest_text", 2), row("nearest_both", 2), row("zero_shot", 2), row("label_vote", 2)]
    rows.append(row("nearest_both", 1, arm="learned_auto"))
    own = report(*rows, nearest_text=0.4, nearest_both=0.6, zero_shot=0.1, label_vote=0.9)
    assert headline(own) is rows[1]


def test_without_a_comparison_it_says_so() -> None:
    assert verdict(report()) == "No learned selector was compared with other ways to choose."
    assert headline(report()) is None


def test_advice_and_notes_are_read_where_they_are() -> None:
    assert (advice({}), notes({}), advice({"advice": None}), notes({"notes": None})) == ("", [], "", [])
    assert advice({"advice": {"why": "Use mmr."}}) == "Use mmr."
    assert notes({"notes": ["order is missing"]}) == ["order is missing"]
