"""A handful of questions on real photographs goes through the whole picture path."""

from __future__ import annotations

import json

import pytest
from miniatures import write_picture

from leverplus.errors import DataError
from leverplus.tasks.base import SPLITS
from leverplus.tasks.coco_small import coco_small


def test_records_with_answers_or_soft_labels_become_items(tmp_path, section) -> None:
    rows = []
    for number in range(10):
        write_picture(tmp_path / "images" / f"{number:012d}.jpg", number)
        rows.append(
            {"source": "vqav2", "image_id": number, "question_id": number, "question": "What?", "answers": ["x"] * 10}
        )
    rows[4] = {
        "source": "okvqa",
        "image_id": 4,
        "question_id": 4,
        "question": "Why?",
        "soft_labels": {"a": 1, "b": 0.667},
    }
    (tmp_path / "questions.json").write_text(json.dumps(rows))
    task = coco_small(section(folder=tmp_path))
    assert [len(task.items(split)) for split in SPLITS] == [6, 2, 2]
    assert task.item("okvqa-4").answers == ("a", "a", "a", "a", "b", "b")
    assert "soft labels" in task.notes[0]
    rows[3].pop("image_id")
    (tmp_path / "questions.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="record 3: needs question"):
        coco_small(section(folder=tmp_path))


def test_the_real_photographs_are_read(shared_data, section) -> None:
    task = coco_small(section(folder=shared_data / "coco_small", skip_empty=True))
    items = [item for split in SPLITS for item in task.items(split)]
    assert len(items) == 138
    assert len({item.image for item in items}) > 100
    assert max(task.image(task.items("test")[0]).size) == 448
