"""Any labelled questions in one JSONL file: a record a line, with a picture or without.

A line is `{"id": ..., "question": ..., "answers": [...], "image": path or null, "split": "train" | "dev" | "test"}`;
`answer` may stand for one answer, `image_id` groups pictures, `meta` holds texts to slice results by. Paths are
relative to task.images, else to the file, and stay below that folder. Without `split` in any line the splits are made
by picture.
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
from leverplus.tasks.files import Draft, FileTask, build_task, text_id
from leverplus.tasks.reading import Problems, is_whole, read_text
from leverplus.tasks.splits import picture_root
from leverplus.types import Item, ItemId

KEYS = ("id", "question", "answers", "answer", "image", "image_id", "split", "meta")
ENOUGH = 4
"""Annotators from which on an answer can earn full VQA accuracy."""

SENTENCE = 4
"""Words from which on an answer is a phrase that can be said otherwise."""

FEW_LABELS = 60
"""So many different answers may be a set of labels."""

LONGEST_LINE = 1 << 20
"""Characters of one line; a record has a few hundred."""


def jsonl(section: TaskSection) -> FileTask:
    """The questions of the file task.file, judged by task.metric."""
    problems = Problems("jsonl", "write the file yourself: one JSON record a line, see docs/tasks.md")
    drafts = [
        Draft(item, place)
        for place, row in read_lines(section, problems)
        if (item := _item(row, place, section, problems)) is not None
    ]
    _check_split_words(drafts, problems)
    metric, notes = section.metric, []
    if metric == "auto":
        drafts, metric, note = _choose_metric(drafts, section)
        notes = [note] if drafts else []
    elif metric == "vqa_accuracy":
        for draft in drafts:
            if len(draft.item.answers) < ENOUGH:
                problems.add(draft.place, f"VQA accuracy needs {ENOUGH} answers or more; use task.metric = exact_match")
    if note := _unfit_metric([draft.item for draft in drafts], metric):
        notes.append(note)
    return build_task("jsonl", drafts, section, problems, metric=metric, postprocess="vqa", notes=notes)


def _unfit_metric(items: Sequence[Item], metric: str) -> str:
    """A sentence where the metric does not suit the answers; "" where it may."""
    if not items:
        return ""
    long = sum(min((len(answer.split()) for answer in item.answers), default=0) >= SENTENCE for item in items)
    if metric in ("exact_match", "label_accuracy") and long > len(items) / 2:
        return (
            f"task.metric = {metric} takes an answer that says the same in other words as wrong, and {long:,} of "
            f"{len(items):,} items have answers of {SENTENCE} words or more; token_f1 counts shared words"
        )
    labels = {answer for item in items for answer in item.answers}
    alone = all(len(set(item.answers)) == 1 for item in items)
    if metric == "vqa_accuracy" and alone and len(labels) <= min(FEW_LABELS, len(items) / 5):
        return (
            f"task.metric = vqa_accuracy, but every item has one answer out of {len(labels)}: these are labels; with "
            "task.name = labels every one is weighed, and the likeliest is the answer"
        )
    return ""


def _choose_metric(drafts: list[Draft], section: TaskSection) -> tuple[list[Draft], str, str]:
    """What task.metric = auto takes: VQA accuracy where most items have enough answers for it, else exact match.

    An item with fewer could never earn full VQA accuracy. Where it is judged so with the others, each of its answers
    counts as often as it takes to be right, which is what exact match says too.
    """
    few = sum(len(draft.item.answers) < ENOUGH for draft in drafts)
    many = len(drafts) - few
    share = f"{many:,} of {len(drafts):,} items have {ENOUGH} answers or more"
    if many <= few or (few and section.rules == "0.1"):
        return drafts, "exact_match", f"task.metric = auto takes exact_match, because {share}"
    note = f"task.metric = auto takes vqa_accuracy, because {share}"
    if few:
        note += f"; of the other {few:,} any answer counts as right"
    return [_repeated(draft) for draft in drafts], "vqa_accuracy", note


def _repeated(draft: Draft) -> Draft:
    answers = draft.item.answers
    if not 0 < len(answers) < ENOUGH:
        return draft
    return replace(draft, item=replace(draft.item, answers=tuple(own for own in answers for _ in range(ENOUGH))))


def read_lines(section: TaskSection, problems: Problems) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of task.file with their places; lines that are no record are problems."""
    if not section.file:
        problems.add("task.file", "is not set; add --set file=FILE")
        return []
    path = shipped(section.file)
    if not path.is_file():
        problems.add(f"task.file = {path}", "is a folder, not a file" if path.is_dir() else "is not there")
        return []
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate((read_text(path, problems) or "").split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        row = json_record(line, place, problems)
        if isinstance(row, dict):
            rows.append((place, row))
        elif row is not UNREADABLE:
            problems.add(place, f"must be an object in braces; it is {_shown(row)}")
    problems.present.append(f"{path} ({len(rows):,} records)")
    return rows


UNREADABLE = object()


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


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _item(row: Mapping[str, Any], place: str, section: TaskSection, problems: Problems) -> Item | None:
    answers = row.get("answers", [row["answer"]] if "answer" in row else [])
    faults = _faults(row, answers, section)
    image = None
    if not faults and row.get("image") and section.images != "none":
        image = str(picture_root(section) / row["image"])
        if not section.outside and not _is_below(Path(image), picture_root(section)):
            faults.append(
                f"the picture {_shown(row['image'])} lies outside {picture_root(section)}; move it there, set "
                "task.images = FOLDER, or allow it with task.outside = true"
            )
    for fault in faults:
        problems.add(place, fault)
    if faults:
        return None
    if section.skip_empty and any(answer.strip() for answer in answers):
        most_common = Item(ItemId(""), "", tuple(answers), "").answer
        answers = [answer for answer in answers if answer.strip()] if most_common.strip() else []
    return Item(
        id=ItemId(str(row["id"])),
        question=row["question"],
        answers=tuple(answers),
        split=row.get("split") or "",
        image=image,
        image_id=str(row["image_id"]) if row.get("image_id") is not None else image or text_id(row["question"]),
        meta={str(key): str(value) for key, value in row.get("meta", {}).items()},
    )


def _faults(row: Mapping[str, Any], answers: Any, section: TaskSection) -> list[str]:
    """Everything that is wrong with the form of one record."""
    faults = [f"there is no key '{key[:40]}'; known: {', '.join(KEYS)}" for key in row if key not in KEYS]
    name, image = row.get("id"), row.get("image")
    if not (isinstance(name, str) and name.strip()) and not is_whole(name):
        faults.append("id must be a text or a whole number")
    if not isinstance(row.get("question"), str):
        faults.append("question must be a text")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        faults.append("answers must be a list of texts")
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
        return True  # it cannot be opened either, which is said where pictures are looked at


def _check_split_words(drafts: Sequence[Draft], problems: Problems) -> None:
    """Splits are given in all lines or in none, and are known."""
    without = [draft.place for draft in drafts if draft.item.split == ""]
    if 0 < len(without) < len(drafts):
        problems.add(without[0], f"has no split, as {len(without) - 1} further lines; give it in all lines or in none")
    for draft in drafts:
        if draft.item.split not in ("", *SPLITS):
            problems.add(draft.place, f"split is '{draft.item.split}'; allowed: {', '.join(SPLITS)}")
