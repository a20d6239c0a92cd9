"""Published tables: tests differences when only accuracies by shots and the number of items are known.

The file is JSON, in percent or as fractions, told apart by their size or said with `"unit": "percent"`:
`{"n": 800, "arms": {"baseline": {"1": 48.55, "2": 47.75}, "new": {"1": 50.02, "2": 48.1}}}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.errors import DataError, EvaluationError, MissingFile
from leverplus.evaluation.names import MEAN_SHOTS, shots_name
from leverplus.parsing import parse_json
from leverplus.stats import SummaryRow, compare_summary, holm

ENDS = (0.05, 0.30)
"""The range of assumed discordance: on how large a share of the items two such arms differ."""

UNITS = {"percent": 100.0, "fraction": 1.0}
UNCLEAR = 2.0
"""Accuracies up to this, some above 1, can be mistaken fractions or tiny percentages; the file must say which."""


@dataclass(frozen=True)
class PublishedTable:
    """A published table: n items, accuracies as fractions by arm and shots."""

    n: int
    unit: str
    arms: Mapping[str, Mapping[str, float]]


def read_published(path: Path) -> PublishedTable:
    """The table of a file, checked."""
    if not path.is_file():
        raise MissingFile(f"there is no file {path}; write a JSON table with n and arms, see docs/evaluation.md")
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON ({error}); write a table with n and arms, see docs/evaluation.md"
        ) from error
    return check_published(values, str(path))


def check_published(values: Any, source: str) -> PublishedTable:
    """A table from nested values; anything that cannot be compared is refused with a sentence."""
    if not isinstance(values, Mapping) or not isinstance(values.get("arms"), Mapping):
        raise DataError(f'{source} must hold {{"n": items, "arms": {{name: {{shots: accuracy}}}}}}')
    n, arms = values.get("n"), values["arms"]
    if isinstance(n, Mapping):
        raise EvaluationError(f"{source}: n differs by arm; arms can only be compared on the same items")
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise EvaluationError(f"{source}: n = {n!r} must be the number of items, a whole number of at least 2")
    if len(arms) < 2:
        raise EvaluationError(f"{source}: at least two arms are needed to compare; found {len(arms)}")
    shots: list[str] = []
    for arm, row in arms.items():
        if not isinstance(row, Mapping) or not row:
            raise DataError(f"{source}: arm '{arm}' must map shots to accuracies")
        for key, value in row.items():
            if not key.isdigit():
                raise DataError(f"{source}: arm '{arm}' has the shots '{key}'; write whole numbers")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise EvaluationError(f"{source}: arm '{arm}' at {key} shots is {value!r}; an accuracy is at least 0")
        own = sorted(row, key=int)
        if shots and own != shots:
            raise EvaluationError(
                f"{source}: arm '{arm}' has shots {', '.join(own)}, another has {', '.join(shots)}; "
                "give all arms the same"
            )
        shots = own
    all_accuracies = [value for row in arms.values() for value in row.values()]
    unit = _unit(all_accuracies, values.get("unit"), source)
    scale = UNITS[unit]
    fractions = {}
    for arm, row in arms.items():
        fractions[arm] = {key: row[key] / scale for key in shots}
    return PublishedTable(n, unit, fractions)


def _unit(accuracies: Sequence[float], said: Any, source: str) -> str:
    """Percent or fraction: as the file says, else by size."""
    low, high = min(accuracies), max(accuracies)
    if said is not None and said not in UNITS:
        raise DataError(f"{source}: unit = {said!r}; allowed: percent, fraction")
    if said is None and 1.0 < high <= UNCLEAR:
        raise EvaluationError(
            f"{source}: the largest accuracy is {high:g}, above 1 but no likely percentage; correct it, or add "
            '"unit": "percent"'
        )
    if said is None and high > UNCLEAR and 0.0 < low < 1.0:
        raise EvaluationError(
            f"{source}: accuracies range from {low:g} to {high:g}, so percent and fractions seem mixed; write all the "
            'same way, or add "unit": "percent"'
        )
    unit: str = said or ("percent" if high > UNCLEAR else "fraction")
    if high > UNITS[unit]:
        raise EvaluationError(f"{source}: an accuracy of {high:g} is above {UNITS[unit]:g} ({unit}); correct it")
    return unit


def compare_published(table: PublishedTable, baseline: str | None = None) -> dict[str, Any]:
    """Every arm against the baseline (the arm called so, else the first) at each number of shots and in the mean.

    For both ends of the assumed discordance: interval, p-value corrected by Holm over all rows of that end, whether the
    difference is within noise, and how many items would find a true difference of its size 80 % of the time.
    """
    against = baseline or ("baseline" if "baseline" in table.arms else next(iter(table.arms)))
    if against not in table.arms:
        raise EvaluationError(f"there is no arm '{against}' in the table; known: {', '.join(table.arms)}")
    others = [arm for arm in table.arms if arm != against]
    rows = []
    for arm in others:
        for key, own in table.arms[arm].items():
            diff = round(own - table.arms[against][key], 12)
            rows.append({"arm": arm, "baseline": against, "shots": key, "diff": diff})
    rows += [_mean_row(table, arm, against) for arm in others]
    ends = {end: _assuming(table, rows, end) for end in ENDS}
    for place, row in enumerate(rows):
        row["assuming"] = [ends[end][place] for end in ENDS]
    return {
        "n": table.n,
        "unit": table.unit,
        "baseline": against,
        "discordance": list(ENDS),
        "arms": {arm: {"shots": dict(values), "mean": _mean(values)} for arm, values in table.arms.items()},
        "comparisons": rows,
    }


def _mean(values: Mapping[str, float]) -> float:
    wanted = [value for key, value in values.items() if int(key) in MEAN_SHOTS] or list(values.values())
    return float(np.mean(wanted))


def _mean_row(table: PublishedTable, arm: str, baseline: str) -> dict[str, Any]:
    diff = round(_mean(table.arms[arm]) - _mean(table.arms[baseline]), 12)
    return {"arm": arm, "baseline": baseline, "shots": "mean", "diff": diff}


def _assuming(table: PublishedTable, rows: Sequence[Mapping[str, Any]], end: float) -> list[dict[str, Any]]:
    """Interval, p-value and power of each row at one assumed discordance, which is at least the row's difference."""
    found: list[SummaryRow] = []
    for row in rows:
        own = table.arms[row["baseline"]]
        base = _mean(own) if row["shots"] == "mean" else own[row["shots"]]
        least = max(end, abs(row["diff"]))
        found += compare_summary(table.n, base + row["diff"], base, discordances=(least,))
    adjusted = holm([summary.p_value for summary in found])
    assumed = []
    for summary, p_adjusted in zip(found, adjusted, strict=True):
        values = summary.as_json()
        del values["n"], values["diff"]  # the same at every discordance
        values["p_adjusted"] = p_adjusted
        values["within_noise"] = summary.within_noise or p_adjusted >= 0.05
        assumed.append(values)
    return assumed


def row_in_words(row: Mapping[str, Any], n: int) -> str:
    """One row of a published table in words, for both ends of the assumed discordance."""
    where = "mean over shots" if row["shots"] == "mean" else shots_name(int(row["shots"]))
    parts = []
    for end in row["assuming"]:
        low, high = (100 * bound for bound in end["ci95"])
        verdict = "within noise" if end["within_noise"] else "outside the noise"
        need = "" if end["n_needed"] is None else f"; {end['n_needed']:,} items would settle it"
        parts.append(
            f"if {100 * end['discordance']:.3g} % of the items differ it is {verdict} "
            f"(95 % interval {low:+.2f} to {high:+.2f}, p = {end['p_adjusted']:.2g} after correction{need})"
        )
    difference = f"{row['arm']} against {row['baseline']}, {where}: {100 * row['diff']:+.2f} points on {n:,} items"
    return "; ".join([difference, *parts]) + "."
