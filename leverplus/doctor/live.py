"""What training calls: the preflight before the first step, and findings after every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leverplus.doctor.examine import examine
from leverplus.doctor.findings import ERROR, Finding
from leverplus.doctor.records import GroupStats, Probe, Record
from leverplus.doctor.runfolder import flat_settings, series_of
from leverplus.errors import TrainingError

LATE = {"difference_inside_noise", "worse_than_random", "below_training_free", "missing_anchors", "seed_missing"}
"""Codes that speak about an evaluation, not about a training under way."""


def preflight(values: Mapping[str, Any], probe: Probe | None = None, groups: GroupStats | None = None) -> list[Finding]:
    """Findings before the first step, from a recipe's values (`Recipe.values()`), a probe and the groups."""
    return examine(Record(source="preflight", settings=flat_settings(values), probe=probe, groups=groups))


def epoch_findings(lines: Iterable[Mapping[str, Any]], values: Mapping[str, Any]) -> list[Finding]:
    """Findings on the log lines so far, with the recipe's values."""
    settings = flat_settings(values)
    found = examine(Record(source="log", settings=settings, series=series_of(lines, settings)))
    return [finding for finding in found if finding.code not in LATE]


def refuse(findings: Sequence[Finding]) -> None:
    """Raise on the first error, with what to try; silent when there is none."""
    errors = [finding for finding in findings if finding.severity == ERROR]
    if not errors:
        return
    first = errors[0]
    more = f" ({len(errors) - 1} more errors stand above)" if len(errors) > 1 else ""
    raise TrainingError(
        f"preflight {first.code}: {first.title}. {first.cure}{more} Type the command again with --ignore-findings to "
        "train all the same."
    )
