"""OK-VQA and VQAv2 from the official question, annotation and COCO picture files.

`train2014` gives the demonstrations and, picture by picture, the dev split; `val2014` is the test split. Items are
sorted by question id; `meta["idx"]` is the row in that order, by which files of the earlier code name items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from leverplus.data.formats import Problems, read_text
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import Draft, FileTask, task_from_drafts
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError

COCO = "pictures http://images.cocodataset.org/zips/train2014.zip and val2014.zip"
YEARS = {"train": "train2014", "test": "val2014"}


class StrictModel(BaseModel):
    """A record of a file, whose values have the types that are named."""

    model_config = ConfigDict(strict=True)


class _Question(StrictModel):
    question_id: int
    image_id: int
    question: str


class _Questions(StrictModel):
    questions: list[_Question]


class _Answer(StrictModel):
    answer: str


class _Annotation(StrictModel):
    question_id: int
    image_id: int | None = None
    answers: list[_Answer]
    question_type: str = ""
    answer_type: str = ""


class _Annotations(StrictModel):
    annotations: list[_Annotation]


ModelT = TypeVar("ModelT", bound=BaseModel)


def okvqa(section: TaskSection) -> FileTask:
    """OK-VQA: 9,009 questions on train2014 and 5,046 on val2014 that need outside knowledge."""
    return _load(
        "okvqa", "https://okvqa.allenai.org/download.html", ("", "v2_"), section
    )


def vqav2(section: TaskSection) -> FileTask:
    """VQAv2: 443,757 questions on train2014 and 214,354 on val2014; set task.limit for a part of them."""
    return _load("vqav2", "https://visualqa.org/download.html", ("v2_", ""), section)


def _load(
    name: str, where: str, prefixes: Sequence[str], section: TaskSection
) -> FileTask:
    problems = Problems(name, f"questions and annotations {where}; {COCO}")
    drafts: list[Draft] = []
    for split in YEARS:
        drafts += _read_split(section, split, prefixes, problems)
    rules = AnswerRules("vqa_accuracy", "vqa")
    return task_from_drafts(name, drafts, section, problems, answers=rules)


def _read_split(
    section: TaskSection, split: str, prefixes: Sequence[str], problems: Problems
) -> list[Draft]:
    """The items of one half of the data set; `prefixes` are the beginnings that its file names may have."""
    year = YEARS[split]
    folder = Path(section.folder).expanduser()
    folders = (folder, folder / "questions", folder / "annotations")
    names = [f"{start}OpenEnded_mscoco_{year}_questions.json" for start in prefixes]
    asked = read_file(folders, names, _Questions, problems)
    names = [f"{start}mscoco_{year}_annotations.json" for start in prefixes]
    given = read_file(folders, names, _Annotations, problems)
    if asked is None or given is None:
        return []
    annotations = {row.question_id: row for row in given.annotations}
    pictures = picture_folder(section, year, problems)
    drafts = []
    questions = sorted(asked.questions, key=lambda question: question.question_id)
    for row, question in enumerate(questions):
        number = question.question_id
        image = question.image_id
        place = f"{year}, question_id {number}"
        annotation = annotations.get(number)
        if annotation is None or annotation.image_id not in (None, image):
            problems.add(place, f"has no annotation of its picture {image}")
            continue
        item = Item(
            id=ItemId(str(number)),
            question=question.question,
            answers=tuple(answer.answer for answer in annotation.answers),
            split=split,
            image=str(pictures / f"COCO_{year}_{image:012d}.jpg") if pictures else None,
            image_id=str(image),
            meta={
                "idx": str(row),
                "question_type": annotation.question_type,
                "answer_type": annotation.answer_type,
            },
        )
        drafts.append(Draft(item, place))
    return drafts


def find_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of these names that lies in one of these folders, plain or gzipped; None where none does."""
    folders = list(folders)  # walked once per name
    for name in names:
        for folder in folders:
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    return None


def read_file(
    folders: Sequence[Path],
    names: Sequence[str],
    model: type[ModelT],
    problems: Problems,
) -> ModelT | None:
    """The content of the JSON file with one of these names; None, with the problems reported, where it is faulty."""
    path = find_file(folders, names)
    if path is None:
        problems.add(names[0], f"is not in task.folder = {folders[0]}")
        return None
    try:
        value = model.model_validate_json(read_text(path))
    except DataError as error:
        problems.add(names[0], str(error))
        return None
    except ValidationError as error:
        for fault in error.errors():
            place = ".".join(map(str, fault["loc"]))
            problems.add(f"{path.name}, {place}", fault["msg"])
        return None
    problems.present.append(str(path))
    return value


def picture_folder(section: TaskSection, year: str, problems: Problems) -> Path | None:
    """Where the pictures of a COCO year lie: in `YEAR/` or directly, in task.images or beside the files."""
    if section.images == "none":
        return None
    root = Path(section.images or section.folder).expanduser()
    for folder in (root / year, root):
        if next(folder.glob("*.jpg"), None) is not None:
            return folder
    problems.add(
        f"pictures of {year}",
        f"are not in {root / year}; set task.images = FOLDER, or none to do without",
    )
    return None
