"""Runs every check of the catalog over a record and puts root causes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module

from leverplus import catalog
from leverplus.doctor.findings import Finding, Number, Text, root_causes_first
from leverplus.doctor.records import Record

Check = Callable[[Record], list[Finding]]


def examine(record: Record, own: Sequence[str] = ()) -> list[Finding]:
    """All findings of a record, root causes first; those made in a training say when they could first be made.

    `own` names checks of the user's as `package.module:attribute`, beside those of the recipe (`train.checks`).
    """
    found: list[Finding] = []
    for code in (*catalog.CHECKS, *(record.setting("train.checks") or ()), *own):
        check: Check = catalog.load(catalog.CHECKS, code, "check")
        found += [replace(f, evidence={**f.evidence, **first_fired_at(check, record)}) for f in check(record)]
    return root_causes_first(found)


def first_fired_at(check: Check, record: Record) -> dict[str, Number]:
    """The stage and epoch after which a check first speaks; nothing where it needs no training, or a printed one."""
    if not all(series.exact for series in record.series) or check(replace(record, series=())):
        return {}
    for stage, epoch, so_far in _growing(record):
        if check(so_far):
            return {"stage": stage, "epoch": epoch}
    return {}


def _growing(record: Record) -> Iterator[tuple[str, int, Record]]:
    """The record as it was after every epoch, with the stage and the number of that epoch."""
    for place, series in enumerate(record.series):
        for count, line in enumerate(series.epochs, start=1):
            under_way = replace(series, epochs=series.epochs[:count])
            if line.epoch is not None:
                yield series.stage, line.epoch, replace(record, series=(*record.series[:place], under_way))


def text_of(code: str) -> Text:
    """What is always true of a check: its cause, what it looks at and the cure."""
    module = catalog.CHECKS[code].split(":")[0]
    text: Text = import_module(module).TEXTS[code]
    return text


def handbook() -> str:
    """The table of all checks for docs/doctor.md."""
    rooms: dict[str, list[str]] = {}
    for code, place in catalog.CHECKS.items():
        rooms.setdefault(place.split(":")[0].rsplit(".", 1)[-1], []).append(code)
    parts = []
    for room, codes in rooms.items():
        rows = [f"## {room.capitalize()}", "", "| code | severity | cause | looks at | cure |", "|---|---|---|---|---|"]
        for code in codes:
            text = text_of(code)
            cells = (f"`{code}`", text.severity, text.cause, text.looks_at, text.cure)
            rows.append("| " + " | ".join(cell.replace("|", "∣") for cell in cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
