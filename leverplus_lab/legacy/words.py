"""The words by which metrics, settings and numbers are known in logs and reports; words.toml lists them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leverplus_doctor.logs.names import TABLE

NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?"
FEWEST_ITEMS = 20
"""Fewer things that are counted in a text are no evaluated items."""

_FILE = Path(__file__).with_name("words.toml")
_LISTED = tomllib.loads(_FILE.read_text("utf-8"))
_PATTERNS: dict[str, str] = _LISTED["patterns"]
_MARKS = re.compile(r"[*`_~⭐⬆⬇➡✅❌⚠️🔄📊📌🔴🟡🟢🔥✓✗]+")


def pattern(name: str) -> re.Pattern[str]:
    """A listed regular expression."""
    return re.compile(_PATTERNS[name].replace("NUMBER", NUMBER), re.IGNORECASE)


def _metrics() -> dict[str, str]:
    found = {}
    for ours in _LISTED["printed"]:
        for name in TABLE[ours]["names"]:
            if "/" not in name and name not in ("loss", "损失"):
                found[name] = ours
    found.update(_LISTED["held_out"])
    return found


METRICS = _metrics()
"""Name of a metric as it is printed -> its name in the run log."""

SETTINGS: dict[str, str] = _LISTED["settings"]
"""Name of a setting as it is printed -> a short key."""

POLICY_GRADIENT = set(_LISTED["policy_gradient"])
"""Metrics that only a policy-gradient stage has."""


def _any_of(names: Iterable[str]) -> str:
    """One of some names, the longest first; words may be joined by a blank, a dash or an underscore."""
    ordered = sorted(names, key=len, reverse=True)
    pattern = "|".join(map(re.escape, ordered))
    return pattern.replace(r"\ ", "[ _-]?")


METRIC_VALUE = re.compile(
    rf"({_any_of(METRICS)})(\s*[=:：≈]?\s*)({NUMBER})(?![\d%.]|\s*%)", re.IGNORECASE
)
SETTING_VALUE = re.compile(
    rf"({_any_of(SETTINGS)})\s*(?:[=:：]|\s(?=[\d]))\s*(true|false|{NUMBER})(?![\d.\-])",
    re.IGNORECASE,
)


def without_marks(text: str) -> str:
    """Without emphasis, marks and emoji, blanks collapsed."""
    kept = re.sub(r"(?<=\w)_(?=\w)", "\0", text)
    plain = _MARKS.sub(" ", kept).replace("\0", "_")
    return " ".join(plain.split())


def _cleaned(name: str) -> str:
    plain = without_marks(name).lower()
    return re.sub(r"[_\-\s]+", " ", plain).strip()


def metric(name: str) -> str | None:
    """The log name of a printed metric, None when it is none."""
    return METRICS.get(_cleaned(name))


def printed_setting(name: str) -> str | None:
    """The short key of a printed setting, None when it is none."""
    return SETTINGS.get(_cleaned(name))


def cell_number(cell: str) -> float | None:
    """The number of a cell that is nothing but a number (a percentage counts in hundredths)."""
    text = without_marks(cell).replace(" ", "")
    match = re.fullmatch(rf"({NUMBER})(%?)", text)
    if match is None:
        return None
    value = float(match.group(1).replace(",", ""))
    if match.group(2):
        return value / 100.0
    return value


def truth_or_number(text: str) -> Any:
    """A setting's value: true, false or a number."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    return float(text.replace(",", ""))


EPOCH = pattern("EPOCH")
ITEMS = pattern("ITEMS")


def items_in(text: str) -> int | None:
    """The number of evaluated items a text speaks of; numbers below 20 are something else."""
    for match in ITEMS.finditer(text):
        number = match.group(1) or match.group(2)
        count = int(number.replace(",", ""))
        if count >= FEWEST_ITEMS:
            return count
    return None


def epoch_in(text: str) -> int | None:
    """The number of the epoch that a text names first."""
    match = EPOCH.search(text)
    if match is None:
        return None
    return int(match.group(1) or match.group(2))
