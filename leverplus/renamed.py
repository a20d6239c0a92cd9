"""Names that were changed: what reads recipes, logs and run folders of before translates them here and nowhere else.

A stage has its first name in hashes and seeds for ever, so that results are recognised and training draws the same
random numbers whichever name a recipe uses.
"""

from __future__ import annotations

from typing import Any

STAGES = {"agreement": "label_pretraining"}
"""Stages by their first names; a stage's section of a recipe has the same name as the stage."""

_FIRST = {today: first for first, today in STAGES.items()}


def stage_today(name: str) -> str:
    """Today's name of a stage, or of a checkpoint that begins with one (`agreement-epoch001`)."""
    stage, dash, rest = name.partition("-")
    return f"{STAGES.get(stage, stage)}{dash}{rest}"


def first_name(name: str) -> str:
    """The name that a stage, or a checkpoint that begins with one, had at first."""
    stage, dash, rest = name.partition("-")
    return f"{_FIRST.get(stage, stage)}{dash}{rest}"


def values_today(values: dict[str, Any], notes: list[str], problems: list[str]) -> dict[str, Any]:
    """The values of a recipe under today's names; every old name is noted, both names at once are a problem."""
    found = {}
    for key, value in values.items():
        today = STAGES.get(key, key)
        if today != key:
            notes.append(_note(f"[{key}]", f"[{today}]"))
            if today in values:
                problems.append(f"[{key}]: is the old name of [{today}], which is given too; keep one of them")
                continue
        found[today] = value
    train = found.get("train")
    stages = train.get("stages") if isinstance(train, dict) else None
    if isinstance(train, dict) and isinstance(stages, list):
        names = [STAGES.get(stage, stage) if isinstance(stage, str) else stage for stage in stages]
        for old, today in zip(stages, names, strict=True):
            if old != today:
                notes.append(_note(f"train.stages: {old}", today))
        found["train"] = {**train, "stages": names}
    return found


def override_today(override: str, notes: list[str]) -> str:
    """A `section.key=value` of the command line under today's name of its section."""
    section, dot, rest = override.partition(".")
    today = STAGES.get(section.strip())
    if today is None:
        return override
    notes.append(_note(f"--set {override.partition('=')[0].strip()}: {section.strip()}", today))
    return f"{today}{dot}{rest}"


def _note(old: str, today: str) -> str:
    return f"{old} is called {today} since 0.2; the old name is still read"
