"""What five reports on failed trainings print is enough for these findings, and for no others.

`reports/` holds their figures in short, in our own words; the long ones are read too where they lie beside the
repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leverplus_doctor.check import Finding, examine
from leverplus_doctor.read import read_target

SHORT = Path(__file__).parent / "reports"
LONG = Path(__file__).parents[2].parent / "shared" / "seeds"
NAMES = ("first", "second", "third", "fourth", "fifth")

Findings = Callable[[str], dict[str, Finding]]


@pytest.fixture(params=["short", "long"])
def findings(request: pytest.FixtureRequest) -> Findings:
    """What is found in a report, by its code."""
    if request.param == "long" and not LONG.is_dir():
        pytest.skip(
            "the long reports are not beside the repository; the short ones were read"
        )

    def found(name: str) -> dict[str, Finding]:
        if request.param == "short":
            path = SHORT / f"{name}.md"
        else:
            (path,) = LONG.glob(f"00{NAMES.index(name)}_*.txt")
        return {finding.code: finding for finding in examine(read_target(path))}

    return found


def test_the_first_names_the_reference_problem_and_the_wrong_thing_to_watch(
    findings: Findings,
) -> None:
    found = findings("first")
    assert set(found) == {
        "kl_at_start",
        "kl_weight_on_rails",
        "selected_by_loss",
        "kl_collapsed",
        "claimed_best_is_not",
        "loss_falls_by_kl_only",
        "difference_inside_noise",
        "missing_anchors",
    }
    first = next(iter(found.values()))
    assert first.code == "kl_at_start"
    assert first.evidence["kl_first"] == 20.68
    assert "clip" in first.cause
    assert set(first.consequences) >= {"kl_weight_on_rails", "kl_collapsed"}
    assert "cross-entropy" in found["selected_by_loss"].title
    noise = found["difference_inside_noise"]
    # the long one prints RCE-only too, whose -11.9 points at four shots stand
    assert (noise.evidence["n"], noise.evidence["settled"]) in ((200, 0), (200, 1))


def test_the_second_finds_what_its_ten_plans_overlooked(findings: Findings) -> None:
    found = findings("second")
    assert set(found) == {
        "top_k_before_baseline",
        "advantage_std_tiny",
        "kl_at_start",
        "identical_picks",
        "selected_by_loss",
        "identical_rows",
        "dead_setting",
        "same_run_twice",
        "learning_rate_without_signal",
        "claimed_best_is_not",
        "difference_inside_noise",
        "winners_curse",
        "missing_anchors",
    }
    tiny = found["advantage_std_tiny"]
    assert "under 1 % of the groups carry signal" in tiny.title
    assert tiny.evidence["adv_std"] == 0.0062
    assert tiny.evidence["max_over_std_first"] == pytest.approx(1.15, abs=0.02)
    assert tiny.evidence["max_over_std_last"] == pytest.approx(1.45, abs=0.01)
    assert "flat" in tiny.cause
    assert "top k" in tiny.cause
    assert "before any selection" in tiny.cure
    assert found["identical_picks"].evidence["identical"] == 1.0
    assert "plan 7.1, plan 7.2 are one experiment" in found["same_run_twice"].title
    assert found["same_run_twice"].evidence["spread_at_1_shot"] == pytest.approx(0.006)
    assert (
        "plan 5+8 epoch 50 is digit-identical to plan 5 epoch 50"
        in found["identical_rows"].title
    )
    best = found["claimed_best_is_not"].evidence
    assert (best["claimed_epoch"], best["best_epoch"]) == (2, 1)
    assert (best["claimed"], best["best"]) == (5.14132, 5.13576)
    noise = found["difference_inside_noise"]
    assert "plan 5 +0.38 is within noise" in noise.title
    assert (
        noise.evidence["n"],
        noise.evidence["comparisons"],
        noise.evidence["settled"],
    ) == (800, 32, 0)
    assert found["kl_at_start"].evidence["trainings"] == 4


def test_the_third_compares_without_saying_on_how_many_items(
    findings: Findings,
) -> None:
    assert set(findings("third")) == {"comparison_without_n"}


def test_the_fourth_measures_on_the_first_items_of_a_file(findings: Findings) -> None:
    found = findings("fourth")
    assert set(found) == {
        "batch_of_one",
        "accuracy_falls_with_n",
        "difference_inside_noise",
        "missing_anchors",
    }
    noise = found["difference_inside_noise"]
    assert (noise.evidence["n"], noise.evidence["settled"]) == (200, 0)
    assert noise.evidence["largest_diff"] == pytest.approx(-0.057)
    assert (
        "Accuracy falls as n grows, at 4 numbers of shots"
        in found["accuracy_falls_with_n"].title
    )


def test_the_fifth_wants_a_larger_learning_rate_where_there_is_no_signal(
    findings: Findings,
) -> None:
    found = findings("fifth")
    assert set(found) == {
        "advantage_std_tiny",
        "comparison_without_n",
        "learning_rate_without_signal",
    }
    assert (
        found["learning_rate_without_signal"].code
        in found["advantage_std_tiny"].consequences
    )
    assert "cannot mend missing signal" in found["learning_rate_without_signal"].title
