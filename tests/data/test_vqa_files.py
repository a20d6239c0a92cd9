"""OK-VQA and VQAv2 are read from their official files, whole or not at all; no strange value is another error."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from miniatures import section_of, write_vqa

from leverplus.data.tasks.base import FileTask
from leverplus.data.tasks.jsonl import jsonl, labels
from leverplus.data.tasks.splits import SPLITS
from leverplus.data.tasks.vqa import okvqa, vqav2
from leverplus.data.types import ItemId
from leverplus.errors import DataError


def edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def refusal(**values: object) -> str:
    with pytest.raises(DataError) as caught:
        okvqa(section_of(**values))
    return str(caught.value)


def sizes(task: FileTask) -> list[int]:
    return [len(task.items(split)) for split in SPLITS]


def test_a_miniature_in_the_official_format_becomes_items_with_pictures(
    vqa_folder: Path,
) -> None:
    task = okvqa(section_of(folder=vqa_folder))
    assert sizes(task) == [20, 4, 12]
    item = task.item(ItemId("1031"))
    assert (item.question, item.answer) == ("What is 1031?", "thing 103")
    assert (item.image_id, len(item.answers)) == ("103", 10)
    assert task.answers.score("thing 103", item) == 1.0
    picture = task.image(item)
    assert picture is not None
    assert (picture.size, picture.mode) == ((24, 24), "RGB")
    asked = [*task.items("train"), *task.items("dev")]
    rows = {int(item.meta["idx"]): int(item.id) for item in asked}
    assert [rows[row] for row in range(24)] == sorted(rows.values())
    bare = okvqa(section_of(folder=vqa_folder, images="none"))
    assert bare.image(bare.items("train")[0]) is None


def test_no_picture_is_shared_between_splits_and_the_seed_decides_which_are_dev(
    vqa_folder: Path,
) -> None:
    homes = []
    for seed in (0, 0, 1):
        task = okvqa(section_of(folder=vqa_folder, split_seed=seed, dev_items=4))
        images = [{item.image_id for item in task.items(split)} for split in SPLITS]
        assert len(images[0] | images[1] | images[2]) == sum(map(len, images))
        homes.append(images[1])
    assert homes[0] == homes[1] != homes[2]
    limited = [okvqa(section_of(folder=vqa_folder, limit=4)) for _ in range(2)]
    assert sizes(limited[0]) == [4, 4, 4]
    groups = Counter(item.image_id for item in limited[0].items("train"))
    assert set(groups.values()) == {2}
    assert limited[0].items("train") == limited[1].items("train")


def test_both_prefixes_are_found_and_each_task_prefers_its_own(tmp_path: Path) -> None:
    write_vqa(tmp_path, prefix="v2_")
    assert sizes(okvqa(section_of(folder=tmp_path)))[2] == 12
    write_vqa(tmp_path, prefix="", pictures=8)
    assert sizes(okvqa(section_of(folder=tmp_path)))[2] == 8
    assert sizes(vqav2(section_of(folder=tmp_path)))[2] == 12


def test_what_is_missing_or_broken_is_named_together(vqa_folder: Path) -> None:
    folder = vqa_folder / "train2014"
    (folder / "COCO_train2014_000000000101.jpg").unlink()
    (folder / "COCO_train2014_000000000102.jpg").write_text("<html>not found</html>")
    cut = folder / "COCO_train2014_000000000103.jpg"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    text = refusal(folder=vqa_folder)
    assert "3 problems, nothing was loaded" in text
    for number in (101, 102, 103):
        assert f"{number:012d}.jpg" in text
    for path in folder.glob("*.jpg"):
        path.write_bytes(b"")
    write_vqa(vqa_folder / "more", pictures=30)
    for path in (vqa_folder / "more" / "train2014").glob("*.jpg"):
        path.write_bytes(b"")
    text = refusal(folder=vqa_folder / "more")
    assert text.startswith("task okvqa: 30 problems")
    assert "\n  ... and 10 more\n" in text
    (vqa_folder / "mscoco_train2014_annotations.json").unlink()
    text = refusal(folder=vqa_folder)
    assert "mscoco_train2014_annotations.json: is not in task.folder" in text
    assert "found: " in text
    assert "okvqa.allenai.org" in text


def test_faulty_records_are_named_with_their_ids(vqa_folder: Path) -> None:
    questions = vqa_folder / "OpenEnded_mscoco_train2014_questions.json"
    annotations = vqa_folder / "mscoco_train2014_annotations.json"
    whole = questions.read_text()
    edit(questions, lambda value: value["questions"].append(value["questions"][0]))
    edit(annotations, lambda value: value["annotations"].pop(5))
    edit(
        annotations,
        lambda value: value["annotations"][2].update(answers=[{"answer": " "}]),
    )
    text = refusal(folder=vqa_folder)
    assert "the id 1001 was used before, at train2014, question_id 1001" in text
    assert "question_id 1020: has no annotation of its picture 102" in text
    assert "question_id 1011: the answer is empty" in text
    assert "1 items" in okvqa_without(vqa_folder, questions, annotations, whole)
    questions.write_bytes(b'{"questions": [\n\n' + "caf\u00e9".encode("latin-1"))
    assert "line 3: is not UTF-8 (byte 0xe9)" in refusal(folder=vqa_folder)


def okvqa_without(folder: Path, questions: Path, annotations: Path, whole: str) -> str:
    """What is said of a data set with one empty answer where those are left out."""
    questions.write_text(whole)
    edit(questions, lambda value: value["questions"].pop(5))
    return okvqa(section_of(folder=folder, skip_empty=True)).notes[0]


def test_a_picture_in_two_splits_is_refused(vqa_folder: Path) -> None:
    for name, key in (
        ("OpenEnded_mscoco_val2014_questions", "questions"),
        ("mscoco_val2014_annotations", "annotations"),
    ):
        edit(
            vqa_folder / f"{name}.json",
            lambda value, key=key: [row.update(image_id=100) for row in value[key][:2]],
        )
    text = refusal(folder=vqa_folder, images="none")
    assert "its picture 100 is in" in text
    assert "and in test" in text


def test_the_version_follows_content_not_place(tmp_path: Path) -> None:
    write_vqa(tmp_path / "a")
    write_vqa(tmp_path / "b")
    first = okvqa(section_of(folder=tmp_path / "a"))
    assert okvqa(section_of(folder=tmp_path / "b")).version == first.version
    edit(
        tmp_path / "b" / "mscoco_val2014_annotations.json",
        lambda value: value["annotations"][0]["answers"][0].update(answer="changed"),
    )
    assert okvqa(section_of(folder=tmp_path / "b")).version != first.version
    write_vqa(tmp_path / "a", first=101)
    assert okvqa(section_of(folder=tmp_path / "a")).version != first.version
    assert len(first.image_digest(first.items("train")[0])) == 16


STRANGE = (
    None, 7, -1, 1.5, True, "", "text", [], [3], ["a", None], {}, {"a": "b"}, [[]], [{}],
)  # fmt: skip


def own_lines(kind: str) -> list[dict[str, Any]]:
    if kind == "labels":
        return [{"id": n, "text": f"text {n}", "label": "ab"[n % 2]} for n in range(10)]
    row = {"answers": ["x"], "meta": {"a": "b"}, "image": None, "image_id": "0"}
    return [
        {"id": n, "question": f"What {n}?", **row, "image_id": str(n)}
        for n in range(10)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["okvqa", "jsonl", "labels"])
def test_a_strange_record_is_read_or_named(tmp_path: Path, kind: str) -> None:
    """Every file with its first record changed in one place: a value gone or strange, or the record itself."""
    load = {"okvqa": okvqa, "jsonl": jsonl, "labels": labels}[kind]
    section = section_of(folder=tmp_path, file=tmp_path / "own.json", images="none")
    files: dict[str, tuple[str, list[Any]]] = {"own.json": ("", own_lines(kind))}
    if kind == "okvqa":
        write_vqa(tmp_path)
        files = {}
        for path in tmp_path.glob("*.json"):
            key = path.stem.rpartition("_")[2]
            files[path.name] = (key, json.loads(path.read_text())[key])

    def write(name: str, key: str, rows: list[Any]) -> None:
        (tmp_path / name).write_text(json.dumps({key: rows} if key else rows))

    for name, (key, rows) in files.items():
        write(name, key, rows)
    whole, refused, broken = load(section).version, 0, []
    for name, (key, rows) in files.items():
        changes: list[Any] = list(STRANGE)
        for field in rows[0]:
            changes += [{**rows[0], field: odd} for odd in STRANGE]
            changes.append({k: v for k, v in rows[0].items() if k != field})
        for changed in changes:
            write(name, key, [copy.deepcopy(changed), *rows[1:]])
            try:
                load(section)
            except DataError:
                refused += 1
            except Exception as error:
                broken.append(f"{name}: {changed!r}: {type(error).__name__} {error}")
        write(name, key, rows)
    assert broken == []
    assert refused > len(STRANGE)
    assert load(section).version == whole
