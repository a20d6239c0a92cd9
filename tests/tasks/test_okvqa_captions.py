"""OK-VQA with captions: one file of questions, one of captions, three splits by picture."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from leverplus.errors import DataError
from leverplus.recipe.recipe import load_recipe
from leverplus.tasks.base import SPLITS
from leverplus.tasks.okvqa_captions import okvqa_captions


def write(folder, count: int = 20) -> None:
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
    lines = [f'{n}\t[{{"caption": "a thing {n}.", "conf": 0.5}}]' for n in range(count // 2)]
    (folder / "vinvl_captions_val2014.tsv").write_text("\n".join(lines) + "\n")


def test_captions_stand_in_the_place_of_pictures(tmp_path, section) -> None:
    write(tmp_path)
    task = okvqa_captions(section(folder=tmp_path))
    item = task.item("7")
    assert (item.question, item.image, item.image_id) == ("a thing 3. What 7?", None, "3")
    assert item.meta == {"caption": "a thing 3.", "question": "What 7?"}
    assert [len(task.items(split)) for split in SPLITS] == [12, 4, 4]
    homes = [{item.image_id for item in task.items(split)} for split in SPLITS]
    assert len(homes[0] | homes[1] | homes[2]) == sum(map(len, homes))
    assert "not comparable" in task.notes[0]


def test_missing_and_faulty_captions_are_named(tmp_path, section) -> None:
    write(tmp_path)
    path = tmp_path / "vinvl_captions_val2014.tsv"
    path.write_text(
        path.read_text().replace('4\t[{"caption": "a thing 4."', '4\t[{"text": "a thing 4."') + "9\t[broken\n"
    )
    with pytest.raises(DataError) as caught:
        okvqa_captions(section(folder=tmp_path))
    text = str(caught.value)
    assert "line 5: must be IMAGE, a tab" in text
    assert "line 11: is not JSON" in text
    assert "question_id 8: there is no caption of picture 4" in text
    path.unlink()
    with pytest.raises(DataError, match=r"task\.captions = FILE"):
        okvqa_captions(section(folder=tmp_path))


def test_a_caption_file_is_found_by_its_name_without_gz(tmp_path, section) -> None:
    write(tmp_path)
    plain, given = tmp_path / "vinvl_captions_val2014.tsv", tmp_path / "elsewhere" / "captions.tsv"
    given.parent.mkdir()
    (given.parent / "captions.tsv.gz").write_bytes(gzip.compress(plain.read_bytes().replace(b"thing", b"packed")))
    plain.unlink()
    assert okvqa_captions(section(folder=tmp_path, captions=given)).item("7").question == "a packed 3. What 7?"
    with pytest.raises(DataError, match=r"elsewhere/other\.tsv: is not there"):
        okvqa_captions(section(folder=tmp_path, captions=given.with_name("other.tsv")))


def test_the_real_files_are_read_as_the_recipe_asks(shared_data) -> None:
    task = okvqa_captions(replace(load_recipe("okvqa_captions_smollm").task, folder=str(shared_data)))
    assert [len(task.items(split)) for split in SPLITS] == [3545, 500, 1000]
    assert task.item("2971475").answer == "race"
