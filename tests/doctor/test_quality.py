"""The statistics of groups agree with a plain computation, and memory does not grow with the members."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from scipy.stats import spearmanr

from leverplus.doctor.quality import GroupMeter, Sample, group_stats, quartiles, spearman, tier_or_flat
from leverplus.doctor.tables import quality_rows, source_rows
from leverplus.errors import DataError


def sample(demos, accuracy, gt_prob=None, **parts):
    return Sample(tuple(demos), accuracy, gt_prob, **parts)


def test_a_hand_worked_file_of_three_queries():
    stats = group_stats(
        [
            [sample("ab", 1.0, 0.8, rank=0), sample("ac", 0.0, 0.1), sample("ad", 0.6, 0.5), sample("ad", 0.6, 0.5)],
            [sample("ab", 0.0, 0.2, rank=0), sample("cd", 0.0, 0.2)],
            [sample("ab", 1.0, 0.9), sample("cd", None), sample((), 0.3)],
        ]
    )
    assert (stats.queries, stats.members, stats.distinct, stats.unmeasured) == (3, 8, 7, 1)
    assert stats.positive == pytest.approx(4 / 7)
    assert stats.accuracy == pytest.approx((1 + 0.6 + 0.6 + 1) / 7)
    assert stats.oracle == pytest.approx((1 + 0 + 1) / 3)
    assert stats.flat == pytest.approx(2 / 3)
    assert (stats.all_zero, stats.all_one) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (stats.pick, stats.picked, stats.picked_oracle, stats.behind) == (0.5, 2, 0.5, 0.0)
    assert stats.lengths == {2: 7}
    assert stats.bins == {"0": 3, "(0, 0.5)": 0, "[0.5, 1)": 2, "1": 2}
    assert stats.within == pytest.approx(np.corrcoef([1, 0, 0.6, 0.6], [0.8, 0.1, 0.5, 0.5])[0, 1])


def test_a_group_with_equal_accuracies_but_different_gt_prob_is_not_flat():
    assert group_stats([[sample("ab", 0.0, 0.1), sample("cd", 0.0, 0.2)]]).flat == 0.0
    assert group_stats([[sample("ab", 0.0), sample("cd", 0.0)]]).flat == 1.0
    assert group_stats([[sample("ab", 0.0, 1e-7), sample("cd", 0.0, 2e-7)]]).flat == 1.0


def test_the_rank_correlation_agrees_with_scipy():
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 11, 3000) * 100, rng.integers(0, 1001, 3000)
    right = np.where(rng.random(3000) < 0.5, left, right)
    joint = Counter(zip(left.tolist(), right.tolist(), strict=True))
    assert spearman(joint) == pytest.approx(spearmanr(left, right).statistic, abs=1e-9)
    assert spearman(Counter({(0, 3): 4, (0, 5): 2})) is None


def test_quartiles_are_those_of_the_expanded_values():
    assert quartiles(Counter({1: 1, 2: 1, 3: 1, 10: 1})) == (1.0, 2.0, 3.0)
    assert quartiles(Counter({5: 100})) == (5.0, 5.0, 5.0)


def test_tiers_follow_their_rules():
    assert tier_or_flat(np.array([0.3, 0.3])) == "flat"
    assert tier_or_flat(np.array([1.0, 1, 1, 0, 0, 0])) == "high"
    assert tier_or_flat(np.array([0.6, 0.6, 0, 0])) == "medium"
    assert tier_or_flat(np.array([1.0, 0, 0, 0])) == "low"


def test_origins_are_counted_apart():
    group = [sample("ab", 1.0, source="beam"), sample("cd", 0.0, source="random"), sample("ef", 0.6, source="beam")]
    stats = group_stats([group])
    assert stats.sources["beam"].members == 2
    assert stats.sources["beam"].accuracy == pytest.approx(0.8)
    assert stats.sources["random"].positive == 0.0
    assert [row[0] for row in source_rows(stats)[1]] == ["beam", "random"]


def test_what_was_not_measured_has_no_row():
    names = [name for name, _ in quality_rows(group_stats([[sample("ab", 1.0)]]))]
    assert "mean accuracy" in names
    assert not any("gt_prob" in name or "pick" in name for name in names)


def test_no_members_at_all_is_an_error():
    with pytest.raises(DataError, match="no scored sequences"):
        group_stats([[]])


def test_memory_does_not_grow_with_the_number_of_members():
    rng = np.random.default_rng(1)

    def feed(queries: int) -> int:
        meter = GroupMeter()
        tracemalloc.start()
        for _ in range(queries):
            values = rng.integers(0, 11, 20) / 10
            meter.add([sample((1, place), float(v > 0.5), float(v)) for place, v in enumerate(values)])
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used

    feed(10)
    assert feed(400) < 1.2 * feed(100) + 20_000
