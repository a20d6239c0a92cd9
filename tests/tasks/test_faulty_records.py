"""Whatever a record of a data file holds, a task is loaded whole or the record is named: no other error comes out."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from miniatures import write_picture

from leverplus.errors import DataError
from leverplus.tasks.captions import coco_captions
from leverplus.tasks.coco_small import coco_small
from leverplus.tasks.jsonl import jsonl
from leverplus.tasks.labels import labels
from leverplus.tasks.okvqa_captions import okvqa_captions
from leverplus.tasks.vqa import okvqa

STRANGE = (None, 7, -1, 1.5, True, "", "text", [], [3], ["a", None], {}, {"a": "b"}, [[]], [{}])
COUNT = 10


def vqa_values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for year, start in (("train2014", 0), ("val2014", 100)):
        numbers = range(start, start + COUNT)
        for number in numbers:
            write_picture(folder / year / f"COCO_{year}_{number:012d}.jpg", number)
        questions = [{"question_id": n, "image_id": n, "question": f"What {n}?"} for n in numbers]
        answers = [{"question_id": n, "image_id": n, "answers": [{"answer": "x"}] * 10} for n in numbers]
        values[f"OpenEnded_mscoco_{year}_questions.json"] = {"questions": questions}
        values[f"mscoco_{year}_annotations.json"] = {"annotations": answers}
    return values


def karpathy_values(folder: Path) -> dict[str, Any]:
    rows = []
    for number in range(COUNT):
        write_picture(folder / "val2014" / f"{number}.jpg", number)
        row = {"cocoid": number, "filepath": "val2014", "filename": f"{number}.jpg", "sentences": [{"raw": "a thing"}]}
        rows.append({**row, "split": ("train", "val", "test")[number % 3]})
    return {"dataset_coco.json": {"images": rows}}


def caption_values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for half, start in (("train", 0), ("val", 100)):
        numbers = range(start, start + COUNT)
        for number in numbers:
            write_picture(folder / f"{half}2014" / f"{number}.jpg", number)
        images = [{"id": n, "file_name": f"{n}.jpg"} for n in numbers]
        captions = [{"id": n, "image_id": n, "caption": "a thing"} for n in numbers]
        values[f"captions_{half}2014.json"] = {"images": images, "annotations": captions}
    return values


def small_values(folder: Path) -> dict[str, Any]:
    rows = []
    for number in range(COUNT):
        write_picture(folder / "images" / f"{number:012d}.jpg", number)
        row = {"source": "vqav2", "image_id": number, "question_id": number, "question": "What?"}
        rows.append({**row, "soft_labels": {"a": 1, "b": 0.667}} if number == 0 else {**row, "answers": ["x"] * 10})
    return {"questions.json": {"": rows}}


def answer_values(folder: Path) -> dict[str, Any]:
    (folder / "vinvl_captions_val2014.tsv").write_text(
        "".join(f'{n}\t[{{"caption": "thing {n}"}}]\n' for n in range(COUNT))
    )
    rows = [
        {"question_id": n, "question": "What?", "answer": ["race"] * 10, "image": f"COCO_val2014_{n:012d}.jpg"}
        for n in range(COUNT)
    ]
    return {"val_ten_answers.json": {"": rows}}


def line_values(folder: Path) -> dict[str, Any]:
    write_picture(folder / "0.jpg", 0)
    rows = [{"id": n, "question": f"What {n}?", "answers": ["x"], "meta": {"a": "b"}} for n in range(COUNT)]
    rows[0] |= {"image": "0.jpg", "image_id": "0"}
    return {"own.jsonl": {"": rows}}


def label_values(_folder: Path) -> dict[str, Any]:
    return {"own.jsonl": {"": [{"id": n, "text": f"text {n}", "label": ("yes", "no")[n % 2]} for n in range(COUNT)]}}


def write(folder: Path, name: str, value: Any) -> None:
    """A value under "" is the whole file; `.jsonl` has a record a line."""
    rows = value.get("", value) if isinstance(value, dict) else value
    lines = "\n".join(json.dumps(row) for row in rows) if name.endswith(".jsonl") else json.dumps(rows)
    (folder / name).write_text(lines)


def faults(values: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Every file with its first record changed in one place: a field gone or strange, or the record itself strange."""
    for name, value in values.items():
        for key, rows in value.items():
            for field in rows[0]:
                without = copy.deepcopy(value)
                del without[key][0][field]
                yield name, without, f"{name}: {key}[0] without {field}"
                for odd in STRANGE:
                    changed = copy.deepcopy(value)
                    changed[key][0][field] = odd
                    yield name, changed, f"{name}: {key}[0][{field}] = {odd!r}"
            for odd in STRANGE:
                yield name, {**value, key: [odd, *rows[1:]]}, f"{name}: {key}[0] = {odd!r}"


@pytest.mark.parametrize(
    ("load", "make", "settings"),
    [
        (okvqa, vqa_values, {}),
        (coco_captions, karpathy_values, {}),
        (coco_captions, caption_values, {}),
        (coco_small, small_values, {}),
        (okvqa_captions, answer_values, {}),
        (jsonl, line_values, {"file": "own.jsonl"}),
        (labels, label_values, {"file": "own.jsonl"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_strange_record_is_read_or_named(
    tmp_path: Path, section: Callable[..., Any], load: Any, make: Any, settings: dict[str, str]
) -> None:
    values = make(tmp_path)
    for name, value in values.items():
        write(tmp_path, name, value)
    own = section(folder=tmp_path, **{key: tmp_path / name for key, name in settings.items()})
    whole = load(own)
    refused, broken = 0, []
    for name, value, what in faults(values):
        write(tmp_path, name, value)
        try:
            load(own)
        except DataError:
            refused += 1
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__} {error}")
        write(tmp_path, name, values[name])
    assert broken == []
    assert refused > len(STRANGE)
    assert load(own).version == whole.version


def test_a_strange_caption_and_a_damaged_archive_are_named_with_their_place(tmp_path: Path, section: Any) -> None:
    for name, value in answer_values(tmp_path).items():
        write(tmp_path, name, value)
    captions = tmp_path / "vinvl_captions_val2014.tsv"
    whole = captions.read_text()
    for odd in ("[1]", "[]", "{}", "7", '[{"caption": 3}]'):
        captions.write_text(whole.replace('[{"caption": "thing 3"}]', odd))
        with pytest.raises(DataError, match="line 4: must be IMAGE, a tab"):
            okvqa_captions(section(folder=tmp_path))
    captions.unlink()
    packed = bytearray(gzip.compress(whole.encode()))
    packed[12] ^= 0xFF
    (tmp_path / "vinvl_captions_val2014.tsv.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"val2014\.tsv\.gz: cannot be read"):
        okvqa_captions(section(folder=tmp_path))
