"""Metrics files of the earlier code: accuracies by shots under a key of time, number of items and retriever."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.legacy.rl import raise_problems

KEY = re.compile(r"(?P<when>.+?)-test_data_num=(?P<n>-?\d+)-(?P<retriever>.+)")
SHOTS = re.compile(r"shot_num=(\d+)")


@dataclass(frozen=True)
class Measurement:
    """One evaluation: when, on how many items, by which retriever, accuracy by number of shots."""

    when: str
    n: int
    retriever: str
    accuracy: Mapping[int, float]


def is_metrics(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(KEY.fullmatch(key) for key in value)


def read_metrics(value: Mapping[str, Any], source: str) -> list[Measurement]:
    """The measurements of a file, checked as a whole."""
    problems: list[str] = []
    found = []
    for key, row in value.items():
        match = KEY.fullmatch(key)
        if match is None or not isinstance(row, Mapping):
            problems.append(f"'{key}': expected TIME-test_data_num=N-RETRIEVER with accuracies by shot_num")
            continue
        accuracy: dict[int, float] = {}
        for name, number in row.items():
            shots = SHOTS.fullmatch(name)
            if shots is None or isinstance(number, bool) or not isinstance(number, (int, float)):
                problems.append(f"'{key}': '{name}' = {number!r} is no accuracy by shot_num")
            elif not math.isfinite(number):
                problems.append(f"'{key}': '{name}' = {number!r} is not a finite number")
            else:
                accuracy[int(shots[1])] = number
        found.append(Measurement(match["when"], int(match["n"]), match["retriever"], accuracy))
    raise_problems(source, problems)
    return found


def write_metrics(measurements: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """A metrics file as the earlier code writes it."""
    return {
        f"{one.when}-test_data_num={one.n}-{one.retriever}": {f"shot_num={k}": v for k, v in one.accuracy.items()}
        for one in measurements
    }


def published_tables(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Tables for `lever compare --from-summary`, one for every number of items and shots that two arms share."""
    tables: dict[str, dict[str, Any]] = {}
    for n, shots in dict.fromkeys((one.n, tuple(sorted(one.accuracy))) for one in measurements):
        own = [one for one in measurements if (one.n, tuple(sorted(one.accuracy))) == (n, shots)]
        if len(own) < 2 or n < 2:
            continue
        often = Counter(one.retriever for one in own)
        arms = {
            one.retriever if often[one.retriever] == 1 else f"{one.retriever} {one.when}": {
                str(k): v for k, v in sorted(one.accuracy.items())
            }
            for one in own
        }
        tables[f"n{n}-shots{'_'.join(map(str, shots))}"] = {"n": n, "arms": arms}
    return tables


def metrics_from_report(report: Mapping[str, Any], when: str) -> list[Measurement]:
    """The arms of an `eval.json` as measurements."""
    return [
        Measurement(when, report["n"], arm, {int(shots): value for shots, value in row["shots"].items()})
        for arm, row in report["arms"].items()
    ]
