"""A user's own file as a task: any labelled questions (`jsonl`), with pictures or without, and texts with labels.

A record is `{"id": ..., "question": ..., "answers": [...], "image": path or null, "split": "train" | "dev" | "test"}`,
or another form that `leverplus.data.reader` knows. Paths are relative to task.images, else to the file, and stay below
that folder. Without `split` in any record the splits are made by picture, or by text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from leverplus.data.formats import Problems, RecordSource, shortened
from leverplus.data.kinds import AGREE, Kind, kind_of_answers
from leverplus.data.metrics.base import MetricOptions
from leverplus.data.reader import Examples, ReadOptions, read_examples, text_id
from leverplus.data.rundir import shipped
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import Draft, FileTask, task_from_drafts
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.tasks.splits import SPLITS, group_of, picture_root
from leverplus.data.types import Item
from leverplus.errors import DataError, LeverError

WHERE = (
    "write the file yourself: one JSON record per line, or a CSV, see docs/own_data.md"
)

ENOUGH_ANSWERS = 4
"""Answers that an item needs for full VQA accuracy: leaving one out at a time, three others must agree."""

_PLAIN_WORDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,.'-]*")

CHOSEN: Mapping[Kind, tuple[str, str]] = {
    Kind.LABEL: ("label_accuracy", "the answers are labels: few different ones, each many times"),
    Kind.NUMBER: ("number", "the answers are numbers"),
    Kind.JSON: ("json", "the answers are JSON"),
    Kind.SQL: ("sql", "the answers are SQL, and no task.database is given to run them on"),
    Kind.SENTENCE: ("token_f1", "the answers are sentences, which may be said in other words"),
}  # fmt: skip
"""The metric for each kind of answers, and why."""


def jsonl(section: TaskSection) -> FileTask:
    """The questions of the file task.file, judged by task.metric."""
    problems = Problems("jsonl", WHERE)
    drafts, notes = _read_drafts(section, problems)
    metric = section.metric
    if metric == "auto" and drafts:
        metric, why = choose_metric([draft.item for draft in drafts], section)
        notes.insert(0, f"task.metric = auto takes {metric}, because {why}")
    for draft in drafts:
        if metric == "vqa_accuracy" and len(draft.item.answers) < ENOUGH_ANSWERS:
            needed = f"VQA accuracy needs {ENOUGH_ANSWERS} answers or more; use task.metric = exact_match"
            problems.add(draft.place, needed)
    return task_from_drafts(
        "jsonl",
        drafts,
        section,
        problems,
        answers=AnswerRules(metric, section.cut, metric_options(section)),
        notes=notes,
        check_answers=True,
    )


def labels(section: TaskSection) -> FileTask:
    """Any texts with labels: records `{"id", "text", "label", "split"}` in task.file, of any format."""
    problems = Problems("labels", WHERE)
    drafts, notes = _read_drafts(replace(section, images="none"), problems)
    known: dict[str, None] = {}
    for place, draft in enumerate(drafts):
        item = draft.item
        answers = tuple(dict.fromkeys(answer.strip() for answer in item.answers))
        if len(answers) > 1:
            what = f"has {len(answers)} labels, and a text has one; set task.name=jsonl to read several answers"
            problems.add(draft.place, what)
        known |= dict.fromkeys(answers)
        drafts[place] = replace(draft, item=replace(item, answers=answers))
    return labelled_task("labels", drafts, tuple(known), section, problems, notes=notes)


def labelled_task(
    name: str,
    drafts: Sequence[Draft],
    known: tuple[str, ...],
    section: TaskSection,
    problems: Problems,
    *,
    notes: Sequence[str] = (),
) -> FileTask:
    """A task of texts with labels. Texts that stand in a later split too are left out of the earlier one."""
    order = ("", *SPLITS)
    last: dict[str, int] = {}
    for draft in drafts:
        group = group_of(draft.item)
        own = order.index(draft.item.split)
        last[group] = max(own, last.get(group, 0))
    kept = []
    for draft in drafts:
        if order.index(draft.item.split) == last[group_of(draft.item)]:
            kept.append(draft)
    if lost := len(drafts) - len(kept):
        notes = [
            *notes,
            f"{lost} texts were left out because a later split has them too",
        ]
    return task_from_drafts(
        name,
        kept,
        section,
        problems,
        answers=AnswerRules("label_accuracy", section.cut),
        labels=known,
        notes=notes,
        check_answers=True,
    )


def metric_options(section: TaskSection) -> MetricOptions:
    """What the settings say about the metric."""
    folder = shipped(section.file).parent if section.file else Path(section.folder)
    return MetricOptions(
        tolerance=section.tolerance,
        database=section.database,
        folder=str(folder.expanduser()),
    )


def choose_metric(items: Sequence[Item], section: TaskSection) -> tuple[str, str]:
    """The metric that task.metric = auto takes, and why.

    The kind of the answers decides: labels, numbers, JSON, SQL (which is run where a database is given), sentences,
    short English words. Whatever else is judged to the letter.
    """
    kind = kind_of_answers(items).kind
    fewest = min((len(item.answers) for item in items if item.answers), default=0)
    if fewest >= ENOUGH_ANSWERS and kind in (Kind.LABEL, Kind.PHRASE, Kind.NUMBER):
        return "vqa_accuracy", f"all items have {ENOUGH_ANSWERS} answers or more"
    if kind is Kind.SQL and _has_database(items, section):
        why = "the answers are SQL, and there is a database to run them on"
        return "sql_execution", why
    if kind in CHOSEN:
        return CHOSEN[kind]
    if kind is Kind.PHRASE:
        # plain words, which the normalisation of VQA was made for
        answers = [item.answer.strip() for item in items if item.answers]
        plain = sum(bool(_PLAIN_WORDS.fullmatch(answer)) for answer in answers)
        if plain >= AGREE * len(items):
            return "exact_match", "the answers are short English words"
    return "exact", "in these answers every letter may count"


def _has_database(items: Sequence[Item], section: TaskSection) -> bool:
    return bool(section.database) or any("database" in item.meta for item in items)


def read_task_file(section: TaskSection, problems: Problems) -> Examples:
    """The examples of task.file, in any format; nothing, with a problem, where it cannot be read."""
    place = f"task.file = {section.file}"
    path = shipped(section.file)
    inside = path.with_name(f"{path.name}.pictures")
    if section.images not in ("", "none"):
        inside = Path(section.images).expanduser()
    options = ReadOptions(
        section.columns, section.split_key, section.skip_empty, inside
    )
    try:
        if not section.file:
            raise DataError("is not set; add --set file=FILE")
        examples = read_examples(path, options, problems)
    except LeverError as error:
        problems.add(place, str(error))
        return Examples([], [], RecordSource(place, "line", iter(())), None)
    problems.present.append(f"{path} ({len(examples.items):,} records)")
    return examples


def _read_drafts(
    section: TaskSection, problems: Problems
) -> tuple[list[Draft], list[str]]:
    """What task.file holds, with pictures as paths from here, and what is to be told."""
    examples = read_task_file(section, problems)
    drafts = []
    for number, item in enumerate(examples.items):
        place = examples.place(number)
        try:
            drafts.append(Draft(_with_picture(item, section), place))
        except DataError as error:
            problems.add(place, str(error))
    without = [draft.place for draft in drafts if draft.item.split == ""]
    if 0 < len(without) < len(drafts):
        problems.add(
            without[0],
            f"has no split, as {len(without) - 1} further lines; give it in all lines or in none",
        )
    return drafts, list(examples.said)


def _with_picture(item: Item, section: TaskSection) -> Item:
    """An item whose picture is a path from here; DataError where it may not be read."""
    if item.image is None or section.images == "none":
        group = item.image_id or text_id(item.question)
        return replace(item, image=None, image_id=group)
    root = picture_root(section)
    image = str(root / item.image)
    if "://" in item.image:
        raise DataError(
            f"the picture {shortened(item.image)} is an address, and nothing is fetched; download it and give its path"
        )
    try:
        outside = not Path(image).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        outside = False  # it cannot be opened either, which is said later
    if outside:
        raise DataError(
            f"the picture {shortened(item.image)} lies outside {root}; move it there, or set task.images = FOLDER above it"
        )
    return replace(item, image=image, image_id=item.image_id or image)
