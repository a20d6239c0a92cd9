"""The settings in which two recipes differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leverplus.recipe.recipe import Recipe


@dataclass(frozen=True)
class Difference:
    """One setting with its two values; None on the side that has no such section, because it runs no such stage."""

    key: str
    first: Any
    second: Any


def differing_settings(first: Recipe, second: Recipe) -> list[Difference]:
    """Every setting that differs, in the order of the sections; the order of the stages counts as `train.stages`."""
    left, right = first.values(), second.values()
    found = []
    for section in dict.fromkeys((*left, *right)):
        mine, other = left.get(section, {}), right.get(section, {})
        for name in dict.fromkeys((*mine, *other)):
            if mine.get(name) != other.get(name):
                found.append(Difference(f"{section}.{name}", mine.get(name), other.get(name)))
    return found
