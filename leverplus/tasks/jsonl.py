"""Any labelled questions in one JSONL file: a record a line, with a picture or without.

A line is `{"id": ..., "question": ..., "answers": [...], "image": path or null, "split": "train" | "dev" | "test"}`;
`answer` may stand for one answer, `image_id` groups pictures, `meta` holds texts to slice results by. Paths are
relative to task.images, else to the file. Without `split` in any line the splits are made by picture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.recipe.sections import TaskSection
from leverplus.tasks.base import SPLITS
from leverplus.tasks.files import Draft, FileTask, build_task, text_id
from leverplus.tasks.reading import Problems, read_text
from leverplus.types import Item, ItemId

KEYS = ("id", "question", "answers", "answer", "image", "image_id", "split", "meta")
ENOUGH = 4
"""Annotators from which on an answer can earn full VQA accuracy."""


def jsonl(section: TaskSection) -> FileTask:
    """The questions of the file task.file, judged by task.metric."""
    problems = Problems("jsonl", "write the file yourself: one JSON record a line, see docs/tasks.md")
    drafts = [
        Draft(item, place)
        for place, row in read_lines(section, problems)
        if (item := _item(row, place, section, problems)) is not None
    ]
    _check_split_words(drafts, problems)
    metric = section.metric
    if metric == "auto":
        many = bool(drafts) and all(len(draft.item.answers) >= ENOUGH for draft in drafts)
        metric = "vqa_accuracy" if many else "exact_match"
    if metric == "vqa_accuracy":
        for draft in drafts:
            if len(draft.item.answers) < ENOUGH:
                problems.add(draft.place, f"VQA accuracy needs {ENOUGH} answers or more; use task.metric = exact_match")
    return build_task("jsonl", drafts, section, problems, metric=metric, postprocess="vqa")


def read_lines(section: TaskSection, problems: Problems) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of task.file with their places; lines that are no record are problems."""
    if not section.file:
        problems.add("task.file", "is not set; add --set file=FILE")
        return []
    path = Path(section.file).expanduser()
    if not path.is_file():
        problems.add(f"task.file = {path}", "is not there")
        return []
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate((read_text(path, problems) or "").split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        row = json_record(line, place, problems)
        if isinstance(row, dict):
            rows.append((place, row))
        elif row is not None:
            problems.add(place, "must be an object")
    problems.present.append(f"{path} ({len(rows):,} records)")
    return rows


def json_record(line: str, place: str, problems: Problems) -> Any:
    """The value of one line; None, with a problem, when it is not JSON."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        problems.add(place, f"is not JSON ({error.msg})")
        return None


def _item(row: Mapping[str, Any], place: str, section: TaskSection, problems: Problems) -> Item | None:
    faults = [f"there is no key '{key}'; known: {', '.join(KEYS)}" for key in row if key not in KEYS]
    answers = row.get("answers", [row["answer"]] if "answer" in row else [])
    if not isinstance(row.get("id"), (str, int)) or not str(row.get("id")).strip():
        faults.append("id must be a text or a whole number")
    if not isinstance(row.get("question"), str):
        faults.append("question must be a text")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        faults.append("answers must be a list of texts")
    elif any(not answer.strip() for answer in answers):
        faults.append("an answer is empty")
    if not isinstance(row.get("image"), (str, type(None))):
        faults.append("image must be a path or null")
    if not isinstance(row.get("meta", {}), dict):
        faults.append("meta must be an object")
    for fault in faults:
        problems.add(place, fault)
    if faults:
        return None
    image = picture_path(row.get("image"), section)
    return Item(
        id=ItemId(str(row["id"])),
        question=row["question"],
        answers=tuple(answers),
        split=row.get("split") or "",
        image=image,
        image_id=str(row["image_id"]) if row.get("image_id") is not None else image or text_id(row["question"]),
        meta={str(key): str(value) for key, value in row.get("meta", {}).items()},
    )


def picture_path(image: str | None, section: TaskSection) -> str | None:
    """The path of a picture named in task.file; None with task.images = none."""
    if not image or section.images == "none":
        return None
    root = Path(section.images).expanduser() if section.images else Path(section.file).expanduser().parent
    return str(root / image)


def _check_split_words(drafts: Sequence[Draft], problems: Problems) -> None:
    """Splits are given in all lines or in none, and are known."""
    without = [draft.place for draft in drafts if draft.item.split == ""]
    if 0 < len(without) < len(drafts):
        problems.add(without[0], f"has no split, as {len(without) - 1} further lines; give it in all lines or in none")
    for draft in drafts:
        if draft.item.split not in ("", *SPLITS):
            problems.add(draft.place, f"split is '{draft.item.split}'; allowed: {', '.join(SPLITS)}")
