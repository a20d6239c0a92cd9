"""Runs every check of the catalog over a record and puts root causes first."""

from __future__ import annotations

from importlib import import_module

from leverplus import catalog
from leverplus.doctor.findings import Finding, Text, ordered
from leverplus.doctor.records import Record


def examine(record: Record) -> list[Finding]:
    """All findings of a record, root causes first."""
    found: list[Finding] = []
    for code in catalog.CHECKS:
        found += catalog.load(catalog.CHECKS, code, "check")(record)
    return ordered(found)


def text_of(code: str) -> Text:
    """What is always true of a check: cause, evidence and cure."""
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
        rows = [f"## {room.capitalize()}", "", "| code | severity | cause | evidence | cure |", "|---|---|---|---|---|"]
        for code in codes:
            text = text_of(code)
            cells = (f"`{code}`", text.severity, text.cause, text.evidence, text.cure)
            rows.append("| " + " | ".join(cell.replace("|", "∣") for cell in cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
