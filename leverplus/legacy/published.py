"""What a report prints: trainings, arms, chosen epochs, settings and advice, taken from its blocks.

Only what stands there is taken: cells that are numbers, `name: value`, named epochs. What is expected or hoped for is
left out, and proposals in code are advice, not settings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leverplus.doctor.evaluation import identity
from leverplus.doctor.records import Arm, ChosenEpoch, Epoch, Published, Record, Series
from leverplus.errors import DataError
from leverplus.legacy import words
from leverplus.legacy.document import DocumentBlock, read_blocks
from leverplus.legacy.sizes import COUNTS, Headings, PrintedPlace, count_unsized, table_says, taken_over

_STAGES = ("grpo", "rce", "sft")
_VERSUS = re.compile(
    rf"shot\s*(\d+)\s*[:：]\s*({words.NUMBER})\s*%\s*[(（]\s*vs\.?\s*([^\d(（]+?)\s*({words.NUMBER})\s*%", re.I
)
_SHOTS = re.compile(r"shots?(?:[_ ]?num)?\s*(=|≥|>=)\s*(\d+)", re.IGNORECASE)
_PERCENT = re.compile(r"(?<![\d.+\-])(\d+(?:\.\d+)?)\s*%")


def checked_report(record: Record) -> Record:
    """The record of a report, refused where nothing in it was recognised."""
    published = record.published
    if not record.series and not (published and (published.arms or published.gains or published.settings)):
        raise DataError(
            f"{record.source}: no training table, log line or result was recognised; docs/doctor.md has the forms; "
            "where a line has a step and numbers of your own names, say which is which: --map reward=NAME,kl=NAME"
        )
    return record


def parse_report(text: str) -> Record:
    """The record of a report's text."""
    reader = _Reader()
    for block in read_blocks(text):
        reader.take(block)
    return reader.record()


class _Reader:
    """Goes through the blocks once and remembers what it has seen."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], list[Epoch]] = {}
        self.arms: list[tuple[Arm, PrintedPlace]] = []
        self.gains: list[tuple[float, PrintedPlace]] = []
        self.choices: list[ChosenEpoch] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.advice: list[tuple[str, float]] = []
        self.same: list[float] = []
        self.seeds: list[float] = []
        self.live: dict[str, float] = {}
        self.speaking: set[Headings] = set()
        self.tables = 0
        self.size: int | None = None
        self.hoped = False
        self.versus: dict[str, tuple[Arm, Arm, dict[int, float], dict[int, float]]] = {}

    def take(self, block: DocumentBlock) -> None:
        if block.kind == "table":
            if len(block.rows) > 1:
                self._table(block)
            return
        if block.kind == "code":
            self._code(block)
            return
        text = words.without_marks(block.text)
        if block.kind == "heading":
            self.size, self.hoped = None, bool(words.EXPECTED.search(text))
        elif block.kind == "text":
            self.hoped = bool(words.EXPECTED.search(text)) or (self.hoped and not block.text.startswith("**"))
        count = words.items_in(text)
        if count is not None:
            self.size = count
            self.speaking.add(block.headings)
        if block.kind != "heading":
            self._sentence(block, text)

    def _label(self, block: DocumentBlock) -> str:
        """The plan or run whose section this is, "" where none is named or two are compared."""
        for heading in reversed(block.headings):
            found = identity(words.without_marks(heading))
            if found:
                return "" if re.search(r"\bvs\b", heading) else found
        return ""

    def _stage(self, block: DocumentBlock, metrics: set[str]) -> str:
        if metrics & words.POLICY_GRADIENT:
            return "grpo"
        for heading in (block.text, *reversed(block.headings)):
            named = [stage for stage in _STAGES if stage in heading.lower()]
            if len(named) == 1:
                return named[0]
        return "train"

    def _add(self, block: DocumentBlock, epoch: int | None, values: dict[str, float], stage: str | None = None) -> None:
        if not values:
            return
        key = (self._label(block), stage or self._stage(block, set(values)))
        if key[1] == "train" and (key[0], "grpo") in self.lines:
            key = (key[0], "grpo")
        self.lines.setdefault(key, []).append(Epoch(epoch, values))

    # -- sentences ---------------------------------------------------------------------------------------------------

    def _sentence(self, block: DocumentBlock, text: str) -> None:
        for match in words.SAME_PICKS.finditer(text):
            self.same.append(float(match.group(1) or match.group(2)) / 100.0)
        for match in words.LIVE.finditer(text):
            self.live[self._label(block)] = float(match.group(1)) / 100.0
        if self.hoped or words.EXPECTED.search(text):
            return
        self.seeds += [float(match.group(1)) / 100.0 for match in words.SEED.finditer(text)]
        self._gains(block, [float(match.group(1)) / 100.0 for match in words.GAIN.finditer(text)])
        self._settings(block, text)
        self._choice(block, text)
        self._metrics(block, text)
        self._shots(block, text)

    def _gains(self, block: DocumentBlock, values: Sequence[float | None], table: int = 0) -> None:
        place = self._place(block, table)
        self.gains += [(value, place) for value in values if value is not None]

    def _place(self, block: DocumentBlock, table: int) -> PrintedPlace:
        """Where a number stands; a text without headings says n once for all that follows."""
        said = table_says(block.rows) if block.rows else not block.headings and self.size is not None
        return PrintedPlace(block.headings, table, said)

    def _settings(self, block: DocumentBlock, text: str) -> None:
        for match in words.SETTING_VALUE.finditer(text):
            before = text[max(0, match.start() - 8) : match.start()]
            label = "" if words.PRESENT.search(before) else self._label(block)
            key = words.printed_setting(match.group(1))
            if key is not None:
                self.settings.setdefault(label, {})[key] = words.truth_or_number(match.group(2))
        data = words.DATA_FILE.search(text)
        if data:
            self.settings.setdefault(self._label(block), {})["data"] = data.group(1)

    def _choice(self, block: DocumentBlock, text: str) -> None:
        best = words.BEST.search(text)
        if best is None:
            return
        rest = text[best.start() :][:80]
        epoch = words.epoch_in(rest)
        if epoch is None:
            return
        named = re.search(r"val(?:idation)?[ _]?loss|验证损失", rest, re.IGNORECASE)
        value = re.search(rf"[:：=]\s*({words.NUMBER})\s*[)）]?", rest[named.end() :]) if named else None
        metric = "val/loss" if named else None
        self.choices.append(ChosenEpoch(self._label(block), epoch, metric, float(value.group(1)) if value else None))

    def _metrics(self, block: DocumentBlock, text: str) -> None:
        pairs = [m for m in words.METRIC_VALUE.finditer(text) if not _inside_name(text, m.start())]
        explicit = [m for m in pairs if m.group(2).strip()]
        epoch = words.epoch_in(text[: pairs[0].start()]) if pairs else None
        used = pairs if epoch is not None and len(pairs) >= 2 else explicit
        values = {}
        for match in used:
            name = words.metric(match.group(1))
            if name is not None and name not in values:
                values[name] = float(match.group(3).replace(",", ""))
        if epoch is None:
            values = {
                name: value for name, value in values.items() if name in words.POLICY_GRADIENT - {"kl", "kl_coef"}
            }
        self._add(block, epoch, values)

    def _shots(self, block: DocumentBlock, text: str) -> None:
        versus = _VERSUS.search(text)
        if versus is not None:
            self._versus(block, versus)
            return
        found = list(_SHOTS.finditer(text))
        accuracy: dict[int, float] = {}
        for place, match in enumerate(found):
            end = found[place + 1].start() if place + 1 < len(found) else len(text)
            percents = [round(float(value) / 100.0, 8) for value in _PERCENT.findall(text[match.end() : end])]
            shots = int(match.group(2))
            if match.group(1) != "=":
                accuracy.update({shots + step: value for step, value in enumerate(percents)})
            elif percents:
                accuracy[shots] = percents[0]
        if accuracy:
            name = re.split(r"[:：]", text)[0]
            self._arm(block, Arm(name, accuracy, self.size, 0, bool(words.BASELINE.search(name))))

    def _versus(self, block: DocumentBlock, match: re.Match[str]) -> None:
        """`Shot 1: 50.2% (vs Baseline 48.6%)`, line by line under one heading."""
        label = self._label(block) or (block.headings[-1] if block.headings else "run")
        if label not in self.versus or int(match.group(1)) in self.versus[label][2]:
            self.tables += 1
            left: dict[int, float] = {}
            right: dict[int, float] = {}
            arm = Arm(label, left, self.size, self.tables)
            baseline = Arm(match.group(3).strip(), right, self.size, self.tables, True)
            self.versus[label] = (arm, baseline, left, right)
            self._arm(block, arm)
            self._arm(block, baseline)
        for values, text in zip(self.versus[label][2:], (match.group(2), match.group(4)), strict=True):
            values[int(match.group(1))] = round(float(text) / 100.0, 8)

    def _code(self, block: DocumentBlock) -> None:
        """Settings in code are the present ones under a heading that says so, else advice."""
        present = bool(block.headings) and bool(words.PRESENT.search(block.headings[-1]))
        for line in block.text.splitlines():
            if line.lstrip().startswith("#"):
                continue
            for match in words.SETTING_VALUE.finditer(line.split("#")[0]):
                key, value = words.printed_setting(match.group(1)), words.truth_or_number(match.group(2))
                if key is None:
                    continue
                if present:
                    self.settings.setdefault("", {})[key] = value
                elif isinstance(value, float):
                    self.advice.append((key, value))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _table(self, block: DocumentBlock) -> None:
        header = [words.without_marks(cell) for cell in block.rows[0]]
        body = [row for row in block.rows[1:] if len(row) == len(header)]
        if re.fullmatch(r"epochs?|轮次|轮数", header[0], re.IGNORECASE):
            self._epochs(block, header, body)
        elif words.SHOT.match(header[0]):
            self._by_shots(block, header, body)
        elif words.MEASURE.match(header[0]):
            self._by_metric(block, header, body)
        elif sum(bool(re.match(r"^(?:shot\s*\d+|\d+[- ]shots?)$", cell, re.IGNORECASE)) for cell in header[1:]) >= 2:
            self._by_arm(block, header, body)

    def _epochs(self, block: DocumentBlock, header: list[str], body: list[tuple[str, ...]]) -> None:
        names = [words.metric(cell) for cell in header]
        stage = self._stage(block, {name for name in names if name is not None})
        for row in body:
            epoch = words.cell_number(row[0])
            values = {}
            for name, cell in zip(names, row, strict=True):
                value = words.cell_number(cell)
                if name and value is not None:
                    values[name] = value
            if epoch is not None:
                self._add(block, int(epoch), values, stage)

    def _by_metric(self, block: DocumentBlock, header: list[str], body: list[tuple[str, ...]]) -> None:
        columns: list[tuple[int, int | None]] = []
        for place, cell in enumerate(header[1:], start=1):
            if words.EXPECTED.search(cell):
                continue
            if words.epoch_in(cell) is not None:
                columns.append((place, words.epoch_in(cell)))
            elif words.ACTUAL.search(cell):
                columns.append((place, None))
        for place, epoch in columns:
            values: dict[str, float] = {}
            for row in body:
                name, key, value = words.metric(row[0]), words.printed_setting(row[0]), words.cell_number(row[place])
                if name is not None and value is not None:
                    values[name] = value
                elif key is not None and value is not None:
                    self.settings.setdefault(self._label(block), {})[key] = value
                elif value is not None and words.GAIN.search(f"{words.without_marks(row[0])} {row[place]}"):
                    self._gains(block, [value])
            self._add(block, epoch, values)

    def _by_shots(self, block: DocumentBlock, header: list[str], body: list[tuple[str, ...]]) -> None:
        self.tables += 1
        rows = [(int(shots), row) for row in body if (shots := words.cell_number(row[0])) is not None]
        for place, name in enumerate(header[1:], start=1):
            if COUNTS.match(name):
                continue
            cells = [words.without_marks(row[place]) for _, row in rows]
            if words.DIFFERENCE.search(name):
                self._gains(block, [_gain(cell) for cell in cells], self.tables)
                continue
            values = {shots: words.cell_number(cell) for (shots, _), cell in zip(rows, cells, strict=True)}
            self._row(block, name, values, cells)

    def _by_arm(self, block: DocumentBlock, header: list[str], body: list[tuple[str, ...]]) -> None:
        self.tables += 1
        columns = {
            place: int(match.group(1) or match.group(2))
            for place, cell in enumerate(header)
            if (match := re.match(r"^(?:shot\s*(\d+)|(\d+)[- ]shots?)$", cell, re.IGNORECASE))
        }
        for row in body:
            cells = [words.without_marks(row[place]) for place in columns]
            if any(cell.startswith(("+", "-")) for cell in cells):
                self._gains(block, [_gain(cell) for cell in cells], self.tables)
                continue
            values = {shots: words.cell_number(cell) for shots, cell in zip(columns.values(), cells, strict=True)}
            self._row(block, words.without_marks(row[0]), values, cells)

    def _row(self, block: DocumentBlock, name: str, values: dict[int, float | None], cells: list[str]) -> None:
        known = {shots: value for shots, value in values.items() if value is not None}
        if not known or any(cell.startswith(("+", "-")) for cell in cells):
            return
        if all(value > 1.0 for value in known.values()):
            known = {shots: value / 100.0 for shots, value in known.items()}
        if all(0.0 <= value <= 1.0 for value in known.values()):
            accuracy = {shots: round(value, 8) for shots, value in known.items()}
            size = words.items_in(name) or self.size
            self._arm(block, Arm(name, accuracy, size, self.tables, bool(words.BASELINE.search(name))))

    def _arm(self, block: DocumentBlock, arm: Arm) -> None:
        self.arms.append((arm, self._place(block, arm.table)))

    # -- the whole ---------------------------------------------------------------------------------------------------

    def record(self) -> Record:
        ordered = {key: _merged(lines) for key, lines in self.lines.items()}
        series = tuple(
            Series(stage, lines, label, self.settings.get(label, {})) for (label, stage), lines in ordered.items()
        )
        arms = paired(taken_over([arm for arm, _ in self.arms]))
        placed = list(zip(arms, [place for _, place in self.arms], strict=True))
        published = Published(
            arms=tuple(arms),
            gains=tuple(value for value, _ in self.gains),
            choices=tuple(self.choices),
            settings={label: dict(values) for label, values in self.settings.items()},
            advice=tuple(self.advice),
            identical_picks=tuple(self.same),
            live=dict(self.live),
            unsized=count_unsized(placed, self.gains, self.speaking),
            seeds=tuple(self.seeds),
        )
        return Record(series=series, published=published)


def paired(arms: list[Arm]) -> list[Arm]:
    """Rows of no table that say before and after a change, on as many items: the second is judged by the first."""
    found = list(arms)
    tables = max((arm.table for arm in arms), default=0)
    for place, before in enumerate(found):
        rest = words.BEFORE.sub("", before.name)
        for other, after in enumerate(found):
            same = words.BEFORE.search(before.name) and words.AFTER.search(after.name) and before.n == after.n
            if same and not before.table and not after.table and words.AFTER.sub("", after.name) == rest:
                tables += 1
                found[place] = replace(before, table=tables, baseline=True)
                found[other] = replace(after, table=tables)
                break
    return found


def _inside_name(text: str, start: int) -> bool:
    """Whether a metric's name is only the end of a longer word (`grpo_lr_kl`)."""
    return start > 0 and (text[start - 1].isascii() and (text[start - 1].isalnum() or text[start - 1] in "_-"))


def _gain(cell: str) -> float | None:
    """A signed percentage, or the middle of a range of them."""
    found = re.findall(rf"({words.NUMBER})\s*%", cell)
    return sum(map(float, found)) / len(found) / 100.0 if found and cell[:1] in "+-" else None


def _merged(lines: list[Epoch]) -> tuple[Epoch, ...]:
    """Lines of one epoch joined, earlier values kept; epochs in order, those without a number last."""
    values: dict[int | None, dict[str, float | None]] = {}
    for line in lines:
        own = values.setdefault(line.epoch, {})
        for name, value in line.values.items():
            own.setdefault(name, value)
    order = sorted(values, key=lambda epoch: (epoch is None, epoch or 0))
    return tuple(Epoch(epoch, values[epoch]) for epoch in order)
