"""What a check sees: a record with optional parts. A check whose part is absent stays silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from leverplus.evaluate.record import ComparisonRow, EvaluationRecord

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Epoch:
    """One line of a training: metrics by their name in the run log (held-out ones as `val/...`).

    `epoch` is None where a text prints a value without saying when. A value that was not finite is None.
    """

    epoch: int | None
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Series:
    """The epochs of one stage of one training, in order; `settings` are the stage's own, where known.

    `label` names the training, `recipe` are all settings of its record. `exact` says that `kl` is the exact
    divergence, as this package logs it, and not an estimate that somebody printed. `unit` is what a line stands for: an
    epoch, or a single step, whose values are noisy. `marks` are the lines before which a training went on from a
    checkpoint.
    """

    stage: str
    epochs: tuple[Epoch, ...]
    label: str = ""
    settings: Settings = field(default_factory=dict)
    exact: bool = False
    unit: str = "epoch"
    marks: tuple[int, ...] = ()
    recipe: Settings = field(default_factory=dict)

    def values(self, metric: str) -> list[tuple[int | None, float]]:
        """(epoch, value) wherever the metric was measured."""
        found = []
        for line in self.epochs:
            value = line.values.get(metric)
            if value is not None:
                found.append((line.epoch, value))
        return found

    def numbers(self, metric: str) -> list[float]:
        """The values of a metric in order."""
        return [value for _, value in self.values(metric)]

    def first(self, metric: str) -> float | None:
        """The first value."""
        return next(iter(self.numbers(metric)), None)

    def last(self, metric: str) -> float | None:
        """The last value; of single steps the median of the last fifth."""
        values = self.numbers(metric)
        if values and self.unit == "step":
            fifth = max(1, len(values) // 5)
            return median(values[-fifth:])
        return next(reversed(values), None)


@dataclass(frozen=True)
class SourceStats:
    """The members of one origin (beam, sample, ...): how many, how often right, mean accuracy, mean gt_prob."""

    members: int
    positive: float
    accuracy: float
    gt_prob: float | None


@dataclass(frozen=True)
class GroupStats:
    """What the groups of a store or an RL file hold; shares are of queries unless said otherwise.

    Flat groups have no spread in accuracy, nor in gt_prob where that was measured; in `all_zero` groups no member is
    right, in `all_one` groups every member is fully right. `within` is the mean over queries of the correlation of
    gt_prob and accuracy inside a query, `pick` the accuracy of the selector's own first choice where the file marks
    one, over `picked` queries. With `scale` = gain, `accuracy` and what follows from it are gains of a search and no
    accuracies. `measures` are all numbers that people are shown, by name.
    """

    queries: int
    members: int
    positive: float
    accuracy: float
    oracle: float
    median_size: float
    flat: float
    all_zero: float
    all_one: float
    lengths: Mapping[int, int]
    unmeasured: int = 0
    without_density: int = 0
    estimated: int = 0
    borrowed: int = 0
    gt_prob: float | None = None
    gt_prob_largest: float | None = None
    within: float | None = None
    pick: float | None = None
    picked: int = 0
    pool: int | None = None
    scale: str = "accuracy"
    tiers: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PickCounts:
    """What an arm chose at one number of shots: on how many items, how many different demonstrations, which share the
    most chosen one and the ten most chosen ones have, the mean length of the lists, and the share of the most common
    length."""

    arm: str
    shots: int
    items: int
    distinct: int
    top1: float
    top10: float
    length: float
    same: float = 0.0


@dataclass(frozen=True)
class Probe:
    """What was measured before the first step; None where it was not.

    `log_ratio` is the largest |log new - log old| with identical weights, `kl` the exact KL to the reference at the
    start, `missing` and `unexpected` tensors of a loaded checkpoint, `logit_gap` the largest difference between stored
    and recomputed logits, `builders` the pool builders of training, dev and test, `leaked` the queries whose pool holds
    them or their image, `overlap` images that training and test share, `rescored` and `flipped` scores measured again,
    `nll` and `chance` the loss of the start and of a uniform policy, `unreachable` the labels outside their pool,
    `mislabelled` the labels that do not have the accuracy measured for them, out of `labels`; `reward_agreement` the
    mean correlation of reward and accuracy among sequences that compete, `reward_flat` the share of groups whose members
    all earn the same reward.
    """

    log_ratio: float | None = None
    kl: float | None = None
    missing: int | None = None
    unexpected: int | None = None
    logit_gap: float | None = None
    builders: Mapping[str, str] | None = None
    leaked: int | None = None
    overlap: int | None = None
    rescored: int | None = None
    flipped: int | None = None
    nll: float | None = None
    chance: float | None = None
    unreachable: int | None = None
    labels: int | None = None
    mislabelled: int | None = None
    reward_agreement: float | None = None
    reward_flat: float | None = None


@dataclass(frozen=True)
class Arm:
    """A row or column of a printed table: accuracies in [0, 1] by number of shots, on n items (None: not said)."""

    name: str
    accuracy: Mapping[int, float]
    n: int | None = None
    table: int = 0
    baseline: bool = False


@dataclass(frozen=True)
class ChosenEpoch:
    """An epoch that a text calls the best, by which metric, and the value it gives for it."""

    label: str
    epoch: int
    metric: str | None
    value: float | None


@dataclass(frozen=True)
class Published:
    """What a text prints: arms, mean gains and differences, chosen epochs, statements and advice.

    `gains` are claimed differences in accuracy, without a table of both sides. `identical_picks` are shares of equal
    picks between runs. `advice` are settings it proposes to use next. `live` is the printed share of groups whose
    rewards differ, by training. `unsized` counts the arms and gains for which neither line, table nor section says n.
    `seeds` are accuracies of runs that differ in their seed.
    """

    arms: tuple[Arm, ...] = ()
    gains: tuple[float, ...] = ()
    choices: tuple[ChosenEpoch, ...] = ()
    settings: Mapping[str, Settings] = field(default_factory=dict)
    advice: tuple[tuple[str, float], ...] = ()
    identical_picks: tuple[float, ...] = ()
    live: Mapping[str, float] = field(default_factory=dict)
    unsized: int = 0
    seeds: tuple[float, ...] = ()

    def with_rivals(self) -> list[tuple[Arm, Arm]]:
        """Every arm beside the baseline of its table."""
        pairs = []
        baselines: dict[int, Arm] = {}
        for arm in self.arms:
            if arm.baseline:
                baselines.setdefault(arm.table, arm)
        for arm in self.arms:
            if not arm.baseline and arm.table in baselines:
                pairs.append((arm, baselines[arm.table]))
        return pairs


@dataclass(frozen=True)
class Record:
    """All that is known about a target; every part may be absent.

    `settings` are the recipe's, flat (`grpo.lr`). `series` are trainings by stage, in the order they ran. `report` is
    the run's eval.json, `picks` what its arms chose, `published` what somebody else's text prints, `probe` what the
    doctor measured itself, `manifest` whether there is a run.json. `read_as` says which logged name was taken for which
    metric, where the log is another library's.
    """

    source: str = ""
    settings: Settings = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    groups: GroupStats | None = None
    report: EvaluationRecord | None = None
    picks: tuple[PickCounts, ...] = ()
    probe: Probe = Probe()
    published: Published = Published()
    seed: int | None = None
    manifest: bool = False
    read_as: Mapping[str, str] = field(default_factory=dict)

    def setting(self, key: str) -> Any:
        return self.settings.get(key)

    def stages(self, *names: str) -> list[Series]:
        """The series of these stages (or of all) with the recipe; what is true of grpo is true of ppo."""
        found = []
        for series in self.series:
            stage = "grpo" if series.stage == "ppo" else series.stage
            if not names or stage in names:
                found.append(replace(series, recipe=self.settings))
        return found

    def compared(self, arm: str, baseline: str) -> list[ComparisonRow]:
        """The comparisons of an arm with a baseline at one shot or more, of eval.json."""
        if self.report is None:
            return []
        rows = []
        for row in self.report.comparisons:
            if row.arm == arm and row.baseline == baseline and row.shots > 0:
                rows.append(row)
        return rows

    def accuracy_of(self, arm: str) -> Mapping[int, float]:
        """The accuracy of an arm by number of shots, from eval.json; empty where it was not evaluated."""
        if self.report is None or arm not in self.report.arms:
            return {}
        return self.report.arms[arm].shots
