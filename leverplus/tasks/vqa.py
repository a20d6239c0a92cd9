"""OK-VQA and VQAv2 from the official question, annotation and COCO picture files.

`train2014` gives the demonstrations and, picture by picture, the dev split; `val2014` is the test split. Items are
sorted by question id; `meta["idx"]` is the row in that order, by which files of the earlier code name items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.recipe.sections import TaskSection
from leverplus.tasks.files import Draft, FileTask, task_from_drafts
from leverplus.tasks.reading import Problems, find_file, is_whole_number, read_task_json, records_under
from leverplus.types import Item, ItemId

WHERE = {
    "okvqa": "questions and annotations https://okvqa.allenai.org/download.html; "
    "pictures http://images.cocodataset.org/zips/train2014.zip and val2014.zip",
    "vqav2": "questions and annotations https://visualqa.org/download.html; "
    "pictures http://images.cocodataset.org/zips/train2014.zip and val2014.zip",
}
YEARS = {"train": "train2014", "test": "val2014"}
# Fields of an annotation that are kept, to slice results by.
META = ("question_type", "answer_type", "multiple_choice_answer", "confidence")


_ANSWERS_FAULT = 'its answers must be a list of {"answer": text}'


@dataclass(frozen=True)
class DataHalf:
    """One half of the data set: which split it becomes, its COCO year, and where its pictures lie (None: unused)."""

    split: str
    year: str
    pictures: Path | None


def okvqa(section: TaskSection) -> FileTask:
    """OK-VQA: 9,009 questions on train2014 and 5,046 on val2014 that need outside knowledge."""
    return _load("okvqa", section, ("", "v2_"))


def vqav2(section: TaskSection) -> FileTask:
    """VQAv2: 443,757 questions on train2014 and 214,354 on val2014; set task.limit for a part of them."""
    return _load("vqav2", section, ("v2_", ""))


def _load(name: str, section: TaskSection, prefixes: tuple[str, ...]) -> FileTask:
    problems = Problems(name, WHERE[name])
    drafts: list[Draft] = []
    for split in YEARS:
        drafts += _read_split(section, split, prefixes, problems)
    return task_from_drafts(name, drafts, section, problems, metric="vqa_accuracy", postprocess="vqa")


def _read_split(section: TaskSection, split: str, prefixes: tuple[str, ...], problems: Problems) -> list[Draft]:
    """The items of one half of the data set; `prefixes` are the beginnings that its file names may have."""
    year = YEARS[split]
    question_files = [f"{start}OpenEnded_mscoco_{year}_questions.json" for start in prefixes]
    annotation_files = [f"{start}mscoco_{year}_annotations.json" for start in prefixes]
    questions = _find_official(section, question_files, problems)
    annotations = _find_official(section, annotation_files, problems)
    # Both are read even where one is missing, so that the problems of the other are reported too.
    asked = {} if questions is None else _by_id(questions, "questions", problems)
    answered = {} if annotations is None else _by_id(annotations, "annotations", problems)
    if questions is None or annotations is None:
        return []
    for number in sorted(asked.keys() - answered.keys()):
        problems.add(f"{questions.name}, question_id {number}", f"{annotations.name} has no answers to it")
    for number in sorted(answered.keys() - asked.keys()):
        problems.add(f"{annotations.name}, question_id {number}", f"{questions.name} has no such question")
    pictures = None if section.images == "none" else picture_folder(section, year, problems)
    half = DataHalf(split, year, pictures)
    drafts = []
    for row, number in enumerate(sorted(asked.keys() & answered.keys())):
        place = f"{questions.name}, question_id {number}"
        fault = _fault(asked[number], answered[number])
        if fault:
            problems.add(place, fault)
        else:
            drafts.append(Draft(_item(asked[number], answered[number], half, row), place))
    return drafts


def _find_official(section: TaskSection, names: list[str], problems: Problems) -> Path | None:
    folder = Path(section.folder).expanduser()
    path = find_file((folder, folder / "questions", folder / "annotations"), names)
    if path is None:
        problems.add(names[0], f"is not in task.folder = {folder}")
    return path


def _by_id(path: Path, key: str, problems: Problems) -> dict[int, Mapping[str, Any]]:
    """Records by question id; ids that are no number or occur twice are problems."""
    found: dict[int, Mapping[str, Any]] = {}
    for place, row in enumerate(records_under(read_task_json(path, problems), key, path, problems)):
        number = row.get("question_id")
        if not is_whole_number(number):
            problems.add(f"{path.name}, {key}[{place}]", f"question_id must be a whole number; it is {number!r}")
        elif number in found:
            problems.add(f"{path.name}, question_id {number}", "occurs twice")
        else:
            found[number] = row
    problems.present.append(f"{path} ({len(found):,} {key})")
    return found


def _fault(question: Mapping[str, Any], annotation: Mapping[str, Any]) -> str | None:
    """What is wrong with a question and its annotation; None where nothing is."""
    image, answers = question.get("image_id"), annotation.get("answers")
    if not is_whole_number(image) or not isinstance(question.get("question"), str):
        return "needs a question (text) and an image_id (whole number)"
    if annotation.get("image_id", image) != image:
        return f"is on picture {image}, its answers are on picture {annotation['image_id']}"
    if not isinstance(answers, list):
        return _ANSWERS_FAULT
    for answer in answers:
        if not isinstance(answer, Mapping) or not isinstance(answer.get("answer"), str):
            return _ANSWERS_FAULT
    return None


def _item(question: Mapping[str, Any], annotation: Mapping[str, Any], half: DataHalf, row: int) -> Item:
    image = question["image_id"]
    meta = {"idx": str(row)}
    for key in META:
        if annotation.get(key) is not None:
            meta[key] = str(annotation[key])
    return Item(
        id=ItemId(str(question["question_id"])),
        question=question["question"],
        answers=tuple(answer["answer"] for answer in annotation["answers"]),
        split=half.split,
        image=None if half.pictures is None else str(half.pictures / f"COCO_{half.year}_{image:012d}.jpg"),
        image_id=str(image),
        meta=meta,
    )


def picture_folder(section: TaskSection, year: str, problems: Problems) -> Path:
    """Where the pictures of a COCO year lie: in `YEAR/` or directly, in task.images or beside the files."""
    root = Path(section.images or section.folder).expanduser()
    places = [root / year, root / "images" / year, root / "images", root]
    for folder in places:
        if folder.is_dir() and next(folder.glob("*.jpg"), None) is not None:
            return folder
    problems.add(f"pictures of {year}", f"are not in {root / year}; set task.images = FOLDER, or none to do without")
    return root / year
