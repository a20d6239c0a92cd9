"""OK-VQA and VQAv2 are read from their official files, whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from miniatures import write_vqa
from PIL import Image

from leverplus.errors import DataError
from leverplus.metrics import metric_named, vqa_accuracy
from leverplus.tasks.base import SPLITS
from leverplus.tasks.vqa import okvqa, vqav2
from leverplus.types import ItemId


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_miniature_in_the_official_format_becomes_items_with_pictures(vqa_folder, section) -> None:
    task = okvqa(section(folder=vqa_folder))
    counts = {split: len(task.items(split)) for split in SPLITS}
    assert counts == {"train": 20, "dev": 4, "test": 12}
    item = task.item(ItemId("1031"))
    assert (item.question, item.answer, item.image_id) == ("What is 1031?", "thing 103", "103")
    assert len(item.answers) == 10
    assert metric_named(task.metric)("thing 103", item.answers) == vqa_accuracy("thing 103", item.answers) == 1.0
    picture = task.image(item)
    assert isinstance(picture, Image.Image)
    assert (picture.size, picture.mode) == ((24, 24), "RGB")


def test_no_picture_is_shared_between_splits_and_the_seed_decides_which_are_dev(vqa_folder, section) -> None:
    homes = []
    for seed in (0, 0, 1):
        task = okvqa(section(folder=vqa_folder, split_seed=seed, dev_items=4))
        images = {split: {item.image_id for item in task.items(split)} for split in SPLITS}
        assert not images["train"] & images["dev"]
        assert not images["train"] & images["test"]
        assert not images["dev"] & images["test"]
        homes.append(images["dev"])
    assert homes[0] == homes[1] != homes[2]


def test_items_know_their_row_in_the_order_of_question_ids(vqa_folder, section) -> None:
    task = okvqa(section(folder=vqa_folder))
    rows = {int(item.meta["idx"]): int(item.id) for split in ("train", "dev") for item in task.items(split)}
    assert [rows[row] for row in range(len(rows))] == sorted(rows.values())


def test_both_prefixes_are_found_and_each_task_prefers_its_own(tmp_path, section) -> None:
    write_vqa(tmp_path, prefix="v2_")
    assert len(okvqa(section(folder=tmp_path)).items("test")) == 12
    write_vqa(tmp_path, prefix="", pictures=8)
    assert len(okvqa(section(folder=tmp_path)).items("test")) == 8
    assert len(vqav2(section(folder=tmp_path)).items("test")) == 12


def test_missing_files_are_named_with_what_was_found_and_where_to_get_them(vqa_folder, section) -> None:
    (vqa_folder / "mscoco_train2014_annotations.json").unlink()
    with pytest.raises(DataError, match=r"mscoco_train2014_annotations\.json: is not in") as caught:
        okvqa(section(folder=vqa_folder))
    assert "24 questions" in str(caught.value)
    assert "okvqa.allenai.org" in str(caught.value)


def test_a_missing_a_broken_and_a_cut_picture_are_named_together(vqa_folder, section) -> None:
    folder = vqa_folder / "train2014"
    (folder / "COCO_train2014_000000000101.jpg").unlink()
    (folder / "COCO_train2014_000000000102.jpg").write_text("<html>not found</html>")
    cut = folder / "COCO_train2014_000000000103.jpg"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    with pytest.raises(DataError) as caught:
        okvqa(section(folder=vqa_folder))
    text = str(caught.value)
    assert "3 problems, nothing was loaded" in text
    for number in (101, 102, 103):
        assert f"{number:012d}.jpg" in text
    text_only = okvqa(section(folder=vqa_folder, images="none"))
    assert text_only.image(text_only.items("train")[0]) is None


def test_duplicate_ids_empty_answers_and_strangers_are_named_with_their_ids(vqa_folder, section) -> None:
    edit(
        vqa_folder / "OpenEnded_mscoco_train2014_questions.json",
        lambda value: (value["questions"].append(value["questions"][0]), value["questions"].pop(5)),
    )
    edit(
        vqa_folder / "mscoco_train2014_annotations.json",
        lambda value: value["annotations"][2].update(answers=[{"answer": " "}] * 10),
    )
    with pytest.raises(DataError) as caught:
        okvqa(section(folder=vqa_folder))
    text = str(caught.value)
    assert "question_id 1001: occurs twice" in text
    assert "question_id 1020: " in text
    assert "has no such question" in text
    assert "question_id 1011: the answer is empty" in text


def test_a_picture_in_two_splits_is_refused(vqa_folder, section) -> None:
    for name, key in (
        ("OpenEnded_mscoco_val2014_questions", "questions"),
        ("mscoco_val2014_annotations", "annotations"),
    ):
        edit(vqa_folder / f"{name}.json", lambda value, key=key: [row.update(image_id=100) for row in value[key][:2]])
    with pytest.raises(DataError, match=r"its picture 100 is in (train|dev) and in test"):
        okvqa(section(folder=vqa_folder, images="none"))


def test_bytes_of_another_encoding_are_named_with_their_line(vqa_folder, section) -> None:
    path = vqa_folder / "OpenEnded_mscoco_val2014_questions.json"
    path.write_bytes(b'{"questions": [\n\n' + "caf\u00e9".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 3: is not utf-8 \(byte 0xe9\)"):
        okvqa(section(folder=vqa_folder))


def test_twenty_problems_are_listed_and_the_rest_is_counted(vqa_folder, section) -> None:
    for path in (vqa_folder / "train2014").glob("*.jpg"):
        path.write_bytes(b"")
    for path in (vqa_folder / "val2014").glob("*.jpg"):
        path.write_bytes(b"")
    write_vqa(vqa_folder / "more", pictures=30)
    for path in (vqa_folder / "more" / "train2014").glob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="18 problems"):
        okvqa(section(folder=vqa_folder))
    with pytest.raises(DataError, match=r"30 problems.*\n(  - .*\n){20}  \.\.\. and 10 more"):
        okvqa(section(folder=vqa_folder / "more"))


def test_the_version_follows_content_not_place(tmp_path, section) -> None:
    write_vqa(tmp_path / "a")
    write_vqa(tmp_path / "b")
    first = okvqa(section(folder=tmp_path / "a"))
    assert okvqa(section(folder=tmp_path / "b")).version == first.version
    edit(
        tmp_path / "b" / "mscoco_val2014_annotations.json",
        lambda value: value["annotations"][0]["answers"][0].update(answer="changed"),
    )
    assert okvqa(section(folder=tmp_path / "b")).version != first.version
    item = first.items("train")[0]
    before = first.image_digest(item)
    write_vqa(tmp_path / "a", first=101)
    assert okvqa(section(folder=tmp_path / "a")).version != first.version
    assert len(before) == 16


def test_a_limit_keeps_whole_pictures_and_is_stable(vqa_folder, section) -> None:
    task = okvqa(section(folder=vqa_folder, limit=4))
    for split in SPLITS:
        assert len(task.items(split)) == 4
        assert set(Counter(item.image_id for item in task.items(split)).values()) == {2}
    again = okvqa(section(folder=vqa_folder, limit=4))
    assert [item.id for item in again.items("train")] == [item.id for item in task.items("train")]


def annotations_from(rows: dict[int, list[str]]) -> str:
    records = [
        {"question_id": number, "answers": [{"answer": text} for text in answers]} for number, answers in rows.items()
    ]
    return json.dumps({"annotations": records})


def test_the_real_question_files_are_read(shared_data, tmp_path, section) -> None:
    folder = shared_data / "okvqa"
    labels = json.loads((folder / "train_labels.json").read_text())
    tens = json.loads((folder / "val_ten_answers.json").read_text())
    answers = {
        "train": {
            row["question_id"]: [text for text, value in row["label"].items() for _ in range(4 if value == 1 else 2)]
            for row in labels
        },
        "val": {row["question_id"]: row["answer"] for row in tens},
    }
    for half, rows in answers.items():
        name = f"OpenEnded_mscoco_{half}2014_questions.json"
        (tmp_path / name).symlink_to(folder / name)
        (tmp_path / f"mscoco_{half}2014_annotations.json").write_text(annotations_from(rows))
    with pytest.raises(DataError, match="question_id 66145: the answer is empty"):
        okvqa(section(folder=tmp_path, images="none"))
    task = okvqa(section(folder=tmp_path, images="none", skip_empty=True))
    assert len(task.items("train")) + len(task.items("dev")) == 9007
    assert len(task.items("dev")) == 500
    assert len(task.items("test")) == 5045
    assert task.notes == ("3 items without an answer were left out: 479525, 1782755, 66145",)
    assert task.item(ItemId("2971475")).question == "What sport can you use this for?"


def test_the_real_vqav2_files_are_read_compressed(shared_data, tmp_path, section) -> None:
    for half, part in (("train", "valid"), ("val", "test")):
        for key, name in (
            ("questions", "OpenEnded_mscoco_{}2014_questions"),
            ("annotatons", "mscoco_{}2014_annotations"),
        ):
            target = tmp_path / f"v2_{name.format(half)}.json.gz"
            target.symlink_to(shared_data / f"vqav2_subset/vqa_{key}_{part}.json.gz")
    # the subset was not split by picture, so its two parts must not pass for train2014 and val2014
    with pytest.raises(DataError, match=r"its picture \d+ is in train and in test"):
        vqav2(section(folder=tmp_path, images="none"))
    for path in tmp_path.glob("*val2014*"):
        path.unlink()
    (tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json").write_text(
        json.dumps({"questions": [{"question_id": 1, "image_id": 1, "question": "What?"}]})
    )
    (tmp_path / "v2_mscoco_val2014_annotations.json").write_text(annotations_from({1: ["yes"] * 10}))
    task = vqav2(section(folder=tmp_path, images="none"))
    assert len(task.items("train")) + len(task.items("dev")) == 8977
    assert task.item(ItemId("413918000")).answer == "state farm"
