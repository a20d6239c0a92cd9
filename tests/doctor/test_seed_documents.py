"""What five long reports on failed trainings print is enough for these findings, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from leverplus.doctor.examine import examine
from leverplus.doctor.read import read_target

SEEDS = Path(__file__).parents[2].parent / "shared" / "seeds"
pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason=f"the seed documents are not at {SEEDS}")


def findings(number):
    (path,) = SEEDS.glob(f"{number}_*.txt")
    return {finding.code: finding for finding in examine(read_target(path))}


def test_the_first_names_the_reference_problem_and_the_wrong_thing_to_watch():
    found = findings("000")
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
    assert (noise.evidence["n"], noise.evidence["settled"]) == (200, 0)


def test_the_second_finds_what_its_ten_plans_overlooked():
    found = findings("001")
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
    assert "plan 5+8 epoch 50 is digit-identical to plan 5 epoch 50" in found["identical_rows"].title
    best = found["claimed_best_is_not"].evidence
    assert (best["claimed_epoch"], best["best_epoch"]) == (2, 1)
    assert (best["claimed"], best["best"]) == (5.14132, 5.13576)
    noise = found["difference_inside_noise"]
    assert "plan 5 +0.38 is within noise" in noise.title
    assert (noise.evidence["n"], noise.evidence["comparisons"], noise.evidence["settled"]) == (800, 32, 0)
    assert found["kl_at_start"].evidence["trainings"] == 4


def test_the_third_compares_without_saying_on_how_many_items():
    assert set(findings("002")) == {"comparison_without_n"}


def test_the_fourth_measures_on_the_first_items_of_a_file():
    found = findings("003")
    assert set(found) == {"batch_of_one", "accuracy_falls_with_n", "difference_inside_noise", "missing_anchors"}
    noise = found["difference_inside_noise"]
    assert (noise.evidence["n"], noise.evidence["settled"]) == (200, 0)
    assert noise.evidence["largest_diff"] == pytest.approx(-0.057)
    assert "Accuracy falls as n grows, at 4 numbers of shots" in found["accuracy_falls_with_n"].title


def test_the_fifth_wants_a_larger_learning_rate_where_there_is_no_signal():
    found = findings("004")
    assert set(found) == {"advantage_std_tiny", "comparison_without_n", "learning_rate_without_signal"}
    assert found["learning_rate_without_signal"].code in found["advantage_std_tiny"].consequences
    assert "cannot mend missing signal" in found["learning_rate_without_signal"].title
