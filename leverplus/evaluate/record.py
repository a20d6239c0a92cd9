"""What an evaluation found, as typed records: eval.json is written from them once and read into them once.

Report, advice, `fit.json`, cards of bundles, commands and comparisons of runs share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    computed_field,
)

from leverplus.data.rundir import read_json, write_json
from leverplus.errors import DataError, LeverError
from leverplus.evaluate.stats.comparison import LEVEL

Interval = tuple[FiniteFloat, FiniteFloat]
ByShots = dict[NonNegativeInt, FiniteFloat]


class Recorded(BaseModel):
    """A part of a record; what a file holds beside its fields is left out."""

    model_config = ConfigDict(frozen=True)

    def as_json(self) -> dict[str, Any]:
        """The part as a file holds it, without what is not known."""
        return self.model_dump(mode="json", exclude_none=True)


class ArmResult(Recorded):
    """An arm's accuracies by number of shots, and what it costs."""

    shots: ByShots
    title: str = ""
    calls_per_question: NonNegativeInt = 1
    training_calls: NonNegativeInt = 0
    mean: FiniteFloat | None = None
    ci95: dict[NonNegativeInt, Interval | None] = {}

    @property
    def accuracy(self) -> float:
        """The mean over 1 to 4 shots, or over the shots it has where it lacks some of these."""
        if self.mean is not None:
            return self.mean
        return sum(self.shots.values()) / max(len(self.shots), 1)


class ComparisonRow(Recorded):
    """An arm against a baseline on the same items at one number of shots."""

    arm: str
    baseline: str
    shots: NonNegativeInt
    n: NonNegativeInt
    diff: FiniteFloat
    ci95: Interval
    p_value: FiniteFloat = 1.0
    p_adjusted: FiniteFloat
    mde80: FiniteFloat
    mde80_adjusted: FiniteFloat | None = None
    helped: NonNegativeInt
    harmed: NonNegativeInt

    @computed_field  # type: ignore[prop-decorator]
    @property
    def within_noise(self) -> bool:
        """Whether it supports no claim: not significant after correction, or zero in its interval."""
        low, high = self.ci95
        return self.p_adjusted >= LEVEL or low <= 0.0 <= high

    @property
    def verdict(self) -> str:
        """ "above", "below" or "within noise"."""
        if self.within_noise:
            return "within noise"
        if self.diff > 0:
            return "above"
        return "below"


class RunComparison(ComparisonRow):
    """A run, or the seeds of a recipe, against another one, at a number of shots or in the mean (`shots` "mean").

    `seeds` are how many of each were trained, `seed_sd` their spreads.
    """

    shots: str  # type: ignore[assignment]
    seeds: tuple[int, int]
    seed_sd: tuple[FiniteFloat, FiniteFloat] | None = None


class MethodResult(Recorded):
    """What was compared: the seeds of one recipe, or an arm that does not learn; `accuracy` by shots and "mean"."""

    name: str
    arm: str
    runs: list[str]
    seeds: list[int]
    accuracy: dict[str, FiniteFloat]


class PickAgreement(Recorded):
    """How often two selectors choose the same: `identical` lists, the same demonstration at each position, Jaccard.

    `by_position` counts, among the items where both lists reach that position, how often it holds the same; `jaccard`
    is the mean over items of shared / all demonstrations of both lists (two empty lists agree fully). `first`, `second`
    and `shots` say of which runs.
    """

    n: int
    identical: FiniteFloat
    by_position: tuple[FiniteFloat, ...]
    jaccard: FiniteFloat
    first: str = ""
    second: str = ""
    shots: int = 0


class RunsCompared(Recorded):
    """Every method against the baseline, which is the first of them."""

    n: int
    split: str
    baseline: str
    methods: list[MethodResult]
    comparisons: list[RunComparison]
    picks: list[PickAgreement]
    notes: list[str]
    conditions: dict[str, Any]


class CheckpointRow(Recorded):
    """A checkpoint's accuracy by shots, its mean, and how its picks differ from those of the checkpoint before."""

    checkpoint: str
    shots: ByShots
    mean: FiniteFloat
    ci95: Interval | None = None
    agreement: PickAgreement | None = None


class PairFigures(Recorded):
    """How far two ways differ on the same items."""

    n: NonNegativeInt
    diff: FiniteFloat
    ci95: Interval
    p_value: FiniteFloat


class Rival(PairFigures):
    """What the advised way was set against, on dev."""

    arm: str
    shots: NonNegativeInt
    dev: FiniteFloat


class Estimate(Recorded):
    """An accuracy on dev, corrected for choosing the best of many (`leverplus.evaluate.stats.choosing`)."""

    estimate: FiniteFloat
    ci95: Interval


class Advice(Recorded):
    """Which way to use, by accuracy on dev, and the figures behind it; `dev` is as it is, `dev_corrected` is not."""

    arm: str | None = None
    shots: NonNegativeInt | None = None
    dev: FiniteFloat | None = None
    n: NonNegativeInt = 0
    why: str = ""
    training_helped: str | None = None
    dev_accuracy: dict[str, ByShots] = {}
    dev_corrected: dict[str, dict[NonNegativeInt, Estimate]] = {}
    random: ByShots = {}
    rival: Rival | None = None
    test: PairFigures | None = None

    def worth(self, arm: str, shots: int) -> float:
        """The accuracy on dev that an arm is chosen by: the corrected one, or the plain one where that is not known."""
        corrected = self.dev_corrected.get(arm, {}).get(shots)
        if corrected is not None:
            return corrected.estimate
        return self.dev_accuracy[arm][shots]

    def best_shots(self, arm: str) -> int:
        """The number of shots at which an arm is best on dev, the fewest among equals."""
        every = self.dev_accuracy[arm]
        return max(every, key=lambda shots: (self.worth(arm, shots), -shots))


class Misses(Recorded):
    """Mean regret of a choice over `n` items, split by what would have helped (`leverplus.evaluate.regret`)."""

    n: NonNegativeInt
    pool: FiniteFloat
    count: FiniteFloat
    choice: FiniteFloat
    order: FiniteFloat
    total: FiniteFloat


class EvaluationRecord(Recorded):
    """One evaluation of a run; it holds no times, dates or paths, so the same seed gives the same bytes."""

    model_config = ConfigDict(frozen=False)

    task: str = ""
    split: str = "test"
    n: NonNegativeInt
    model_calls: NonNegativeInt | None = None
    eval_calls: NonNegativeInt | None = None
    dev_calls: NonNegativeInt = 0
    arms: Annotated[dict[str, ArmResult], Field(min_length=1)]
    gap_closed: dict[str, dict[str, FiniteFloat]] = {}
    comparisons: list[ComparisonRow] = []
    regret: dict[str, dict[NonNegativeInt, Misses]] = {}
    advice: Advice | None = None
    context: str | None = None
    conditions: dict[str, Any] = {}
    missing_arms: dict[str, str] = {}
    nearest_both_text_share: FiniteFloat | None = None
    checkpoint: str | None = None
    chosen_on_test: bool = False
    pilot: dict[str, Any] | None = None
    notes: list[str] = []

    def every_shots(self) -> list[int]:
        """All numbers of shots that some arm was evaluated at."""
        found: set[int] = set()
        for own in self.arms.values():
            found.update(own.shots)
        return sorted(found)

    def write(self, path: Path) -> None:
        write_json(path, self.as_json())

    def attempt(
        self, what: str, work: Callable[[], Any], say: Callable[[str], None]
    ) -> None:
        """Do work that other work does not need; the field called `what`, if there is one, becomes what it returns.

        Whatever goes wrong in it, even a mistake in this program, must not cost the answers that were paid for: the
        field stays as it is, the record gets a note, and the user is told.
        """
        try:
            made = work()
            if what in type(self).model_fields:
                setattr(self, what, made)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, LeverError):
                why = str(error)
            self.notes.append(f"{what} is missing: {why}")
            say(
                f"note: {what} is missing ({why}). The answers are kept; type the command again to make it up."
            )


def record_of(value: Mapping[str, Any]) -> EvaluationRecord:
    """The record in the values of an eval.json; DataError where it is none."""
    try:
        return EvaluationRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{where}: {first['msg']}") from error


def read_record(path: Path) -> EvaluationRecord | None:
    """The record of a file; None where there is no file."""
    if not path.is_file():
        return None
    try:
        return record_of(read_json(path))
    except DataError as error:
        raise DataError(
            f"{path} is not understood ({error}); type `lever eval {path.parent}`"
        ) from error
