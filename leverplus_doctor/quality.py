"""Data quality of groups: counts, repeats, positives, spread, origins, oracle and pick.

A store is read query by query, and only three numbers are kept of a member, 24 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from leverplus.data.types import Group, Score
from leverplus.errors import DataError, NotMeasured
from leverplus.learn.maths import signal
from leverplus.scores.keys import CONTEXT_PART, QUERY_PART
from leverplus.scores.records import unseal
from leverplus.scores.store import ScoreStore
from leverplus_doctor.records import GroupStats, SourceStats

Array = NDArray[np.float64]
LEVELS = ("0", "(0, 0.5)", "[0.5, 1)", "1")
QUARTILES = ("lower quartile", "median", "upper quartile")


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


class GroupMeter:
    """Adds up groups, one query at a time.

    >>> meter = GroupMeter()
    >>> meter.add([Sample(("a",), 1.0), Sample(("b",), 0.0)])
    >>> meter.finish().positive
    0.5
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.sources: dict[str, int] = {}
        self.pools: list[int] = []
        self.queries: list[Array] = []
        """Of every query (members, 3): accuracy, gt_prob (NaN: not measured), the number of the origin."""
        self.picks: list[float] = []
        """Of every query the accuracy of the selector's own pick; NaN where none is marked."""

    def add(self, samples: Iterable[Sample], pool: int | None = None) -> None:
        """One query with its scored sequences; a prompt without demonstrations is no member."""
        members = [sample for sample in samples if sample.demos]
        self.counts["distinct"] += len({sample.demos for sample in members})
        if pool is not None:
            self.pools.append(pool)
        measured = []
        pick = np.nan
        for sample in members:
            self.counts["members"] += 1
            self.counts["without_density"] += not sample.density
            self.counts["estimated"] += sample.estimated
            self.counts["borrowed"] += sample.borrowed
            if sample.accuracy is None:
                self.counts["unmeasured"] += 1
                continue
            source = sample.source or "unnamed"
            place = self.sources.setdefault(source, len(self.sources))
            gt_prob = np.nan if sample.gt_prob is None else sample.gt_prob
            measured.append((sample.accuracy, gt_prob, place))
            self.lengths[len(sample.demos)] += 1
            if sample.rank == 0 and np.isnan(pick):
                pick = sample.accuracy
        if measured:
            self.queries.append(np.array(measured))
            self.picks.append(pick)

    def finish(self, scale: str = "accuracy") -> GroupStats:
        """The statistics of all queries added; DataError when there was none."""
        if not self.queries:
            raise DataError(
                "no scored sequences were found; is this the right file? `lever score` makes some"
            )
        rows = []
        tiers: Counter[str] = Counter()
        within = []
        for own in self.queries:
            accuracy = own[:, 0]
            gt_prob = own[:, 1]
            equal = signal.is_flat(accuracy)
            # a reward made of gt_prob can still tell members apart whose accuracies are all equal
            lacking = bool(np.isnan(gt_prob).any())
            equally_likely = lacking or signal.is_flat(gt_prob)
            if not equal and not equally_likely:
                within.append(np.corrcoef(accuracy, gt_prob)[0, 1])
            row = (
                len(own),
                (accuracy > 0).sum(),
                accuracy.max(),
                len(np.unique(accuracy)),
                equal and equally_likely,
                signal.all_right(accuracy),
            )
            rows.append(row)
            tiers[tier_or_flat(accuracy.tolist())] += 1
        sizes, rights, best, levels, flat, all_one = np.array(rows, float).T
        members = np.concatenate(self.queries)
        accuracy = members[:, 0]
        weighed = members[~np.isnan(members[:, 1])]  # those with a gt_prob
        picks = np.array(self.picks)
        picked = ~np.isnan(picks)
        sources = {}
        for name, place in sorted(self.sources.items()):
            own = members[members[:, 2] == place]
            known = ~np.isnan(own[:, 1])
            sources[name] = SourceStats(
                members=len(own),
                positive=float(np.mean(own[:, 0] > 0)),
                accuracy=float(own[:, 0].mean()),
                gt_prob=_mean(own[known, 1]),
            )
        stats = GroupStats(
            queries=len(self.queries),
            members=self.counts["members"],
            positive=float(np.mean(accuracy > 0)),
            accuracy=float(accuracy.mean()),
            oracle=float(best.mean()),
            median_size=quartiles(sizes)[1],
            flat=float(flat.mean()),
            all_zero=float(np.mean(rights == 0)),
            all_one=float(all_one.mean()),
            lengths=dict(sorted(self.lengths.items())),
            unmeasured=self.counts["unmeasured"],
            without_density=self.counts["without_density"],
            estimated=self.counts["estimated"],
            borrowed=self.counts["borrowed"],
            gt_prob=_mean(weighed[:, 1]),
            gt_prob_largest=max(weighed[:, 1].tolist(), default=None),
            within=_mean(within),
            pick=_mean(picks[picked]),
            picked=int(picked.sum()),
            pool=min(self.pools, default=None),
            scale=scale,
            tiers=dict(sorted(tiers.items())),
            sources=sources,
        )
        behind = ((best - picks)[picked] > 0.2).astype(float)
        measures: dict[str, float | None] = {
            "queries": stats.queries,
            "members": stats.members,
            "repeated members": stats.members - self.counts["distinct"],
            "members without a measured reward": stats.unmeasured,
            f"members with {scale} above 0": stats.positive,
            f"mean {scale}": stats.accuracy,
            f"best {scale} of a group, mean": stats.oracle,
            "headroom (best - mean)": stats.oracle - stats.accuracy,
            "flat queries (no spread at all)": stats.flat,
            "queries without a right member": stats.all_zero,
            "queries with right members only": stats.all_one,
            f"different {scale} values in a query, mean": _mean(levels),
            "mean gt_prob": stats.gt_prob,
            "largest gt_prob": stats.gt_prob_largest,
            "rank correlation of gt_prob and accuracy": _rank_correlation(weighed),
            "the same inside queries, mean": stats.within,
            "accuracy of the selector's first pick": stats.pick,
            "best in the group, same queries": _mean(best[picked]),
            "queries whose pick is 0.2 behind the best": _mean(behind),
            "smallest pool": stats.pool,
        }
        for what, counts in (("members", sizes), ("positives", rights)):
            named = zip(QUARTILES, quartiles(counts), strict=True)
            for quartile, value in named:
                measures[f"{what} of a query, {quartile}"] = value
        for length, count in stats.lengths.items():
            measures[f"sequences of {length} demonstrations"] = count
        if scale == "accuracy":
            bins = np.digitize(accuracy, (1e-12, 0.5, 1.0 - signal.FLAT))
            counted = np.bincount(bins, minlength=4).tolist()
            for level, count in enumerate(counted):
                measures[f"members with accuracy {LEVELS[level]}"] = count
            for tier, count in stats.tiers.items():
                measures[f"queries of tier {tier}"] = count
            # does a higher probability of the reference mean a better answer? 1.0 belongs to the last tenth
            tenths = (10 * weighed[:, 1]).astype(int).clip(max=9)
            for tenth in np.unique(tenths).tolist():
                name = f"accuracy where gt_prob is {tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
                measures[name] = _mean(weighed[tenths == tenth, 0])
        known = {name: own for name, own in measures.items() if own is not None}
        return replace(stats, measures=known)


def tier_or_flat(accuracies: Sequence[float]) -> str:
    """How useful a query is for learning: its tier of the curriculum, or flat."""
    if signal.is_flat(accuracies):
        return "flat"
    return signal.tier(accuracies)


def quartiles(values: Array | Sequence[float]) -> tuple[float, ...]:
    """Lower quartile, median and upper quartile, the smallest value that reaches each share."""
    found = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
    return tuple(map(float, found))


def _mean(values: Array | Sequence[float]) -> float | None:
    if not np.size(values):
        return None
    return float(np.mean(values))


def _rank_correlation(weighed: Array) -> float | None:
    """Spearman's correlation of accuracy and gt_prob; None when one of both never varies."""
    accuracy = weighed[:, 0]
    gt_prob = weighed[:, 1]
    if not len(weighed) or not np.ptp(accuracy) or not np.ptp(gt_prob):
        return None
    return float(spearmanr(accuracy, gt_prob).statistic)


def stats_of(groups: Iterable[Group]) -> GroupStats:
    """The statistics of groups that training is about to learn from."""
    meter = GroupMeter()
    for group in groups:
        samples = []
        for member, score in zip(group.members, group.scores, strict=True):
            density = member.log_mu is not None
            samples.append(sample_of(score, member.source, density))
        meter.add(samples, len(group.pool))
    return meter.finish()


def sample_of(score: Score, source: str, density: bool = False) -> Sample:
    """A score as a sample; gt_prob where its log-probabilities were measured."""
    try:
        gt_prob: float | None = score.gt_prob
    except NotMeasured:
        gt_prob = None
    return Sample(score.demos, score.accuracy, gt_prob, source, density=density)


def stored_scores(path: Path) -> Iterator[list[Score]]:
    """All scores of a query in one context, query by query."""
    # rows come sorted by their key, so queries together
    part = slice(CONTEXT_PART, CONTEXT_PART + QUERY_PART)
    with ScoreStore(path, must_exist=True) as store:
        for context in store.contexts():
            rows = store.rows(context)
            for _, own in groupby(rows, key=lambda row: row.key[part]):
                yield [unseal(context.digest, row) for row in own]


def read_store(path: Path) -> GroupStats:
    """The statistics of a store; its groups are all scored sequences of a query in one context."""
    meter = GroupMeter()
    for scores in stored_scores(path):
        meter.add(sample_of(score, "store") for score in scores)
    if not meter.queries:
        raise DataError(
            f"{path} holds no scores with demonstrations; `lever score RUN` measures some"
        )
    return meter.finish()
