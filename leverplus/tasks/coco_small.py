"""A few real questions on real photographs, for trying the whole picture path: `questions.json` beside `images/`.

Records have image_id, question_id, question, source, and ten `answers` or `soft_labels` (answer -> 1 or 0.667).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.recipe.sections import TaskSection
from leverplus.tasks.files import Draft, FileTask, task_from_drafts
from leverplus.tasks.reading import Problems, find_file, is_whole_number, read_task_json, records_under
from leverplus.types import Item, ItemId

NOTE = "soft labels stand for 4 annotators where they are 1 and for 2 where they are below, not for the official ten"


def coco_small(section: TaskSection) -> FileTask:
    """Questions on pictures named by their twelve-digit COCO number; splits are made by picture."""
    problems = Problems("coco_small", "write questions.json and images/ yourself, see docs/tasks.md")
    folder = Path(section.folder).expanduser()
    path = find_file((folder, folder / "coco_small"), ("questions.json",))
    drafts = []
    if path is None:
        problems.add("questions.json", f"is not in task.folder = {folder}")
    else:
        rows = records_under({"rows": read_task_json(path, problems)}, "rows", path, problems)
        problems.present.append(f"{path} ({len(rows):,} questions)")
        root: Path | None = Path(section.images).expanduser() if section.images else path.parent / "images"
        if section.images == "none":
            root = None
        for number, row in enumerate(rows):
            place = f"{path.name}, record {number}"
            item = _item(row, root)
            if item is None:
                problems.add(place, "needs question, question_id, image_id (a number) and answers or soft_labels")
            else:
                drafts.append(Draft(item, place))
    notes = [NOTE] if any("soft" in draft.item.meta for draft in drafts) else []
    return task_from_drafts(
        "coco_small", drafts, section, problems, metric="vqa_accuracy", postprocess="vqa", notes=notes
    )


def _item(row: Mapping[str, Any], root: Path | None) -> Item | None:
    """The item of a record; None where the record lacks something. `root` is None where no pictures are used."""
    image, labels, answers = row.get("image_id"), row.get("soft_labels"), row.get("answers")
    soft = isinstance(labels, Mapping) and not answers
    if isinstance(labels, Mapping) and not answers:
        answers = _answers_of_soft_labels(labels)
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        return None
    if not is_whole_number(image) or not isinstance(row.get("question"), str) or "question_id" not in row:
        return None
    source = str(row.get("source", "coco"))
    meta = {"source": source}
    if soft:
        meta["soft"] = "true"
    return Item(
        id=ItemId(f"{source}-{row['question_id']}"),
        question=row["question"],
        answers=tuple(answers or ()),
        split="",
        image=None if root is None else str(root / f"{image:012d}.jpg"),
        image_id=str(image),
        meta=meta,
    )


def _answers_of_soft_labels(labels: Mapping[str, Any]) -> list[str] | None:
    """As many copies of each answer as give it the VQA accuracy of its soft label (1: 4 copies, below: 2).

    None where a label's value is no number.
    """
    answers: list[str] = []
    for text, value in labels.items():
        if not isinstance(value, (int, float)):
            return None
        answers += [text] * (4 if value >= 1 else 2)
    return answers
