"""COCO captions: one item a picture, from the Karpathy file or the official ones, and CIDEr over a split."""

from __future__ import annotations

import json

import pytest
from miniatures import write_picture

from leverplus.errors import DataError
from leverplus.metrics import cider
from leverplus.tasks.base import SPLITS
from leverplus.tasks.captions import coco_captions


def words(number: int) -> list[str]:
    return [f"A  {colour} thing number {number}." for colour in ("red", "blue", "green")]


def test_the_karpathy_splits_are_taken_as_they_are(tmp_path, section) -> None:
    rows = []
    for number, split in enumerate(["train", "restval", "val", "test"] * 3):
        folder = "val2014" if number % 2 else "train2014"
        write_picture(tmp_path / folder / f"{number}.jpg", number)
        sentences = [{"raw": text} for text in words(number)]
        rows.append(
            {"cocoid": number, "filepath": folder, "filename": f"{number}.jpg", "split": split, "sentences": sentences}
        )
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": rows}))
    task = coco_captions(section(folder=tmp_path))
    assert [len(task.items(split)) for split in SPLITS] == [6, 3, 3]
    item = task.items("dev")[0]
    assert item.answers[0] == "A red thing number 2."
    assert task.image(item) is not None
    captions = {item.id: "a red thing number 3" for item in task.items("test")}
    references = {item.id: item.answers for item in task.items("test")}
    assert task.cider(captions) == cider(captions, references)
    assert task.cider(captions).items["3"] == max(task.cider(captions).items.values()) > 0
    rows[4]["sentences"] = []
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": rows}))
    assert coco_captions(section(folder=tmp_path, skip_empty=True)).notes == (
        "1 items without an answer were left out: 4",
    )


def test_official_files_give_train_and_test_and_dev_is_made(tmp_path, section) -> None:
    for half, start, count in (("train", 0, 10), ("val", 100, 4)):
        numbers = range(start, start + count)
        for number in numbers:
            write_picture(tmp_path / f"{half}2014" / f"COCO_{half}2014_{number:012d}.jpg", number)
        images = [{"id": n, "file_name": f"COCO_{half}2014_{n:012d}.jpg"} for n in numbers]
        captions = [
            {"id": 9 * n + k, "image_id": n, "caption": text} for n in numbers for k, text in enumerate(words(n))
        ]
        path = tmp_path / "annotations" / f"captions_{half}2014.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"images": images, "annotations": captions}))
    task = coco_captions(section(folder=tmp_path))
    assert [len(task.items(split)) for split in SPLITS] == [8, 2, 4]
    assert {item.image_id for item in task.items("test")} == {"100", "101", "102", "103"}
    path.write_text(json.dumps({"images": images, "annotations": [{"id": 5, "image_id": 100, "caption": " "}]}))
    with pytest.raises(DataError, match="annotation 5: needs a caption"):
        coco_captions(section(folder=tmp_path))
