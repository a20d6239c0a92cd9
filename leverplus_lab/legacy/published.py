"""What a report prints: trainings, arms, chosen epochs, settings and advice, taken from its blocks.

Only what stands there is taken: cells that are numbers, `name: value`, named epochs. What is expected or hoped for is
left out, and proposals in code are advice, not settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from leverplus.errors import DataError
from leverplus_doctor.checks.results import identity
from leverplus_doctor.records import Arm, ChosenEpoch, Epoch, Published, Record, Series
from leverplus_lab.legacy import words
from leverplus_lab.legacy.document import DocumentBlock, read_blocks
from leverplus_lab.legacy.sizes import (
    COUNTS,
    Headings,
    PrintedPlace,
    count_unsized,
    table_says,
    taken_over,
)

_STAGES = ("grpo", "rce", "sft")
_EXPECTED = words.pattern("EXPECTED")
_PRESENT = words.pattern("PRESENT")
_ACTUAL = words.pattern("ACTUAL")
_BASELINE = words.pattern("BASELINE")
_DIFFERENCE = words.pattern("DIFFERENCE")
_SHOT = words.pattern("SHOT")
_MEASURE = words.pattern("MEASURE")
_GAIN = words.pattern("GAIN")
_BEFORE = words.pattern("BEFORE")
_AFTER = words.pattern("AFTER")
_SEED = words.pattern("SEED")
_BEST = words.pattern("BEST")
_SAME_PICKS = words.pattern("SAME_PICKS")
_LIVE = words.pattern("LIVE")
_DATA_FILE = words.pattern("DATA_FILE")
_VERSUS = re.compile(
    rf"shot\s*(\d+)\s*[:：]\s*({words.NUMBER})\s*%\s*[(（]\s*vs\.?\s*([^\d(（]+?)\s*({words.NUMBER})\s*%",
    re.I,
)
_SHOTS = re.compile(r"shots?(?:[_ ]?num)?\s*(=|≥|>=)\s*(\d+)", re.IGNORECASE)
_SHOT_COLUMN = re.compile(r"^(?:shot\s*(\d+)|(\d+)[- ]shots?)$", re.IGNORECASE)
_WITHOUT_EPOCH = words.POLICY_GRADIENT - {"kl", "kl_coef"}
"""Metrics whose numbers count where no epoch is named."""
Shares = dict[int, float]
_PERCENT = re.compile(r"(?<![\d.+\-])(\d+(?:\.\d+)?)\s*%")


def checked_report(record: Record) -> Record:
    """The record of a report, refused where nothing in it was recognised."""
    published = record.published
    if not record.series and not (
        published and (published.arms or published.gains or published.settings)
    ):
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
        self.versus: dict[str, tuple[Shares, Shares]] = {}
        """Accuracies by shots, filled as they are read, of a label and of its baseline."""

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
            self.size, self.hoped = None, bool(_EXPECTED.search(text))
        elif block.kind == "text":
            self.hoped = bool(_EXPECTED.search(text)) or (
                self.hoped and not block.text.startswith("**")
            )
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
            if found and re.search(r"\bvs\b", heading):
                return ""
            if found:
                return found
        return ""

    def _stage(self, block: DocumentBlock, metrics: set[str]) -> str:
        if metrics & words.POLICY_GRADIENT:
            return "grpo"
        for heading in (block.text, *reversed(block.headings)):
            named = set(filter(heading.lower().count, _STAGES))
            if len(named) == 1:
                return named.pop()
        return "train"

    def _add(
        self,
        block: DocumentBlock,
        epoch: int | None,
        values: dict[str, float],
        stage: str | None = None,
    ) -> None:
        if not values:
            return
        label = self._label(block)
        stage = stage or self._stage(block, set(values))
        if stage == "train" and (label, "grpo") in self.lines:
            stage = "grpo"
        self.lines.setdefault((label, stage), []).append(Epoch(epoch, values))

    # -- sentences ---------------------------------------------------------------------------------------------------

    def _sentence(self, block: DocumentBlock, text: str) -> None:
        for match in _SAME_PICKS.finditer(text):
            share = match.group(1) or match.group(2)
            self.same.append(float(share) / 100.0)
        for share in _shares(_LIVE, text):
            self.live[self._label(block)] = share
        if self.hoped or _EXPECTED.search(text):
            return
        self.seeds += _shares(_SEED, text)
        self._gains(block, _shares(_GAIN, text))
        self._settings(block, text)
        self._choice(block, text)
        self._metrics(block, text)
        self._shots(block, text)

    def _gains(
        self,
        block: DocumentBlock,
        values: Iterable[float | None],
        table: int = 0,
    ) -> None:
        place = self._place(block, table)
        for value in values:
            if value is not None:
                self.gains.append((value, place))

    def _place(self, block: DocumentBlock, table: int) -> PrintedPlace:
        """Where a number stands; a text without headings says n once for all that follows."""
        said = not block.headings and self.size is not None
        if block.rows:
            said = table_says(block.rows)
        return PrintedPlace(block.headings, table, said)

    def _set(
        self,
        label: str,
        key: str,
        value: Any,
    ) -> None:
        self.settings.setdefault(label, {})[key] = value

    def _settings(self, block: DocumentBlock, text: str) -> None:
        for match in words.SETTING_VALUE.finditer(text):
            start = match.start()
            before = text[max(0, start - 8) : start]
            label = self._label(block)
            if _PRESENT.search(before):
                label = ""
            key = words.printed_setting(match.group(1))
            if key is not None:
                value = words.truth_or_number(match.group(2))
                self._set(label, key, value)
        data = _DATA_FILE.search(text)
        if data:
            self._set(self._label(block), "data", data.group(1))

    def _choice(self, block: DocumentBlock, text: str) -> None:
        best = _BEST.search(text)
        if best is None:
            return
        rest = text[best.start() :][:80]
        epoch = words.epoch_in(rest)
        if epoch is None:
            return
        metric = None
        value = None
        named = re.search(r"val(?:idation)?[ _]?loss|验证损失", rest, re.IGNORECASE)
        if named:
            metric = "val/loss"
            number = rf"[:：=]\s*({words.NUMBER})\s*[)）]?"
            found = re.search(number, rest[named.end() :])
            if found:
                value = float(found.group(1))
        label = self._label(block)
        self.choices.append(ChosenEpoch(label, epoch, metric, value))

    def _metrics(self, block: DocumentBlock, text: str) -> None:
        pairs = []
        for match in words.METRIC_VALUE.finditer(text):
            if not _inside_name(text, match.start()):
                pairs.append(match)
        if not pairs:
            return
        epoch = words.epoch_in(text[: pairs[0].start()])
        # without an epoch, or with one pair alone, a number counts only behind "=" or ":"
        explicit = epoch is None or len(pairs) < 2
        values: dict[str, float] = {}
        for match in pairs:
            name = words.metric(match.group(1))
            if name is None or (explicit and not match.group(2).strip()):
                continue
            if epoch is not None or name in _WITHOUT_EPOCH:
                number = match.group(3).replace(",", "")
                values.setdefault(name, float(number))
        self._add(block, epoch, values)

    def _shots(self, block: DocumentBlock, text: str) -> None:
        versus = _VERSUS.search(text)
        if versus is not None:
            self._versus(block, versus)
            return
        found = list(_SHOTS.finditer(text))
        ends = [match.start() for match in found[1:]]
        accuracy: dict[int, float] = {}
        for match, end in zip(found, [*ends, len(text)], strict=False):
            shots = int(match.group(2))
            percents = _PERCENT.findall(text[match.end() : end])
            if match.group(1) == "=":
                percents = percents[:1]
            for step, value in enumerate(percents):
                accuracy[shots + step] = round(float(value) / 100.0, 8)
        if accuracy:
            name = re.split(r"[:：]", text)[0]
            baseline = bool(_BASELINE.search(name))
            arm = Arm(name, accuracy, self.size, 0, baseline)
            self._arm(block, arm)

    def _versus(self, block: DocumentBlock, match: re.Match[str]) -> None:
        """`Shot 1: 50.2% (vs Baseline 48.6%)`, line by line under one heading."""
        *_, last = ("run", *block.headings)
        label = self._label(block) or last
        shots = int(match.group(1))
        left, right = self.versus.get(label, ({}, {}))
        if label not in self.versus or shots in left:
            self.tables += 1
            left = {}
            right = {}
            self.versus[label] = left, right
            name = match.group(3).strip()
            self._arm(block, Arm(label, left, self.size, self.tables))
            self._arm(block, Arm(name, right, self.size, self.tables, True))
        left[shots] = round(float(match.group(2)) / 100.0, 8)
        right[shots] = round(float(match.group(4)) / 100.0, 8)

    def _code(self, block: DocumentBlock) -> None:
        """Settings in code are the present ones under a heading that says so, else advice."""
        *_, last = ("", *block.headings)
        present = bool(_PRESENT.search(last))
        for line in block.text.splitlines():
            for match in words.SETTING_VALUE.finditer(line.split("#")[0]):
                key = words.printed_setting(match.group(1))
                value = words.truth_or_number(match.group(2))
                if key is None:
                    continue
                if present:
                    self._set("", key, value)
                elif isinstance(value, float):
                    self.advice.append((key, value))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _table(self, block: DocumentBlock) -> None:
        header = list(map(words.without_marks, block.rows[0]))
        body = [row for row in block.rows[1:] if len(row) == len(header)]
        shots = {}
        for place, cell in enumerate(header):
            match = _SHOT_COLUMN.match(cell)
            if match:
                number = match.group(1) or match.group(2)
                shots[place] = int(number)
        if re.fullmatch(r"epochs?|轮次|轮数", header[0], re.IGNORECASE):
            self._epochs(block, header, body)
        elif _SHOT.match(header[0]):
            self._by_shots(block, header, body)
        elif _MEASURE.match(header[0]):
            self._by_metric(block, header, body)
        elif len(shots.keys() - {0}) >= 2:
            self._by_arm(block, shots, body)

    def _epochs(
        self,
        block: DocumentBlock,
        header: list[str],
        body: list[tuple[str, ...]],
    ) -> None:
        names = list(map(words.metric, header))
        stage = self._stage(block, set(filter(None, names)))
        for row in body:
            epoch = words.cell_number(row[0])
            values = {}
            for name, cell in zip(names, row, strict=True):
                value = words.cell_number(cell)
                if name and value is not None:
                    values[name] = value
            if epoch is not None:
                self._add(block, int(epoch), values, stage)

    def _by_metric(
        self,
        block: DocumentBlock,
        header: list[str],
        body: list[tuple[str, ...]],
    ) -> None:
        for place, cell in enumerate(header[1:], start=1):
            epoch = words.epoch_in(cell)
            if _EXPECTED.search(cell) or (epoch is None and not _ACTUAL.search(cell)):
                continue
            values: dict[str, float] = {}
            for row in body:
                value = words.cell_number(row[place])
                if value is None:
                    continue
                name = words.metric(row[0])
                key = words.printed_setting(row[0])
                said = f"{words.without_marks(row[0])} {row[place]}"
                if name is not None:
                    values[name] = value
                elif key is not None:
                    self._set(self._label(block), key, value)
                elif _GAIN.search(said):
                    self._gains(block, [value])
            self._add(block, epoch, values)

    def _by_shots(
        self,
        block: DocumentBlock,
        header: list[str],
        body: list[tuple[str, ...]],
    ) -> None:
        self.tables += 1
        for place, name in enumerate(header[1:], start=1):
            if COUNTS.match(name):
                continue
            cells = {}
            for row in body:
                shots = words.cell_number(row[0])
                if shots is not None:
                    cells[int(shots)] = words.without_marks(row[place])
            if _DIFFERENCE.search(name):
                self._gains(block, map(_gain, cells.values()), self.tables)
            else:
                self._row(block, name, cells)

    def _by_arm(
        self,
        block: DocumentBlock,
        columns: Mapping[int, int],
        body: list[tuple[str, ...]],
    ) -> None:
        self.tables += 1
        for row in body:
            cells = {}
            for place, shots in columns.items():
                cells[shots] = words.without_marks(row[place])
            if _signed(cells.values()):
                self._gains(block, map(_gain, cells.values()), self.tables)
            else:
                self._row(block, words.without_marks(row[0]), cells)

    def _row(
        self,
        block: DocumentBlock,
        name: str,
        cells: Mapping[int, str],
    ) -> None:
        known = {}
        for shots, cell in cells.items():
            value = words.cell_number(cell)
            if value is not None:
                known[shots] = value
        if not known or _signed(cells.values()):
            return
        low = min(known.values())
        high = max(known.values())
        scale = 1.0
        if low > 1.0:
            scale = 100.0
        if low < 0.0 or high > scale:
            return
        accuracy = {shots: round(value / scale, 8) for shots, value in known.items()}
        size = words.items_in(name) or self.size
        baseline = bool(_BASELINE.search(name))
        arm = Arm(name, accuracy, size, self.tables, baseline)
        self._arm(block, arm)

    def _arm(self, block: DocumentBlock, arm: Arm) -> None:
        self.arms.append((arm, self._place(block, arm.table)))

    # -- the whole ---------------------------------------------------------------------------------------------------

    def record(self) -> Record:
        series = []
        for (label, stage), lines in self.lines.items():
            settings = self.settings.get(label, {})
            series.append(Series(stage, _merged(lines), label, settings))
        given = []
        places = []
        for arm, place in self.arms:
            given.append(arm)
            places.append(place)
        arms = paired(taken_over(given))
        placed = list(zip(arms, places, strict=True))
        published = Published(
            arms=tuple(arms),
            gains=tuple(value for value, _ in self.gains),
            choices=tuple(self.choices),
            settings=self.settings,
            advice=tuple(self.advice),
            identical_picks=tuple(self.same),
            live=self.live,
            unsized=count_unsized(placed, self.gains, self.speaking),
            seeds=tuple(self.seeds),
        )
        return Record(series=tuple(series), published=published)


def paired(arms: list[Arm]) -> list[Arm]:
    """Rows of no table that say before and after a change, on as many items: the second is judged by the first."""
    found = list(arms)
    tables = max((arm.table for arm in arms), default=0)
    for place, before in enumerate(found):
        if before.table or not _BEFORE.search(before.name):
            continue
        rest = _BEFORE.sub("", before.name)
        for other, after in enumerate(found):
            if after.table or before.n != after.n or not _AFTER.search(after.name):
                continue
            if _AFTER.sub("", after.name) == rest:
                tables += 1
                found[place] = replace(before, table=tables, baseline=True)
                found[other] = replace(after, table=tables)
                break
    return found


def _shares(pattern: re.Pattern[str], text: str) -> list[float]:
    """The percentages that a pattern finds, as shares."""
    found = []
    for match in pattern.finditer(text):
        found.append(float(match.group(1)) / 100.0)
    return found


def _signed(cells: Iterable[str]) -> bool:
    """Whether some cell is a difference."""
    return any(cell.startswith(("+", "-")) for cell in cells)


def _inside_name(text: str, start: int) -> bool:
    """Whether a metric's name is only the end of a longer word (`grpo_lr_kl`)."""
    before = f" {text}"[start]
    return before.isascii() and (before.isalnum() or before in "_-")


def _gain(cell: str) -> float | None:
    """A signed percentage, or the middle of a range of them."""
    found = re.findall(rf"({words.NUMBER})\s*%", cell)
    if not found or cell[:1] not in "+-":
        return None
    return sum(map(float, found)) / len(found) / 100.0


def _merged(lines: list[Epoch]) -> tuple[Epoch, ...]:
    """Lines of one epoch joined, earlier values kept; epochs in order, those without a number last."""
    values: dict[int | None, dict[str, float | None]] = {}
    for line in lines:
        own = values.setdefault(line.epoch, {})
        for name, value in line.values.items():
            own.setdefault(name, value)
    order = sorted(values, key=lambda epoch: (epoch is None, epoch or 0))
    return tuple(Epoch(epoch, values[epoch]) for epoch in order)
