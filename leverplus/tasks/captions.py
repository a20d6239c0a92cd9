"""COCO captions: every picture once, its captions as references; Karpathy splits, or the official 2014 or 2017 files.

Search and training judge a caption by `token_f1`, which one caption can have; CIDEr needs a corpus, so it is computed
over a whole split by `CaptionTask.cider`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.metrics import CiderScores, cider
from leverplus.recipe.sections import TaskSection
from leverplus.tasks.base import SPLITS
from leverplus.tasks.files import Draft, FileTask, task_from_drafts
from leverplus.tasks.reading import Problems, find_file, is_whole_number, read_task_json, records_under
from leverplus.types import Item, ItemId

QUESTION = "What does the picture show?"
WHERE = (
    "captions http://images.cocodataset.org/annotations/annotations_trainval2014.zip, or the Karpathy splits "
    "(dataset_coco.json) https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip; "
    "pictures http://images.cocodataset.org/zips/train2014.zip and val2014.zip"
)
# Karpathy's split -> ours. "restval" are the val2014 pictures that are neither in "val" nor in "test".
KARPATHY = {"train": "train", "restval": "train", "val": "dev", "test": "test"}


class CaptionTask(FileTask):
    """A `FileTask` whose items are pictures to describe."""

    def cider(self, captions: Mapping[ItemId, str]) -> CiderScores:
        """CIDEr-D of captions against the references of exactly these pictures."""
        given, references = {}, {}
        for item_id, caption in captions.items():
            given[str(item_id)] = caption
            references[str(item_id)] = self.item(item_id).answers
        return cider(given, references)


def coco_captions(section: TaskSection) -> CaptionTask:
    """COCO captions from `dataset_coco.json` if it is there, else from `captions_{train,val}{2014,2017}.json`."""
    problems = Problems("coco_captions", WHERE)
    folder = Path(section.folder).expanduser()
    places = (folder, folder / "annotations")
    karpathy = find_file(places, ("dataset_coco.json",))
    if karpathy is None:
        drafts = _read_official(section, places, problems)
    else:
        drafts = _read_karpathy(karpathy, section, problems)
    task = task_from_drafts("coco_captions", drafts, section, problems, metric="token_f1", postprocess="caption")
    items: list[Item] = []
    for split in SPLITS:
        items += task.items(split)
    return CaptionTask(
        task.name, items, metric=task.metric, postprocess=task.postprocess, notes=task.notes, places=task.places
    )


def _read_karpathy(path: Path, section: TaskSection, problems: Problems) -> list[Draft]:
    rows = records_under(read_task_json(path, problems), "images", path, problems)
    problems.present.append(f"{path} ({len(rows):,} pictures)")
    drafts = []
    for row in rows:
        place = f"{path.name}, cocoid {row.get('cocoid')}"
        if not _is_karpathy_record(row):
            problems.add(
                place,
                "needs cocoid (a whole number), filename, sentences (a list of {raw: text}) and a split out of "
                + ", ".join(KARPATHY),
            )
            continue
        captions = [sentence["raw"] for sentence in row["sentences"]]
        name = f"{row.get('filepath', '')}/{row['filename']}".lstrip("/")
        item = _item(row["cocoid"], captions, KARPATHY[row["split"]], name, section)
        drafts.append(Draft(item, place))
    return drafts


def _is_karpathy_record(row: Mapping[str, Any]) -> bool:
    sentences = row.get("sentences")
    if not isinstance(sentences, list):
        return False
    for sentence in sentences:
        if not isinstance(sentence, Mapping) or not isinstance(sentence.get("raw"), str):
            return False
    # A list, because `in` on a dictionary raises where the value of "split" cannot be hashed.
    known_split = row.get("split") in list(KARPATHY)
    return known_split and is_whole_number(row.get("cocoid")) and isinstance(row.get("filename"), str)


def _read_official(section: TaskSection, places: tuple[Path, ...], problems: Problems) -> list[Draft]:
    drafts = []
    for split, half in (("train", "train"), ("test", "val")):
        path = find_file(places, (f"captions_{half}2014.json", f"captions_{half}2017.json"))
        if path is None:
            problems.add(
                f"captions_{half}2014.json", f"is not in task.folder = {section.folder}, nor dataset_coco.json"
            )
            continue
        year = path.name.split(".")[0][-4:]  # captions_train2014.json.gz -> 2014
        drafts += _read_official_split(path, half + year, split, section, problems)
    return drafts


def _read_official_split(path: Path, year: str, split: str, section: TaskSection, problems: Problems) -> list[Draft]:
    """The pictures of one file, by number; `year` is the folder of its pictures, such as train2014."""
    value = read_task_json(path, problems)
    captions: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for place, row in enumerate(records_under(value, "images", path, problems)):
        number, name = row.get("id"), row.get("file_name")
        if not is_whole_number(number) or not isinstance(name, str):
            problems.add(f"{path.name}, images[{place}]", "needs an id (whole number) and a file_name")
        else:
            names[number] = name
    for row in records_under(value, "annotations", path, problems):
        number, caption = row.get("image_id"), row.get("caption")
        if not is_whole_number(number) or number not in names or not isinstance(caption, str) or not caption.strip():
            problems.add(f"{path.name}, annotation {row.get('id')}", "needs a caption and an image_id of the file")
        else:
            captions.setdefault(number, []).append(caption)
    problems.present.append(f"{path} ({len(captions):,} pictures)")
    drafts = []
    for number in sorted(captions):
        item = _item(number, captions[number], split, f"{year}/{names[number]}", section)
        drafts.append(Draft(item, f"{path.name}, image {number}"))
    return drafts


def _item(number: Any, captions: list[str], split: str, name: str, section: TaskSection) -> Item:
    image = None
    if section.images != "none":
        root = Path(section.images or section.folder).expanduser()
        direct = root / Path(name).name  # all pictures in one folder, without a folder per year
        image = str(direct if direct.is_file() else root / name)
    return Item(
        id=ItemId(str(number)),
        question=QUESTION,
        answers=tuple(" ".join(caption.split()) for caption in captions),
        split=split,
        image=image,
        image_id=str(number),
    )
