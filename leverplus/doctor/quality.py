"""Data quality of groups, streamed query by query: counts, repeats, positives, spread, origins, oracle and pick.

Memory does not grow with the number of members: joint counts of binned values replace the values themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leverplus.doctor.records import GroupStats, SourceStats
from leverplus.errors import DataError, NotMeasured
from leverplus.maths import signal
from leverplus.types import Group, Score

BINS = 1000  # of accuracy and of gt_prob: fine enough for ranks, and joint counts stay small
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One scored sequence of a query. `accuracy` and `gt_prob` are None where nobody measured them; `rank` is the
    place in the selector's own search; `estimated` by another metric than the official one; `borrowed` from another
    query."""

    demos: tuple[Hashable, ...]
    accuracy: float | None
    gt_prob: float | None = None
    source: str = ""
    rank: int | None = None
    density: bool = False
    estimated: bool = False
    borrowed: bool = False


def sample_of(score: Score, source: str = "", density: bool = False) -> Sample:
    """A score as a sample; gt_prob where its log-probabilities were measured."""
    try:
        gt_prob: float | None = score.gt_prob
    except NotMeasured:
        gt_prob = None
    return Sample(score.demos, score.accuracy, gt_prob, source, density=density)


Watch = Callable[[str, Sequence[Sample]], None]
"""Sees every query with its members as they pass, so that they can be written down one by one."""


class GroupMeter:
    """Adds up groups, one query at a time."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.counts: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.sizes: Counter[int] = Counter()
        self.positives: Counter[int] = Counter()
        self.lengths: Counter[int] = Counter()
        self.bins: Counter[str] = Counter()
        self.tiers: Counter[str] = Counter()
        self.joint: Counter[tuple[int, int]] = Counter()
        self.sources: dict[str, defaultdict[str, float]] = {}
        self.largest: float | None = None
        self.pools: Counter[int] = Counter()

    def add(self, samples: Sequence[Sample], pool: int | None = None, query: str = "") -> None:
        """One query with its scored sequences; a prompt without demonstrations is no member."""
        samples = [sample for sample in samples if sample.demos]
        if self.watch is not None:
            self.watch(query, samples)
        known = [sample for sample in samples if sample.accuracy is not None]
        self.counts["members"] += len(samples)
        self.counts["distinct"] += len({sample.demos for sample in samples})
        self.counts["unmeasured"] += len(samples) - len(known)
        self.counts["without_density"] += sum(not sample.density for sample in samples)
        self.counts["estimated"] += sum(sample.estimated for sample in samples)
        self.counts["borrowed"] += sum(sample.borrowed for sample in samples)
        if pool is not None:
            self.pools[pool] += 1
        if not known:
            return
        self.lengths.update(len(sample.demos) for sample in known)
        accuracy = np.array([sample.accuracy for sample in known], dtype=np.float64)
        gt_prob = self._gt_prob(known)
        self._query(accuracy, gt_prob)
        self._origins(known)
        self._pick(known, accuracy)

    def _gt_prob(self, known: Sequence[Sample]) -> Array | None:
        if any(sample.gt_prob is None for sample in known):
            return None
        return np.array([sample.gt_prob for sample in known], dtype=np.float64)

    def _query(self, accuracy: Array, gt_prob: Array | None) -> None:
        positive = int((accuracy > 0).sum())
        self.counts["queries"] += 1
        self.counts["positive"] += positive
        self.counts["measured"] += len(accuracy)
        self.sizes[len(accuracy)] += 1
        self.positives[positive] += 1
        self.sums["accuracy"] += float(accuracy.sum())
        self.sums["oracle"] += float(accuracy.max())
        self.sums["levels"] += len(np.unique(accuracy))
        zero = int((accuracy == 0.0).sum())
        half = int(((accuracy > 0) & (accuracy < 0.5)).sum())
        one = int((accuracy >= 1.0 - signal.FLAT).sum())
        self.bins.update({"0": zero, "(0, 0.5)": half, "[0.5, 1)": len(accuracy) - zero - half - one, "1": one})
        # a reward made of gt_prob can still tell members apart whose accuracies are all equal
        flat = signal.is_flat(accuracy) and (gt_prob is None or signal.is_flat(gt_prob))
        self.counts["flat"] += bool(flat)
        self.counts["all_zero"] += positive == 0
        self.counts["all_one"] += signal.all_right(accuracy)
        self.tiers[tier_or_flat(accuracy)] += 1
        if gt_prob is not None:
            self._correlate(accuracy, gt_prob)

    def _correlate(self, accuracy: Array, gt_prob: Array) -> None:
        top = float(gt_prob.max())
        self.largest = top if self.largest is None else max(self.largest, top)
        self.counts["gt_prob"] += len(gt_prob)
        self.sums["gt_prob"] += float(gt_prob.sum())
        # each pair of bins as one number, so that numpy counts equal pairs
        row = np.rint(accuracy * BINS).astype(np.int64)  # (members,), 0 to BINS
        column = np.rint(gt_prob * BINS).astype(np.int64)  # (members,), 0 to BINS
        cells, counts = np.unique(row * (BINS + 1) + column, return_counts=True)
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            self.joint[divmod(cell, BINS + 1)] += count
        if not signal.is_flat(accuracy) and not signal.is_flat(gt_prob):
            self.counts["within"] += 1
            self.sums["within"] += float(np.corrcoef(accuracy, gt_prob)[0, 1])

    def _origins(self, known: Sequence[Sample]) -> None:
        for sample in known:
            own = self.sources.setdefault(sample.source or "unnamed", defaultdict(float))
            own["members"] += 1
            own["positive"] += (sample.accuracy or 0.0) > 0.0
            own["accuracy"] += sample.accuracy or 0.0
            if sample.gt_prob is not None:
                own["measured"] += 1
                own["gt_prob"] += sample.gt_prob

    def _pick(self, known: Sequence[Sample], accuracy: Array) -> None:
        first = next((value for sample, value in zip(known, accuracy, strict=True) if sample.rank == 0), None)
        if first is not None:
            self.counts["picked"] += 1
            self.sums["pick"] += float(first)
            self.sums["picked_oracle"] += float(accuracy.max())
            self.counts["behind"] += float(accuracy.max()) - float(first) > 0.2

    def finish(self) -> GroupStats:
        """The statistics of all queries added; DataError when there was none."""
        counts, sums, queries = self.counts, self.sums, self.counts["queries"]
        if queries == 0:
            raise DataError("no scored sequences were found; is this the right file? `lever score` makes some")
        measured, picked = counts["measured"], counts["picked"]
        return GroupStats(
            queries=queries,
            members=counts["members"],
            distinct=counts["distinct"],
            positive=counts["positive"] / measured,
            accuracy=sums["accuracy"] / measured,
            oracle=sums["oracle"] / queries,
            size_quartiles=quartiles(self.sizes),
            positive_quartiles=quartiles(self.positives),
            flat=counts["flat"] / queries,
            all_zero=counts["all_zero"] / queries,
            all_one=counts["all_one"] / queries,
            lengths=dict(sorted(self.lengths.items())),
            levels=sums["levels"] / queries,
            unmeasured=counts["unmeasured"],
            without_density=counts["without_density"],
            estimated=counts["estimated"],
            borrowed=counts["borrowed"],
            gt_prob=sums["gt_prob"] / counts["gt_prob"] if counts["gt_prob"] else None,
            gt_prob_largest=self.largest,
            correlation=spearman(self.joint),
            within=sums["within"] / counts["within"] if counts["within"] else None,
            pick=sums["pick"] / picked if picked else None,
            picked=picked,
            picked_oracle=sums["picked_oracle"] / picked if picked else None,
            behind=counts["behind"] / picked if picked else None,
            pool=min(self.pools) if self.pools else None,
            bins=dict(self.bins),
            tiers=dict(sorted(self.tiers.items())),
            sizes=dict(sorted(self.sizes.items())),
            positives=dict(sorted(self.positives.items())),
            calibration=calibration(self.joint),
            sources={name: _source(own) for name, own in sorted(self.sources.items())},
        )


def _source(own: Mapping[str, float]) -> SourceStats:
    members = own["members"]
    gt_prob = own["gt_prob"] / own["measured"] if own["measured"] else None
    return SourceStats(int(members), own["positive"] / members, own["accuracy"] / members, gt_prob)


def tier_or_flat(accuracy: Array) -> str:
    """How useful a query is for learning: its tier of the curriculum, or flat."""
    return "flat" if signal.is_flat(accuracy) else signal.tier(accuracy.tolist())


def quartiles(counts: Counter[int]) -> tuple[float, ...]:
    """Lower quartile, median and upper quartile of counted values, the smallest value that reaches each share."""
    total, values = sum(counts.values()), sorted(counts)
    found = []
    for share in (0.25, 0.5, 0.75):
        running = 0
        for value in values:
            running += counts[value]
            if running >= share * total:
                found.append(float(value))
                break
    return tuple(found)


def calibration(joint: Counter[tuple[int, int]]) -> dict[int, tuple[int, float]]:
    """Members and mean accuracy for every tenth of gt_prob, from joint counts of (1000 accuracy, 1000 gt_prob)."""
    members: Counter[int] = Counter()
    right: defaultdict[int, float] = defaultdict(float)
    for (accuracy, gt_prob), count in joint.items():
        place = min(10 * gt_prob // BINS, 9)  # 1.0 belongs to the last tenth
        members[place] += count
        right[place] += count * accuracy / BINS
    return {place: (members[place], right[place] / members[place]) for place in sorted(members)}


def spearman(joint: Counter[tuple[int, int]]) -> float | None:
    """Rank correlation from joint counts of two binned values; None when one of them never varies."""
    if not joint:
        return None
    cells = np.array(list(joint), dtype=np.int64)  # (cells, 2)
    weights = np.array(list(joint.values()), dtype=np.float64)  # (cells,), members in each
    ranks = [_middle_ranks(cells[:, column], weights) for column in (0, 1)]
    total = weights.sum()
    centred = [rank - (weights * rank).sum() / total for rank in ranks]
    spreads = [float((weights * value**2).sum()) for value in centred]
    if min(spreads) <= 0.0:
        return None
    return float((weights * centred[0] * centred[1]).sum() / np.sqrt(spreads[0] * spreads[1]))


def _middle_ranks(values: NDArray[np.int64], weights: Array) -> Array:
    """The rank of every value, counted with its weight; equal values share the middle of their ranks."""
    _, place = np.unique(values, return_inverse=True)
    sizes = np.bincount(place, weights=weights)
    return np.asarray((np.cumsum(sizes) - sizes / 2.0)[place], dtype=np.float64)


def group_stats(groups: Iterable[Sequence[Sample]]) -> GroupStats:
    """The statistics of groups of samples."""
    meter = GroupMeter()
    for samples in groups:
        meter.add(samples)
    return meter.finish()


def stats_of(groups: Iterable[Group]) -> GroupStats:
    """The statistics of groups that training is about to learn from."""
    meter = GroupMeter()
    for group in groups:
        pairs = zip(group.members, group.scores, strict=True)
        meter.add(
            [sample_of(score, member.source, member.log_mu is not None) for member, score in pairs], len(group.pool)
        )
    return meter.finish()
