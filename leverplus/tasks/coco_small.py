"""A few real questions on real photographs, for trying the whole picture path: `questions.json` beside `images/`.

Records have image_id, question_id, question, source, and ten `answers` or `soft_labels` (answer -> 1 or 0.667).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.recipe.sections import TaskSection
from leverplus.tasks.files import Draft, FileTask, build_task
from leverplus.tasks.reading import Problems, find_file, is_whole, read_json, rows_of
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
        rows = rows_of({"rows": read_json(path, problems)}, "rows", path, problems)
        problems.present.append(f"{path} ({len(rows):,} questions)")
        root = Path(section.images).expanduser() if section.images else path.parent / "images"
        for number, row in enumerate(rows):
            place = f"{path.name}, record {number}"
            item = _item(row, None if section.images == "none" else root)
            if item is None:
                problems.add(place, "needs question, question_id, image_id (a number) and answers or soft_labels")
            else:
                drafts.append(Draft(item, place))
    notes = [NOTE] if any("soft" in draft.item.meta for draft in drafts) else []
    return build_task("coco_small", drafts, section, problems, metric="vqa_accuracy", postprocess="vqa", notes=notes)


def _item(row: Mapping[str, Any], root: Path | None) -> Item | None:
    image, labels, answers = row.get("image_id"), row.get("soft_labels"), row.get("answers")
    soft = isinstance(labels, Mapping) and not answers
    if soft and isinstance(labels, Mapping) and all(isinstance(value, (int, float)) for value in labels.values()):
        answers = [text for text, value in labels.items() for _ in range(4 if value >= 1 else 2)]
    texts = isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)
    if not is_whole(image) or not isinstance(row.get("question"), str) or "question_id" not in row or not texts:
        return None
    source = str(row.get("source", "coco"))
    return Item(
        id=ItemId(f"{source}-{row['question_id']}"),
        question=row["question"],
        answers=tuple(answers or ()),
        split="",
        image=None if root is None else str(root / f"{image:012d}.jpg"),
        image_id=str(image),
        meta={"source": source, **({"soft": "true"} if soft else {})},
    )
