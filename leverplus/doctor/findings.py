"""Findings: what a check says, and the order that puts root causes first.

A check computes numbers; what it says about them stands in `texts/`, one TOML file beside each module of checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from leverplus.parsing import parse_toml

INFO, WARNING, ERROR = "info", "warning", "error"
_RANK = {ERROR: 0, WARNING: 1, INFO: 2}

Number = float | int | str
Fix = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, the numbers that show it, why it happens and what to try.

    `consequences` are the codes of other findings of the same record that this one explains. `fix` is
    `{"set": {key: value}}` when changing a recipe mends it, else None. `about` names the trainings it speaks about,
    where a record holds several.
    """

    code: str
    severity: str
    title: str
    evidence: Mapping[str, Number]
    cause: str
    cure: str
    explains: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    fix: Fix | None = None
    about: frozenset[str] = frozenset()

    def concerns(self, other: Finding) -> bool:
        """Whether both may speak about the same training: they name one in common, or one of them names none."""
        return not self.about or not other.about or bool(self.about & other.about)

    def as_json(self) -> dict[str, Any]:
        """As findings.json holds it."""
        return {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "evidence": dict(self.evidence),
            "cause": self.cause,
            "try": self.cure,
            "consequences": list(self.consequences),
            "fix": None if self.fix is None else {key: dict(values) for key, values in self.fix.items()},
        }


@dataclass(frozen=True)
class Text:
    """What is always true of a check: its code, severity, usual cause, what it looks at and when it speaks, the cure,
    and the codes of the checks that it explains.

    `sentences` are its other texts by name, with a place in braces for every number: `{share:.0%} of the picks`. One
    called `and_...` is put behind the one before.
    """

    code: str
    severity: str
    cause: str
    looks_at: str
    cure: str
    explains: tuple[str, ...] = ()
    sentences: Mapping[str, str] = field(default_factory=dict, compare=False)

    def say(self, sentence: str, **numbers: object) -> str:
        """One of the sentences with its numbers in place."""
        return self.sentences[sentence].format(**numbers)

    def found(
        self,
        title: str,
        evidence: Mapping[str, Number],
        *,
        fix: Mapping[str, Any] | None = None,
        severity: str | None = None,
        cause: str | None = None,
        cure: str | None = None,
        about: Iterable[str] = (),
    ) -> list[Finding]:
        """A list with one finding; what this record shows beyond the usual replaces cause, cure or severity."""
        return [
            Finding(
                code=self.code,
                severity=severity or self.severity,
                title=title,
                evidence={key: _short(value) for key, value in evidence.items()},
                cause=cause or self.cause,
                cure=cure or self.cure,
                explains=self.explains,
                fix=None if fix is None else {"set": dict(fix)},
                about=frozenset(about),
            )
        ]


def read_texts(module: str) -> dict[str, Text]:
    """The texts of a module of checks by code, from `texts/MODULE.toml`."""
    file = resources.files("leverplus.doctor").joinpath("texts", f"{module}.toml")
    found = {}
    for code, entry in parse_toml(file.read_bytes()).items():
        always = {name: entry.pop(name) for name in ("severity", "cause", "looks_at", "cure")}
        explains = tuple(entry.pop("explains", ()))
        found[code] = Text(code, explains=explains, sentences=entry, **always)
    return found


def root_causes_first(findings: Sequence[Finding]) -> list[Finding]:
    """Root causes first: a finding stands after all that explain it; among equals the graver stands first."""
    linked = [replace(finding, consequences=_explained_by(finding, findings)) for finding in findings]
    placed: list[Finding] = []
    waiting = sorted(linked, key=lambda finding: _RANK[finding.severity])
    while waiting:
        explained = {code for finding in waiting for code in finding.consequences}
        roots = [finding for finding in waiting if finding.code not in explained]
        first = roots[0] if roots else waiting[0]  # findings that explain each other are cut at the gravest
        placed.append(first)
        waiting.remove(first)
    return placed


def _explained_by(cause: Finding, findings: Sequence[Finding]) -> tuple[str, ...]:
    """The codes of findings that follow from a cause, in the order in which it names them."""
    found = []
    for code in cause.explains:
        found += [other.code for other in findings if other.code == code and cause.concerns(other)]
    return tuple(found)


def _short(value: Number) -> Number:
    """Six digits are enough to recognise a number."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
