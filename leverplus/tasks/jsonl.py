"""Any labelled questions in one JSONL file: one record per line, with a picture or without.

A line is `{"id": ..., "question": ..., "answers": [...], "image": path or null, "split": "train" | "dev" | "test"}`;
`answer` may stand for one answer, a record without `id` is named by the number of its line, `image_id` groups
pictures, `meta` holds texts to slice results by. Paths are relative to task.images, else to the file, and stay below
that folder. Without `split` in any line the splits are made by picture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leverplus.parsing import parse_json
from leverplus.recipe.sections import TaskSection
from leverplus.rundir import shipped
from leverplus.tasks.base import SPLITS
from leverplus.tasks.files import Draft, FileTask, task_from_drafts, text_id
from leverplus.tasks.reading import Problems, as_word, is_whole_number, other_format, read_text
from leverplus.tasks.splits import picture_root
from leverplus.types import Item, ItemId

KEYS = ("id", "question", "answers", "answer", "image", "image_id", "split", "meta")
ENOUGH_ANSWERS = 4
"""Answers that an item needs for full VQA accuracy: leaving one out at a time, three others must agree."""

PHRASE_WORDS = 4
"""An answer of at least so many words is a phrase, which can be said in other words."""

MOST_LABELS = 60
"""At most so many different answers in a file may be a set of labels."""

LONGEST_LINE = 1 << 20
"""The most characters of one line; a record has a few hundred."""


def jsonl(section: TaskSection) -> FileTask:
    """The questions of the file task.file, judged by task.metric."""
    problems = Problems("jsonl", "write the file yourself: one JSON record per line, see docs/tasks.md")
    drafts = []
    for place, row in read_jsonl(section, problems):
        item = _item(row, place, section, problems)
        if item is not None:
            drafts.append(Draft(item, place))
    _check_split_names(drafts, problems)
    metric, notes = section.metric, []
    if metric == "auto":
        drafts, metric, why = _choose_metric(drafts, section)
        notes = [why] if drafts else []
    elif metric == "vqa_accuracy":
        for draft in drafts:
            if len(draft.item.answers) < ENOUGH_ANSWERS:
                needed = f"VQA accuracy needs {ENOUGH_ANSWERS} answers or more; use task.metric = exact_match"
                problems.add(draft.place, needed)
    warning = _unfit_metric([draft.item for draft in drafts], metric)
    if warning:
        notes.append(warning)
    return task_from_drafts("jsonl", drafts, section, problems, metric=metric, postprocess="vqa", notes=notes)


def _unfit_metric(items: Sequence[Item], metric: str) -> str:
    """A warning where the metric does not suit the answers; "" where it may."""
    if not items:
        return ""
    phrases = 0  # items whose shortest answer is a phrase
    labels: set[str] = set()
    for item in items:
        shortest = min((len(answer.split()) for answer in item.answers), default=0)
        phrases += shortest >= PHRASE_WORDS
        labels.update(item.answers)
    if metric in ("exact_match", "label_accuracy") and phrases > len(items) / 2:
        return (
            f"task.metric = {metric} takes an answer that says the same in other words as wrong, and {phrases:,} of "
            f"{len(items):,} items have answers of {PHRASE_WORDS} words or more; token_f1 counts shared words"
        )
    one_answer_each = all(len(set(item.answers)) == 1 for item in items)
    # Labels recur: at least five items for each on average.
    if metric == "vqa_accuracy" and one_answer_each and len(labels) <= min(MOST_LABELS, len(items) / 5):
        return (
            f"task.metric = vqa_accuracy, but every item has one answer out of {len(labels)}: these are labels; with "
            "task.name = labels every one is weighed, and the likeliest is the answer"
        )
    return ""


def _choose_metric(drafts: list[Draft], section: TaskSection) -> tuple[list[Draft], str, str]:
    """Choose for task.metric = auto: VQA accuracy where most items have enough answers for it, else exact match.

    Returns the drafts, the metric and why it was chosen. An item with fewer answers could never earn full VQA
    accuracy, so each of its answers is repeated until it counts as right, as exact match would count it too.
    """
    few = sum(len(draft.item.answers) < ENOUGH_ANSWERS for draft in drafts)
    many = len(drafts) - few
    share = f"{many:,} of {len(drafts):,} items have {ENOUGH_ANSWERS} answers or more"
    if many <= few or (few and section.rules == "0.1"):
        return drafts, "exact_match", f"task.metric = auto takes exact_match, because {share}"
    note = f"task.metric = auto takes vqa_accuracy, because {share}"
    if few:
        note += f"; of the other {few:,} any answer counts as right"
    return [_with_enough_answers(draft) for draft in drafts], "vqa_accuracy", note


def _with_enough_answers(draft: Draft) -> Draft:
    """Repeat each answer of an item that has too few for VQA accuracy; other items stay as they are."""
    answers = draft.item.answers
    if not 0 < len(answers) < ENOUGH_ANSWERS:
        return draft
    repeated: list[str] = []
    for answer in answers:
        repeated += [answer] * ENOUGH_ANSWERS
    return replace(draft, item=replace(draft.item, answers=tuple(repeated)))


def read_jsonl(section: TaskSection, problems: Problems) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of task.file with their places; lines that are no record are problems."""
    if not section.file:
        problems.add("task.file", "is not set; add --set file=FILE")
        return []
    path = shipped(section.file)
    if not path.is_file():
        problems.add(f"task.file = {path}", "is a folder, not a file" if path.is_dir() else "is not there")
        return []
    rows: list[tuple[str, Mapping[str, Any]]] = []
    text = read_text(path, problems) or ""
    if other := other_format(path, text):
        problems.add(f"task.file = {path}", other)
        return []
    # Not `splitlines`, which also splits at characters that may stand inside a JSON text, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        row = json_record(line, place, problems)
        if isinstance(row, dict):
            row.setdefault("id", number)  # whoever gives no ids finds an item again by its line
            rows.append((place, row))
        elif row is not UNREADABLE:
            problems.add(place, f"must be an object in braces; it is {shortened(row)}")
    problems.present.append(f"{path} ({len(rows):,} records)")
    return rows


UNREADABLE = object()
"""What `json_record` returns for a line that is not JSON; None would be the value of the line `null`."""


def json_record(line: str, place: str, problems: Problems) -> Any:
    """The value of one line; UNREADABLE, with a problem, when it is not JSON."""
    if len(line) > LONGEST_LINE:
        problems.add(place, f"has {len(line):,} characters; a line may have {LONGEST_LINE:,}")
        return UNREADABLE
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        problems.add(place, f"is not JSON ({error.msg}, column {error.colno})")
        return UNREADABLE


def shortened(value: Any) -> str:
    """A value as JSON, at most 40 characters of it, for an error message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _item(row: Mapping[str, Any], place: str, section: TaskSection, problems: Problems) -> Item | None:
    """The item of a record; None, with its problems reported, where the record is faulty."""
    answers = answers_of(row)
    faults = _faults(row, answers, section)
    image = None
    if not faults and row.get("image") and section.images != "none":
        root = picture_root(section)
        image = str(root / row["image"])
        if "://" in row["image"]:
            faults.append(
                f"the picture {shortened(row['image'])} is an address, and nothing is fetched; download it and give "
                "its path"
            )
        elif not section.outside and not _is_below(Path(image), root):
            faults.append(
                f"the picture {shortened(row['image'])} lies outside {root}; move it there, set "
                "task.images = FOLDER, or allow it with task.outside = true"
            )
    for fault in faults:
        problems.add(place, fault)
    if faults:
        return None
    if section.skip_empty and any(answer.strip() for answer in answers):
        answers = _without_empty(answers)
    image_id = row.get("image_id")
    return Item(
        id=ItemId(str(row["id"])),
        question=row["question"],
        answers=tuple(answers),
        split=row.get("split") or "",
        image=image,
        image_id=str(image_id) if image_id is not None else image or text_id(row["question"]),
        meta={str(key): str(value) for key, value in row.get("meta", {}).items()},
    )


def answers_of(row: Mapping[str, Any]) -> Any:
    """The answers of a record, numbers and truth values as words; without any where it has none or null."""
    answers = row.get("answers")
    if answers is None:
        answers = [] if row.get("answer") is None else [row["answer"]]
    return [as_word(answer) for answer in answers] if isinstance(answers, list) else answers


def _without_empty(answers: list[str]) -> list[str]:
    """The answers that are not empty; none where most annotators left it empty, so that the item is left out."""
    most_common = Item(ItemId(""), "", tuple(answers), "").answer
    if not most_common.strip():
        return []
    return [answer for answer in answers if answer.strip()]


def _faults(row: Mapping[str, Any], answers: Any, section: TaskSection) -> list[str]:
    """Everything that is wrong with the form of one record."""
    if {"text", "label"} <= row.keys() and "question" not in row:
        return [
            "this is a text with a label, and not a question with answers; set task.name=labels to read such records"
        ]
    faults = [f"there is no key '{key[:40]}'; known: {', '.join(KEYS)}" for key in row if key not in KEYS]
    name, image = row.get("id"), row.get("image")
    if not (isinstance(name, str) and name.strip()) and not is_whole_number(name):
        faults.append("id must be a text or a whole number")
    if not isinstance(row.get("question"), str):
        faults.append("question must be a text")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        faults.append(f"answers must be a list of texts; they are {shortened(answers)}")
    elif any(not answer.strip() for answer in answers) and not section.skip_empty:
        faults.append("an answer is empty; task.skip_empty = true leaves empty answers out")
    if not isinstance(image, (str, type(None))) or "\0" in (image or ""):
        faults.append("image must be a path or null")
    if not isinstance(row.get("split"), (str, type(None))):
        faults.append(f"split must be one of {', '.join(SPLITS)}")
    if not isinstance(row.get("meta", {}), dict):
        faults.append("meta must be an object")
    return faults


def _is_below(path: Path, folder: Path) -> bool:
    """Whether a file lies below a folder once links and `..` are followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        return True  # it cannot be opened either: `check_pictures` reports it


def _check_split_names(drafts: Sequence[Draft], problems: Problems) -> None:
    """Report splits that are given in some lines only, and names that are no split."""
    without = [draft.place for draft in drafts if draft.item.split == ""]
    if 0 < len(without) < len(drafts):
        problems.add(without[0], f"has no split, as {len(without) - 1} further lines; give it in all lines or in none")
    for draft in drafts:
        if draft.item.split not in ("", *SPLITS):
            problems.add(draft.place, f"split is '{draft.item.split}'; allowed: {', '.join(SPLITS)}")
