"""A JSONL file of questions is a task; every faulty line is named, and nothing is half loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from miniatures import write_picture

from leverplus.errors import DataError
from leverplus.tasks.base import SPLITS
from leverplus.tasks.jsonl import jsonl
from leverplus.types import ItemId


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int = 20) -> list[dict[str, object]]:
    return [{"id": n, "question": f"What is {n}?", "answers": [str(n)]} for n in range(count)]


def test_splits_are_made_when_no_line_has_one(tmp_path, section) -> None:
    task = jsonl(section(file=write(tmp_path / "a.jsonl", rows())))
    assert {split: len(task.items(split)) for split in SPLITS} == {"train": 12, "dev": 4, "test": 4}
    assert (task.metric, task.item(ItemId("7")).answer) == ("exact_match", "7")


def test_more_items_do_not_move_others_from_train_to_test(tmp_path, section) -> None:
    small = jsonl(section(file=write(tmp_path / "a.jsonl", rows(50)), test_items=5, dev_items=5))
    large = jsonl(section(file=write(tmp_path / "b.jsonl", rows(60)), test_items=5, dev_items=5))
    moved = {item.id for item in large.items("test")} - {item.id for item in small.items("test")}
    assert all(int(number) >= 50 for number in moved)


def test_pictures_are_found_beside_the_file_and_group_their_questions(tmp_path, section) -> None:
    lines = []
    for number in range(24):
        write_picture(tmp_path / "pictures" / f"{number // 2}.png", number // 2)
        lines.append({"id": f"q{number}", "question": "What?", "answer": "x", "image": f"pictures/{number // 2}.png"})
    task = jsonl(section(file=write(tmp_path / "a.jsonl", lines)))
    homes = {split: {item.image_id for item in task.items(split)} for split in SPLITS}
    assert not homes["train"] & (homes["dev"] | homes["test"])
    assert task.image(task.items("dev")[0]).size == (24, 24)
    (tmp_path / "pictures" / "3.png").write_bytes((tmp_path / "pictures" / "3.png").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"1 problem, nothing was loaded\n.*a\.jsonl, line 7: .*3\.png cannot be read"):
        jsonl(section(file=tmp_path / "a.jsonl"))


def test_every_faulty_line_is_named(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl"
    good = [json.dumps(row) for row in rows(10)]
    bad = [
        "{broken",
        json.dumps([1]),
        json.dumps({"id": "a", "question": "", "answers": ["x"]}),
        json.dumps({"id": "b", "question": "Q", "answers": []}),
        json.dumps({"id": "c", "question": "Q", "answers": [" "]}),
        json.dumps({"id": "d", "question": "Q", "answers": ["x"], "anwser": "x"}),
        json.dumps({"id": 3, "question": "Q", "answers": ["x"]}),
        json.dumps({"id": "e", "question": "Q", "answers": ["x"], "image": "nowhere.jpg", "split": "validation"}),
    ]
    path.write_text("\n".join(good + bad))
    with pytest.raises(DataError) as caught:
        jsonl(section(file=path))
    text = str(caught.value)
    assert "9 problems" in text
    for line, what in (
        (1, "has no split, as 12 further lines"),
        (11, "is not JSON"),
        (12, "must be an object"),
        (13, "the question is empty"),
        (14, "the answer is empty"),
        (15, "an answer is empty"),
        (16, "there is no key 'anwser'"),
        (17, "the id 3 was used before, at a.jsonl, line 4"),
        (18, "split is 'validation'"),
    ):
        assert f"line {line}: {what}" in text


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n{"id": 2, "question": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: is not utf-8"):
        jsonl(section(file=path))


def test_vqa_accuracy_is_used_when_there_are_enough_annotators_and_refused_when_not(tmp_path, section) -> None:
    many = [{**row, "answers": ["a", "a", "a", "b"]} for row in rows()]
    assert jsonl(section(file=write(tmp_path / "a.jsonl", many))).metric == "vqa_accuracy"
    with pytest.raises(DataError, match="VQA accuracy needs 4 answers"):
        jsonl(section(file=write(tmp_path / "b.jsonl", rows()), metric="vqa_accuracy"))


def test_a_text_that_occurs_in_two_given_splits_is_refused(tmp_path, section) -> None:
    lines = [{**row, "split": SPLITS[n % 3]} for n, row in enumerate(rows())]
    lines[1]["question"] = str(lines[0]["question"]).upper()
    with pytest.raises(DataError, match="is in train and in dev"):
        jsonl(section(file=write(tmp_path / "a.jsonl", lines)))
