"""Published tables: tests differences when only accuracies by shots and the number of items are known.

The noise of a paired difference depends on how many items the two arms score differently, which a table does not say.
So the answer is given for both ends of a range of assumed discordance; each such item is taken to change by a full
point. The file is JSON, in percent or as fractions, told apart by their size or said with `"unit": "percent"`:
`{"n": 800, "arms": {"baseline": {"1": 48.55, "2": 47.75}, "new": {"1": 50.02, "2": 48.1}}}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from leverplus.data.parsing import parse_json
from leverplus.errors import DataError, EvaluationError, MissingFile
from leverplus.evaluate.names import MEAN_SHOTS, shots_name
from leverplus.evaluate.stats import Changes, Interval, holm, mcnemar_test
from leverplus.evaluate.stats.comparison import LEVEL
from leverplus.evaluate.stats.power import minimum_detectable_effect, plan_n

ENDS = (0.05, 0.30)
"""The range of assumed discordance: on how large a share of the items two such arms differ."""

REACH = 1.959963984540054
"""Standard errors from the middle of a normal distribution to the ends of its 95 %."""

UNITS = {"percent": 100.0, "fraction": 1.0}
UNCLEAR = 2.0
"""Accuracies up to this, some above 1, can be mistaken fractions or tiny percentages; the file must say which."""

Shots = Annotated[str, Field(pattern=r"^\d+$")]
Accuracy = Annotated[FiniteFloat, Field(ge=0.0)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True)

    n: Annotated[int, Field(ge=2)]
    unit: Literal["percent", "fraction"] | None = None
    arms: Annotated[dict[str, dict[Shots, Accuracy]], Field(min_length=2)]


@dataclass(frozen=True)
class PublishedTable:
    """A published table: n items, accuracies as fractions by arm and shots."""

    n: int
    unit: str
    arms: Mapping[str, Mapping[str, float]]

    def mean(self, arm: str) -> float:
        """The mean over shots 1-4, or over all that it has."""
        values = self.arms[arm]
        wanted = [own for key, own in values.items() if int(key) in MEAN_SHOTS]
        return float(np.mean(wanted or list(values.values())))


@dataclass(frozen=True)
class Assumed:
    """Interval, p-value and power of a difference if the two arms differ on this share of items.

    `n_needed` is how many items would find a true difference of this size 80 % of the time; None when it is zero.
    """

    discordance: float
    se: float
    ci95: Interval
    p_value: float
    p_adjusted: float
    within_noise: bool
    mde80: float
    n_needed: int | None


@dataclass(frozen=True)
class PublishedRow:
    """The difference of an arm from the baseline at a number of shots or in the mean, under both assumptions."""

    arm: str
    baseline: str
    shots: str
    diff: float
    assuming: tuple[Assumed, ...]

    @property
    def within_noise(self) -> bool:
        """Whether it is over the whole range."""
        return all(end.within_noise for end in self.assuming)

    def in_words(self, n: int) -> str:
        """The row as a sentence, for both ends of the assumed discordance."""
        where = "mean over shots"
        if self.shots != "mean":
            where = shots_name(int(self.shots))
        parts = [
            f"{self.arm} against {self.baseline}, {where}: {100 * self.diff:+.2f} points on {n:,} items"
        ]
        for end in self.assuming:
            low, high = end.ci95
            verdict = "outside the noise"
            if end.within_noise:
                verdict = "within noise"
            need = ""
            if end.n_needed is not None:
                need = f"; {end.n_needed:,} items would settle it"
            parts.append(
                f"if {100 * end.discordance:.3g} % of the items differ it is {verdict} "
                f"(95 % interval {100 * low:+.2f} to {100 * high:+.2f}, p = {end.p_adjusted:.2g} after correction{need})"
            )
        return "; ".join(parts) + "."


def read_published(path: Path) -> PublishedTable:
    """The table of a file, checked."""
    shape = "write a JSON table with n and arms, see docs/evaluation.md"
    if not path.is_file():
        raise MissingFile(f"there is no file {path}; {shape}")
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON ({error}); {shape}") from error
    return check_published(values, str(path))


def check_published(values: Any, source: str) -> PublishedTable:
    """A table from nested values; anything that cannot be compared is refused with a sentence."""
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the table"
        raise DataError(
            f"{source}: {where}: {first['msg']}; it must hold "
            '{"n": items, "arms": {name: {shots: accuracy}}}, the same items for all arms'
        ) from error
    shots: set[frozenset[str]] = set()
    accuracies: list[float] = []
    for row in file.arms.values():
        shots.add(frozenset(row))
        accuracies += row.values()
    if len(shots) > 1 or not accuracies:
        raise EvaluationError(
            f"{source}: arms have different shots; give all arms the same"
        )
    unit = _unit(accuracies, file.unit, source)
    fractions: dict[str, dict[str, float]] = {}
    for arm, row in file.arms.items():
        own = fractions.setdefault(arm, {})
        for key in sorted(row, key=int):
            own[key] = row[key] / UNITS[unit]
    return PublishedTable(file.n, unit, fractions)


def _unit(accuracies: Sequence[float], said: str | None, source: str) -> str:
    """Percent or fraction: as the file says, else by size."""
    low = min(accuracies)
    high = max(accuracies)
    unit = said or "fraction"
    if said is None and high > UNCLEAR:
        unit = "percent"
    problem = ""
    if said is None and 1.0 < high <= UNCLEAR:
        problem = f"the largest accuracy is {high:g}, above 1 but no likely percentage"
    elif said is None and high > UNCLEAR and 0.0 < low < 1.0:
        problem = f"accuracies range from {low:g} to {high:g}, so percent and fractions seem mixed"
    elif high > UNITS[unit]:
        problem = f"an accuracy of {high:g} is above {UNITS[unit]:g} ({unit})"
    if problem:
        raise EvaluationError(
            f'{source}: {problem}; correct it, or add "unit": "percent"'
        )
    return unit


@dataclass(frozen=True)
class PublishedComparison:
    """Every arm of a published table against the baseline, at each number of shots and in the mean."""

    table: PublishedTable
    baseline: str
    rows: list[PublishedRow]

    def as_json(self) -> dict[str, Any]:
        arms = {}
        for arm, values in self.table.arms.items():
            arms[arm] = {"shots": dict(values), "mean": self.table.mean(arm)}
        return {
            "n": self.table.n,
            "unit": self.table.unit,
            "baseline": self.baseline,
            "discordance": list(ENDS),
            "arms": arms,
            "comparisons": [asdict(row) for row in self.rows],
        }


def compare_published(
    table: PublishedTable, baseline: str | None = None
) -> PublishedComparison:
    """Every arm against the baseline (the arm called so, else the first), corrected by Holm over all rows of an end."""
    against = baseline or "baseline"
    if baseline is None and against not in table.arms:
        against = next(iter(table.arms))
    if against not in table.arms:
        raise EvaluationError(
            f"there is no arm '{against}' in the table; known: {', '.join(table.arms)}"
        )
    base = table.arms[against]
    places = []
    means = []
    for arm, values in table.arms.items():
        if arm == against:
            continue
        for key, own in values.items():
            # 0.53 - 0.5 is a little above 0.03 in floats, and 0.03 must allow it
            places.append((arm, key, round(own - base[key], 12)))
        diff = round(table.mean(arm) - table.mean(against), 12)
        means.append((arm, "mean", diff))
    places += means
    ends = []
    for end in ENDS:
        chances = [_chance(table.n, diff, end) for _, _, diff in places]
        assumed = []
        for (_, _, diff), p in zip(places, holm(chances), strict=True):
            assumed.append(assume(table.n, diff, end, p))
        ends.append(assumed)
    rows = []
    for (arm, shots, diff), both in zip(places, zip(*ends, strict=True), strict=True):
        rows.append(PublishedRow(arm, against, shots, diff, both))
    return PublishedComparison(table, against, rows)


def _chance(n: int, diff: float, discordance: float) -> float:
    """McNemar's p-value if so many items differ, or as many as the difference needs."""
    share = max(discordance, abs(diff))
    helped = n * (share + diff) / 2
    harmed = n * (share - diff) / 2
    return mcnemar_test(round(helped), round(harmed))


def assume(n: int, diff: float, discordance: float, p_adjusted: float) -> Assumed:
    """What a difference on n items shows if so many of them differ, or as many as the difference needs.

    For a mean over several shots of the same items, n stays the number of items: the shots rise and fall together.
    """
    share = max(discordance, abs(diff))
    # an item changes by +1, -1 or 0, so that its mean square is the discordance
    se = math.sqrt((share - diff * diff) / n)
    low = max(diff - REACH * se, -1.0)
    high = min(diff + REACH * se, 1.0)
    return Assumed(
        discordance=share,
        se=se,
        ci95=(low, high),
        p_value=_chance(n, diff, discordance),
        p_adjusted=p_adjusted,
        within_noise=p_adjusted >= LEVEL or low <= 0.0 <= high,
        mde80=minimum_detectable_effect(n, Changes(share)),
        n_needed=plan_n(diff, Changes(share)) if diff else None,
    )
