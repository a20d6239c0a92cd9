"""What a check is, what it finds, and how all checks of the catalog look at a record.

A check is a function that looks at a record, with all that it says in its docstring. That begins with the sentence of
the finding, with a place in braces for every number, and goes on with

    Error: (or Warning, or Info) why it happens
    Looks at: what is compared, and when the check speaks
    Try: what mends it
    Explains: codes of the checks that follow from it

so that name, evidence and text stand in one place and `lever doctor` and docs/doctor.md say the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from inspect import cleandoc
from string import Formatter
from typing import Any

from leverplus import catalog
from leverplus.errors import LeverError
from leverplus_doctor.records import Record, Series

INFO, WARNING, ERROR = "info", "warning", "error"
GRAVEST_FIRST = (ERROR, WARNING, INFO)
_PARTS = re.compile(r"^(Error|Warning|Info|Looks at|Try|Explains):", re.MULTILINE)

Number = float | int | str
Parts = Callable[[Record], Iterable[Any]]
"""The parts of a record that a check looks at one after the other."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, the numbers that show it, why it happens and what to try.

    `consequences` are the codes of other findings of the same record that this one explains. `fix` is
    `{"set": {key: value}}` when changing a recipe mends it, else None. `about` names the trainings it speaks about,
    where a record holds several. `source` is the file or folder it was found in, where several were examined.
    """

    code: str
    severity: str
    title: str
    evidence: Mapping[str, Number]
    cause: str
    cure: str
    explains: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    fix: Mapping[str, Mapping[str, Any]] | None = None
    about: frozenset[str] = frozenset()
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """As findings.json holds it."""
        values: dict[str, Any] = {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "evidence": dict(self.evidence),
            "cause": self.cause,
            "try": self.cure,
            "consequences": list(self.consequences),
            "fix": self.fix,
        }
        if self.source:
            values["source"] = self.source
        return values

    def may_concern(self, other: Finding) -> bool:
        """Whether both may speak of one training: they name one in common, or one of them names none."""
        if self.source != other.source:
            return False
        if not self.about or not other.about:
            return True
        return not self.about.isdisjoint(other.about)


class Seen:
    """What a check saw: numbers are evidence and fill the sentence; words and other things only fill the sentence.

    Of other things the sentence names parts, which are evidence too: `{reward.early:.3g}`. A sentence, severity, cause
    or cure that is given replaces that of the docstring.

    >>> Seen("The KL is {kl:.2g}", kl=20.68).values
    {'kl': 20.68}
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        fix: Mapping[str, Any] | bool = False,
        severity: str | bool = "",
        cause: str = "",
        cure: str = "",
        about: Iterable[str] = (),
        **values: object,
    ) -> None:
        self.sentence = sentence
        self.fix = fix
        self.severity = severity
        self.cause = cause
        self.cure = cure
        self.about = frozenset(about)
        self.values = values


Said = Seen | bool | None
"""What a check says of one part: nothing, that its sentence holds of this part, or what it saw."""
Look = Callable[[Any], Said]


class Check:
    """A check of the catalog: called with a record it gives a list of at most one finding.

    What is always true of it is read from the docstring; `sentence` has a place in braces for every number.
    """

    def __init__(self, look: Look, parts: Parts) -> None:
        update_wrapper(self, look)
        self.look = look
        self.parts = parts
        if look.__doc__ is None:
            raise LeverError(
                "python -OO takes the doctor's sentences away; start Python without it"
            )
        sentence, *rest = _PARTS.split(cleandoc(look.__doc__))
        texts = {}
        pieces = iter(rest)
        for name in pieces:
            texts[name.lower()] = " ".join(next(pieces).split())
        self.code = look.__name__
        self.sentence = " ".join(sentence.split())
        self.severity = next(own for own in GRAVEST_FIRST if own in texts)
        self.cause = texts[self.severity]
        self.looks_at = texts["looks at"]
        self.cure = texts["try"]
        self.explains = tuple(texts.get("explains", "").split())

    def __call__(self, record: Record) -> list[Finding]:
        for part in self.parts(record):
            said = self.look(part)
            if said:
                return [self._finding(part, Seen() if said is True else said)]
        return []

    def _finding(self, part: object, seen: Seen) -> Finding:
        sentence = seen.sentence or self.sentence
        values = {"it": part, **seen.values}
        about = seen.about
        if isinstance(part, Series) and not about:
            about = frozenset([part.label])
        return Finding(
            code=self.code,
            severity=str(seen.severity or self.severity),
            title=sentence.format(**values),
            evidence=_evidence(sentence, values),
            cause=seen.cause or self.cause,
            cure=seen.cure or self.cure,
            explains=self.explains,
            fix={"set": seen.fix} if isinstance(seen.fix, Mapping) else None,
            about=about,
        )


def check(look: Look) -> Check:
    """A check of a whole record."""
    return Check(look, lambda record: [record])


def check_each(parts: Parts) -> Callable[[Look], Check]:
    """A check of every part of one kind, such as every training; the first one in which it sees something counts.

    In its sentence the part is called `it`.
    """
    return lambda look: Check(look, parts)


def check_stages(*stages: str) -> Callable[[Look], Check]:
    """A check of the trainings of these stages, or of all."""
    return check_each(lambda record: record.stages(*stages))


check_training = check_stages()
check_grpo = check_stages("grpo")
check_printed = check_each(lambda record: [record.published])
check_groups = check_each(lambda record: [record.groups] if record.groups else [])
check_probe = check_each(lambda record: [record.probe])


def _evidence(sentence: str, values: Mapping[str, Any]) -> dict[str, Number]:
    """The numbers of a finding, and those that its sentence names; six digits are enough to recognise one."""
    numbers = dict(values)
    for _, name, _, _ in Formatter().parse(sentence):
        if name and "." in name:
            value, _ = Formatter().get_field(name, (), values)
            numbers[name.removeprefix("it.").replace(".", "_")] = value
    evidence: dict[str, Number] = {}
    for name, value in numbers.items():
        if isinstance(value, float):
            evidence[name] = float(f"{value:.6g}")
        elif isinstance(value, int):
            evidence[name] = value
    return evidence


RecordCheck = Callable[[Record], list[Finding]]


def examine(record: Record, own: Sequence[str] = ()) -> list[Finding]:
    """All findings of a record, root causes first; those made in a training say when they could first be made.

    `own` names checks of the user's as `package.module:attribute`, beside those of the recipe (`train.checks`).

    >>> [finding.code for finding in examine(Record(manifest=True))]
    ['seed_missing']
    """
    findings: list[Finding] = []
    of_recipe = record.setting("train.checks") or ()
    for code in (*catalog.CHECKS, *of_recipe, *own):
        look: RecordCheck = catalog.load(catalog.CHECKS, code, "check")
        for finding in look(record):
            evidence = {**finding.evidence, **_first_fired_at(look, record)}
            findings.append(replace(finding, evidence=evidence))
    return root_causes_first(findings)


def _first_fired_at(look: RecordCheck, record: Record) -> dict[str, Number]:
    """The stage and epoch after which a check first speaks; nothing where it needs no training, or a printed one."""
    foreign = any(not series.exact for series in record.series)
    if foreign or look(replace(record, series=())):
        return {}
    for place, series in enumerate(record.series):
        earlier = record.series[:place]
        for count, line in enumerate(series.epochs, start=1):
            if line.epoch is None:
                continue
            under_way = replace(series, epochs=series.epochs[:count])
            if look(replace(record, series=(*earlier, under_way))):
                return {"stage": series.stage, "epoch": line.epoch}
    return {}


def root_causes_first(findings: Sequence[Finding]) -> list[Finding]:
    """Root causes first: a finding stands after all that explain it; among equals the graver stands first."""
    linked = []
    for finding in findings:
        followers = []
        for code in finding.explains:
            for other in findings:
                if other.code == code and finding.may_concern(other):
                    followers.append(code)
        linked.append(replace(finding, consequences=tuple(followers)))
    waiting = sorted(linked, key=lambda own: GRAVEST_FIRST.index(own.severity))
    placed: list[Finding] = []
    while waiting:
        explained: set[str] = set()
        for finding in waiting:
            explained.update(finding.consequences)
        roots = [finding for finding in waiting if finding.code not in explained]
        # findings that explain each other are cut at the gravest
        first = (roots or waiting)[0]
        placed.append(first)
        waiting.remove(first)
    return placed


def handbook() -> str:
    """The table of all checks for docs/doctor.md, a part for every module of checks."""
    head = ["| code | severity | cause | looks at | cure |", "|---|---|---|---|---|"]
    parts: dict[str, list[str]] = {}
    for code, place in catalog.CHECKS.items():
        module = place.partition(":")[0].rpartition(".")[2]
        own: Check = catalog.load(catalog.CHECKS, code, "check")
        cells = (f"`{code}`", own.severity, own.cause, own.looks_at, own.cure)
        row = " | ".join(cell.replace("|", "∣") for cell in cells)
        parts.setdefault(module, []).append(f"| {row} |")
    pages = []
    for module, rows in parts.items():
        title = f"## {module.capitalize()}"
        lines = [title, "", *head, *rows]
        pages.append("\n".join(lines))
    return "\n\n".join(pages) + "\n"
