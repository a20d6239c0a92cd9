"""Data sets of the documents and benchmarks: captions, OK-VQA with captions, TREC and SST-2, from their usual files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "data"))
from miniatures import section_of, write_picture

from leverplus.data.metrics import cut_named
from leverplus.data.tasks.base import Task
from leverplus.data.tasks.splits import SPLITS
from leverplus.errors import DataError
from leverplus_lab.tasks import coco_captions, okvqa_captions, sst2, trec

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def sizes(task: Task) -> list[int]:
    return [len(task.items(split)) for split in SPLITS]


def refusal(load: Callable[..., Task], folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(section_of(folder=folder))
    return str(caught.value)


def described(number: int) -> list[str]:
    return [f"A  {colour} thing {number}." for colour in ("red", "blue", "green")]


def test_the_karpathy_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, split in enumerate(["train", "restval", "val", "test"] * 3):
        write_picture(tmp_path / "val2014" / f"{number}.jpg", number)
        own = {"cocoid": number, "filepath": "val2014", "filename": f"{number}.jpg"}
        sentences = [{"raw": text} for text in described(number)]
        rows.append({**own, "split": split, "sentences": sentences})
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"images": rows}))
    task = coco_captions(section_of(folder=tmp_path))
    assert sizes(task) == [6, 3, 3]
    assert task.items("dev")[0].answers[0] == "A red thing 2."
    assert task.image(task.items("dev")[0]) is not None
    near, far = (
        task.answers.score(text, task.items("test")[0])
        for text in ("A red thing 3.", "nothing of the kind")
    )
    assert near > far == 0.0
    rows[4]["split"], rows[5]["cocoid"] = "later", True
    path.write_text(json.dumps({"images": rows}))
    said = refusal(coco_captions, tmp_path)
    assert "dataset_coco.json, images.4.split: Input should be 'train'" in said
    assert "images.5.cocoid: Input should be a valid integer" in said


def test_official_captions_give_train_and_test_and_dev_is_made(tmp_path: Path) -> None:
    for half, numbers in (("train", range(10)), ("val", range(100, 104))):
        images, captions = [], []
        for n in numbers:
            write_picture(tmp_path / f"{half}2014" / f"{n}.jpg", n)
            images.append({"id": n, "file_name": f"{n}.jpg"})
            captions += [{"image_id": n, "caption": text} for text in described(n)]
        path = tmp_path / "annotations" / f"captions_{half}2014.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"images": images, "annotations": captions}))
    task = coco_captions(section_of(folder=tmp_path))
    assert sizes(task) == [8, 2, 4]
    assert [item.id for item in task.items("test")] == ["100", "101", "102", "103"]
    empty = {"images": images, "annotations": [{"image_id": 100, "caption": " "}]}
    path.write_text(json.dumps(empty))
    assert "caption of image 100: is empty" in refusal(coco_captions, tmp_path)
    path.unlink()
    assert "captions_val2014.json: is not in task.folder" in refusal(
        coco_captions, tmp_path
    )


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (' "a dog" Output: a cat', "a dog"),
        ("a “big” dog\nCaption: x", "a big dog"),
        ("it's a dog, running", "it's a dog, running"),
    ],
)
def test_a_caption_ends_where_the_template_begins_again(raw: str, answer: str) -> None:
    assert cut_named("caption")(raw) == cut_named("caption")(answer) == answer


def write_captioned(folder: Path, count: int = 20) -> Path:
    rows = [
        {
            "question_id": n,
            "question": f"What {n}?",
            "answer": ["race"] * 10,
            "image": f"val2014/COCO_val2014_{n // 2:012d}.jpg",
        }
        for n in range(count)
    ]
    (folder / "val_ten_answers.json").write_text(json.dumps(rows))
    path = folder / "vinvl_captions_val2014.tsv"
    lines = [f'{n}\t[{{"caption": "a thing {n}."}}]\n' for n in range(count // 2)]
    path.write_text("".join(lines))
    return path


def test_captions_stand_in_the_place_of_pictures(tmp_path: Path) -> None:
    path = write_captioned(tmp_path)
    task = okvqa_captions(section_of(folder=tmp_path))
    item = task.item("7")
    assert item.question == "a thing 3. What 7?"
    assert (item.image, item.image_id) == (None, "3")
    assert item.meta == {"caption": "a thing 3.", "question": "What 7?"}
    assert sizes(task) == [12, 4, 4]
    homes = [{item.image_id for item in task.items(split)} for split in SPLITS]
    assert len(homes[0] | homes[1] | homes[2]) == sum(map(len, homes))
    assert "not comparable" in task.notes[0]
    text = path.read_text().replace('"caption": "a thing 4."', '"text": "x"')
    path.write_text(text + "9\t[broken\n")
    said = refusal(okvqa_captions, tmp_path)
    assert "line 5: must be IMAGE, a tab" in said
    assert "line 11: must be IMAGE, a tab" in said
    assert "question_id 8: there is no caption of picture 4" in said
    path.unlink()
    assert "vinvl_captions_val2014.tsv: is not in" in refusal(okvqa_captions, tmp_path)


def test_numbers_and_official_names_of_trec_labels_mean_the_same(
    tmp_path: Path,
) -> None:
    tasks = []
    for train, test, marks in (
        ("TREC.train.all", "TREC.test.all", "0 1 2 3 4 5"),
        ("train_5500.label", "TREC_10.label", "DESC:manner ENTY:a ABBR:b HUM:c LOC:d NUM:e"),
    ):  # fmt: skip
        folder = tmp_path / train
        folder.mkdir()
        lines = [f"{label} Question {n} ?" for n in range(5) for label in marks.split()]
        for name, mark in ((train, ""), (test, "!")):
            text = "\n".join(f"{line}{n}{mark}" for n, line in enumerate(lines))
            (folder / name).write_text(text + " caf\u00e9\n", encoding="latin-1")
        tasks.append(trec(section_of(folder=folder)))
    assert tasks[0].version == tasks[1].version
    words = ("description", "entity", "abbreviation", "person", "location", "number")
    assert tasks[0].labels == words
    assert tasks[0].answers.cut == "vqa"
    item = tasks[0].items("test")[-1]
    assert (item.question, item.answer) == ("Question 4 ?29! caf\u00e9", "number")


def test_reviews_and_what_is_wrong_with_their_files(tmp_path: Path) -> None:
    lines = {
        "train": [f"{n % 2} text {n}" for n in range(10)],
        "dev": ["0 d0", "1 d1"],
        "test": ["1 Text  3", "0 t1"],
    }
    for split, own in lines.items():
        (tmp_path / f"SST2.{split}").write_text("\n".join(own))
    task = sst2(section_of(folder=tmp_path))
    assert sizes(task) == [9, 2, 2]
    assert "text 3" not in {item.question for item in task.items("train")}
    (tmp_path / "SST2.train").write_text("0 dull\n1 good\n2 so so\n")
    (tmp_path / "SST2.dev").write_bytes(b"0 dull\n1 caf\xe9\n")
    (tmp_path / "SST2.test").unlink()
    said = refusal(sst2, tmp_path)
    assert "SST2.train, line 3: starts with '2', which is no label" in said
    assert "SST2.dev, line 2: is not UTF-8 (byte 0xe9)" in said
    assert "SST2.test: is not in task.folder" in said


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="real data are not beside the clone")
def test_the_real_files_are_read() -> None:
    questions = trec(section_of(folder=SHARED / "text"))
    assert sizes(questions) == [4941, 500, 500]
    texts = [{item.image_id for item in questions.items(split)} for split in SPLITS]
    assert not texts[0] & (texts[1] | texts[2])
    assert sizes(sst2(section_of(folder=SHARED / "text"))) == [6917, 872, 1821]
