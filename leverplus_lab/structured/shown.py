"""What `lever bench structured` prints: one line a task, one task by number of examples, and one question laid open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from leverplus.cli.command import Table
from leverplus.data.formats import Problems
from leverplus.data.reader import ReadOptions, read_examples
from leverplus.data.rundir import shipped
from leverplus.data.types import Demos, Item, ItemId
from leverplus.errors import MissingFile, WrongUsage
from leverplus.evaluate.names import arm_name, shots_name
from leverplus.scores.tables import RecordedTable, read_table
from leverplus_lab.structured.records import Records, read_records
from leverplus_lab.structured.report import (
    WITHOUT_MODEL,
    Against,
    Setting,
    SplitReport,
)

TABLES = shipped("tables:structured")
"""Recorded tables with their texts, of the tasks that may be passed on."""


def read_folder(folder: Path) -> list[Records]:
    """The records of all files of a folder."""
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise MissingFile(
            f"{folder} holds no records of arms; `record` of leverplus_lab.structured writes such files"
        )
    return [read_records(path) for path in paths]


def named(records: Sequence[Records], task: str) -> Records:
    """The records of one task; the first where none is named."""
    if not task:
        return records[0]
    for own in records:
        if own.task.lower() == task.lower():
            return own
    known = ", ".join(own.task for own in records)
    raise WrongUsage(f"--task {task}: there are records of {known}")


def overview(reports: Sequence[SplitReport]) -> Table:
    """One line a task: the best simple way, the advised arm, and the way without a model."""
    rows = []
    for report in reports:
        pair = report.of(report.simple)
        copied = report.best.get(WITHOUT_MODEL)
        cells = [report.task_name, _percent(report.simple), _percent(report.advised)]
        cells.append(pair.difference if pair else "")
        rows.append([*cells, _percent(copied) if copied else ""])
    title = f"All tasks, {reports[0].model_name}, right answers in %"
    head = ("task", "simple", "by answers", "gain (95 %)", "no model")
    return Table(title, head, rows)


def by_shots(report: SplitReport) -> Table:
    """Every arm at every number of examples; the number that dev prefers has a star."""
    shots = sorted({own.shots for own in report.every})
    rows = []
    for arm, best in sorted(report.best.items(), key=lambda pair: pair[1].test_mean):
        cells = dict.fromkeys(shots, "")
        for own in report.every:
            if own.arm == arm:
                star = ""
                if own == best and own.shots:
                    star = "*"
                cells[own.shots] = _percent(own) + star
        rows.append([arm_name(arm), *cells.values()])
    title = f"{report.title}: {len(report.simple.test):,} test questions, by number of examples"
    stars = f"* chosen on {len(report.simple.dev):,} dev questions"
    return Table(title, ("who chooses", *map(str, shots)), rows, stars)


def verdict(report: SplitReport) -> Iterator[str]:
    """What may be said of the advised arm, in sentences."""
    own = report.advised
    simple = report.simple
    pair = report.of(simple)
    copied = report.best.get(WITHOUT_MODEL)
    if pair is not None:
        yield (
            f"Of the ways by answers dev prefers {_name(own)}: {_percent(own)} %. The best simple way, {_name(simple)}, "
            f"has {_percent(simple)} %; the gain is {_judged(pair)}. No call to learn, one call a question."
        )
    pair = report.of(copied)
    if copied is not None and pair is not None:
        yield (
            "No model at all, only the answer of the first such example with its values swapped, has "
            f"{_percent(copied)} %; the gain over that is {_judged(pair)}."
        )


def laid_open(records: Records, report: SplitReport) -> list[str]:
    """The first test question that the advised arm gets right and the best simple way does not.

    Nothing where texts and answers may not be passed on.
    """
    name = str(records.about["task"])
    items = TABLES / f"{name}-items.jsonl.gz"
    table = _table_of(records)
    right = {item for item, score in report.advised.test.items() if score == 1.0}
    wrong = {item for item, score in report.simple.test.items() if score == 0.0}
    if not (items.is_file() and table and right & wrong):
        return []
    texts = _texts(items)
    query = next(item for item in texts if item in right & wrong)
    answers = read_table([table])
    lines = [
        f"One of the {len(right & wrong)} questions that the second of these gets right and the first does not:",
        f"  question      {texts[query].question}",
        f"  right answer  {texts[query].answer}",
    ]
    for setting in (report.simple, report.advised):
        demos = _list_of(records, report.split_key, setting, query)
        nearest = texts[demos[-1]]
        lines += [
            f"{_name(setting)}:",
            f"  last example  {nearest.question}",
            f"                {nearest.answer}",
            f"  model writes  {_answer(answers, query, demos)}",
        ]
    return lines


def _table_of(records: Records) -> Path | None:
    """The recorded table with the answers behind some records."""
    for path in TABLES.glob(f"{records.about['task']}-*.parquet"):
        model = records.model.partition("-Instruct")[0].lower()
        if path.stem == f"{records.about['task']}-{model}":
            return path
    return None


def _texts(path: Path) -> dict[ItemId, Item]:
    problems = Problems(path.name)
    found = read_examples(path, ReadOptions(), problems).items
    problems.finish()
    return {item.id: item for item in found}


def _list_of(
    records: Records, split_key: str, setting: Setting, query: ItemId
) -> Demos:
    """What an arm showed for a question."""
    asked = (split_key, "test", setting.arm, setting.shots, query)
    for record in records.rows:
        row = record.row
        if (row.split_key, row.part, row.arm, row.shots, row.query) == asked:
            return row.demos
    raise MissingFile(f"no list of {setting.arm} for question {query} is recorded")


def _answer(table: RecordedTable, query: ItemId, demos: Demos) -> str:
    row = table.prompts(query)[demos]
    return str(table.answers[row].as_py())


def _name(setting: Setting) -> str:
    """An arm with its number of examples, in words."""
    title = arm_name(setting.arm)
    if setting.shots:
        return f"{title} with {shots_name(setting.shots)}"
    return title


def _judged(pair: Against) -> str:
    """A difference, and whether it could be luck."""
    low, high = (f"{100 * bound:+.1f}" for bound in pair.found.ci95)
    luck = ""
    if pair.found.within_noise:
        luck = ", so it could be luck"
    return f"{100 * pair.found.diff:+.1f} points (95 % interval {low} to {high}{luck})"


def _percent(setting: Setting) -> str:
    return f"{100 * setting.test_mean:.1f}"
