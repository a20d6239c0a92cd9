"""Words that several checks share, and the lines that say what was read, from `texts/words.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from leverplus.parsing import parse_toml

_WORDS: Mapping[str, Mapping[str, str]] = parse_toml(
    resources.files("leverplus.doctor").joinpath("texts", "words.toml").read_bytes()
)
UNPRINTED = _WORDS["unprinted"]
"""Metrics without which the training of a report can be told only in part."""


def phrase(name: str, /, **numbers: object) -> str:
    """A piece of a sentence with its numbers in place."""
    return _WORDS["phrases"][name].format(**numbers)


def overview_line(name: str, /, **numbers: object) -> str:
    """A line, or a piece of one, about what was read."""
    return _WORDS["overview"][name].format(**numbers)


def metric_in_words(metric: str) -> str:
    """A metric of a log as sentences name it."""
    if metric in _WORDS["metrics"]:
        return _WORDS["metrics"][metric]
    plain = metric.removeprefix("val/").replace("_", " ")
    return phrase("held_out", metric=plain) if metric.startswith("val/") else plain


def shots_in_words(count: int | str) -> str:
    """A number of shots as sentences give it."""
    return phrase("one_shot" if str(count) == "1" else "many_shots", count=count)
