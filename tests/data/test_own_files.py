"""A file of one's own is a task: splits, metrics, labels and pictures; every fault is named, nothing is half loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import write_picture

from leverplus.data.tasks.base import Task
from leverplus.data.tasks.jsonl import jsonl, labels
from leverplus.data.tasks.splits import SPLITS, share_of
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.errors import DataError
from leverplus.run.recipe import build_recipe
from leverplus.run.run import Run, load_run, open_run

Row = dict[str, Any]


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int = 20) -> list[Row]:
    return [
        {"id": n, "question": f"What is {n}?", "answers": [str(n)]}
        for n in range(count)
    ]


def texts(*own: object) -> list[Row]:
    return [{"text": f"text {n}", "label": own[n % len(own)]} for n in range(40)]


def homes(task: Task) -> dict[str, str]:
    return {item.id: split for split in SPLITS for item in task.items(split)}


def test_splits_are_made_where_no_line_has_one(tmp_path, section) -> None:
    task = jsonl(section(file=write(tmp_path / "a.jsonl", rows(500))))
    assert all(80 <= len(task.items(split)) <= 120 for split in ("dev", "test"))
    assert (task.answers.metric, task.item(ItemId("7")).answer) == ("number", "7")
    for row in (nameless := rows()):
        del row["id"]
    named = jsonl(section(file=write(tmp_path / "a.jsonl", nameless)))
    assert named.item(ItemId("7")).answer == "6"


def test_three_lines_fill_three_splits_wherever_their_hashes_lie(
    tmp_path, section
) -> None:
    path = write(tmp_path / "a.jsonl", rows(3))
    for seed in range(40):
        task = jsonl(section(file=path, split_seed=seed))
        assert [len(task.items(split)) for split in SPLITS] == [1, 1, 1]


@pytest.mark.slow
def test_lines_that_are_added_move_no_other_item(tmp_path, section) -> None:
    before = homes(jsonl(section(file=write(tmp_path / "a.jsonl", rows(85)))))
    for count in range(86, 130):
        lines = rows(count)
        path = write(tmp_path / "a.jsonl", lines[::-1] if count % 2 else lines)
        after = homes(jsonl(section(file=path)))
        assert {name: after[name] for name in before} == before
        before = after


def test_whatever_is_added_a_training_item_never_becomes_one_to_judge_by(
    tmp_path, section
) -> None:
    """Sizes at which a split reaches its number of items, and files of a few lines where a split would be empty."""
    before: dict[str, str] = {}
    for count in (3, 4, 5, 6, 8, 13, 60, 70, 71, 120, 141, 142, 143, 290, 600):
        path = write(tmp_path / "a.jsonl", rows(count))
        after = homes(jsonl(section(file=path, test_items=10, dev_items=5)))
        trained = {name for name, split in before.items() if split == "train"}
        assert all(after[name] == "train" for name in trained)
        assert set(after.values()) == set(SPLITS)
        before = after
    assert 5 <= sum(split == "test" for split in before.values()) <= 20


def test_a_share_is_halved_only_when_a_data_set_has_doubled() -> None:
    sizes = range(100, 60_000, 100)
    shares = [share_of(1000, size) for size in sizes]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], len(set(shares))) == (0.2, 5)
    for share, size in zip(shares, sizes, strict=True):
        assert share == 0.2 or 700 <= share * size <= 1415


def test_pictures_group_their_questions_wherever_the_data_lie(
    tmp_path, section, monkeypatch
) -> None:
    found = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        lines = []
        for n in range(30):
            write_picture(folder / "p" / f"{n // 2}.png", n // 2)
            lines.append({**rows(30)[n], "image": f"p/{n // 2}.png"})
        found.append(jsonl(section(file=write(folder / "a.jsonl", lines))))
    monkeypatch.chdir(tmp_path / "here")
    here = jsonl(section(file="a.jsonl"))
    assert homes(found[0]) == homes(found[1]) == homes(here)
    assert found[0].version == found[1].version
    groups = [{item.image_id for item in here.items(split)} for split in SPLITS]
    assert len(groups[0] | groups[1] | groups[2]) == sum(map(len, groups)) == 15
    picture = here.image(here.items("dev")[0])
    assert picture is not None
    assert picture.size == (24, 24)
    cut = Path("p/3.png")
    cut.write_bytes(cut.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"1 problem.*\n.*line 7: .*3\.png cannot be"):
        jsonl(section(file="a.jsonl"))


def test_every_faulty_line_is_named(tmp_path, section) -> None:
    good = {"question": "Q", "answers": ["x"]}
    lines = [
        *rows(10),
        [1],
        {**good, "question": ""},
        {**good, "answers": []},
        {**good, "answers": [" "]},
        {"text": "Q"},
        {**good, "id": 3},
        {**good, "image": "nowhere.jpg", "split": "later"},
    ]
    path = write(tmp_path / "a.jsonl", lines)
    path.write_text(path.read_text() + "{broken\n")
    with pytest.raises(DataError) as caught:
        jsonl(section(file=path))
    text = str(caught.value)
    assert "8 problems" in text
    for line, what in (
        (11, "must be an object"),
        (12, "the question is empty"),
        (13, "the answer is empty"),
        (14, "the answer is empty"),
        (
            15,
            "the question is empty; it is read from question, and the record has text",
        ),
        (16, "the id 3 was used before, at a.jsonl, line 4"),
        (17, 'split is "later"; allowed: train, validation'),
        (18, "is not JSON"),
    ):
        assert f"line {line}: {what}" in text


BOMB = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (BOMB, "is not JSON (lists or objects are nested more than 64 deep"),
        ('{"meta": ' + BOMB + "}", "nested more than 64 deep"),
        ('{"id": ' + "7" * 5000 + "}", "a number cannot be read"),
        ('{"question": "\\ud800", "answer": "x"}', "half of a character"),
        ('{"id": "a", "question": "\0"}', "is not JSON (Invalid control character"),
        ({"image": "n" * 5000 + ".png"}, "File name too long"),
        ({"image": "no.png"}, "is not there"),
        ({"image": "."}, "is not there"),
        ({"image": "a.jsonl"}, "cannot be read as a picture"),
        ({"image": "http://x.org/x.png"}, "is an address, and nothing is fetched"),
    ],
)
def test_a_strange_line_is_named(tmp_path, section, line: Any, what: str) -> None:
    lines = [{**row, "split": SPLITS[n % 3]} for n, row in enumerate(rows())]
    path = write(tmp_path / "a.jsonl", lines)
    if not isinstance(line, str):
        line = json.dumps({"question": "Q", "answer": "x", "split": "dev", **line})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError) as caught:
        jsonl(section(file=path))
    assert "a.jsonl, line 21" in str(caught.value)
    assert what in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_pictures_stay_below_their_folder(tmp_path, section) -> None:
    write_picture(tmp_path / "private" / "passport.png", 1)
    data = tmp_path / "data"
    write_picture(data / "pictures" / "0.png", 2)
    (data / "link.png").symlink_to(tmp_path / "private" / "passport.png")
    (data / "folder").symlink_to(tmp_path / "private")
    outside = str(tmp_path / "private" / "passport.png")
    for image in (
        "../private/passport.png",
        outside,
        "link.png",
        "folder/passport.png",
    ):
        lines = [
            {**row, "image": "pictures/0.png", "image_id": row["id"]} for row in rows()
        ]
        lines[3]["image"] = image
        path = write(data / "a.jsonl", lines)
        with pytest.raises(DataError, match=r"line 4: the picture .* lies outside "):
            jsonl(section(file=path))
    lines = [{**row, "image": outside, "image_id": row["id"]} for row in lines]
    allowed = jsonl(section(file=write(data / "a.jsonl", lines), images=tmp_path))
    assert allowed.image(allowed.item(ItemId("3"))) is not None


def test_vqa_accuracy_needs_enough_annotators(tmp_path, section) -> None:
    lines = [{**row, "answers": ["a", "a", "b", "c"]} for row in rows()]
    task = jsonl(section(file=write(tmp_path / "a.jsonl", lines)))
    assert task.notes[0].endswith("because all items have 4 answers or more")
    assert task.answers.metric == "vqa_accuracy"
    lines[3]["answers"] = ["d", "e"]
    path = write(tmp_path / "a.jsonl", lines)
    assert jsonl(section(file=path)).answers.metric == "exact_match"
    with pytest.raises(DataError, match="line 4: VQA accuracy needs 4 answers"):
        jsonl(section(file=path, metric="vqa_accuracy"))


def test_items_without_an_answer_are_left_out_when_told_to(tmp_path, section) -> None:
    lines = rows(30)
    lines[1]["answers"] = ["c", "c", " "]
    lines[2]["answers"] = []
    path = write(tmp_path / "a.jsonl", lines)
    with pytest.raises(DataError, match=r"line 3: the answer is empty; task\.skip_emp"):
        jsonl(section(file=path))
    task = jsonl(section(file=path, skip_empty=True))
    assert len(homes(task)) == 29
    assert task.item(ItemId("1")).answers == ("c", "c")
    assert "1 items without an answer were left out: 2" in task.notes


def test_a_text_in_two_given_splits_is_refused_but_left_out_among_labels(
    tmp_path, section
) -> None:
    lines = [{**row, "split": SPLITS[n % 3]} for n, row in enumerate(rows())]
    path = write(
        tmp_path / "a.jsonl", [*lines, *({**lines[0], "id": "x", "split": ""},)]
    )
    with pytest.raises(DataError, match="line 21: has no split, as 0 further lines"):
        jsonl(section(file=path))
    lines[1]["question"] = str(lines[0]["question"]).upper()
    with pytest.raises(DataError, match="is in train and in dev"):
        jsonl(section(file=write(tmp_path / "a.jsonl", lines)))
    lines = [{**row, "split": SPLITS[n % 3]} for n, row in enumerate(texts("a", "b"))]
    lines[1]["text"] = "TEXT  0"
    task = labels(section(file=write(tmp_path / "b.jsonl", lines)))
    assert task.notes == ("1 texts were left out because a later split has them too",)
    assert (homes(task).get("1"), homes(task)["2"]) == (None, "dev")


def test_texts_with_labels_are_a_task(tmp_path, section) -> None:
    lines = texts("world news", 1, True, 2.5)
    task = labels(section(file=write(tmp_path / "a.jsonl", lines)))
    assert task.labels == ("world news", "1", "true", "2.5")
    assert len(homes(task)) == 40
    lines = texts("Answer, other", "x")
    lines[1]["text"] = ""
    with pytest.raises(DataError) as caught:
        labels(section(file=write(tmp_path / "a.jsonl", lines), cut="vqa"))
    assert "line 2: the question is empty" in str(caught.value)
    lines[1]["text"] = "t"
    with pytest.raises(DataError, match="line 1: its reference 'Answer, other' is cut"):
        labels(section(file=write(tmp_path / "a.jsonl", lines), cut="vqa"))
    with pytest.raises(DataError, match="has 2 labels, and a text has one"):
        labels(
            section(
                file=write(
                    tmp_path / "a.jsonl",
                    [
                        {**rows()[0], "answers": "xy"},
                        {**rows()[1], "answers": ["x", "y"]},
                    ],
                )
            )
        )
    lines = texts("yes", None, "no", "")
    path = write(tmp_path / "a.jsonl", lines)
    with pytest.raises(DataError, match=r"line 2: the answer is empty; task\.skip"):
        labels(section(file=path))
    task = labels(section(file=path, skip_empty=True))
    assert (task.labels, len(homes(task))) == (("yes", "no"), 20)


def own_recipe(section: Row, **more: Row) -> Any:
    values = {
        "task": {"name": "jsonl", **section},
        "embed": {"name": "sentence"},
        "score": {"backend": "hf"},
        "model": {"name": "any"},
        "select": {"query_fields": ["text"], "demo_fields": ["text", "answer"]},
        "pool": {"kind": "nearest_text", "size": 8},
    }
    return build_recipe("own", values | more, "a test")


def test_a_run_finds_its_relative_files_from_another_folder(
    tmp_path, monkeypatch
) -> None:
    home = tmp_path / "home"
    for folder in ("vectors", "groups"):
        (home / folder).mkdir(parents=True)
    (home / "vectors" / "config.json").write_text("{}")  # as folders of encoders have
    write(home / "a.jsonl", rows(60))
    recipe = own_recipe(
        {"file": "a.jsonl"},
        embed={"name": "sentence", "model": "vectors"},
        score={"backend": "hf", "groups": "groups"},
    )
    (source := tmp_path / "own.toml").write_text("")
    monkeypatch.chdir(home)
    store = tmp_path / "scores.db"
    made = open_run(recipe, source, tmp_path / "run", seed=0, store_path=store)
    expected = homes(made.task)
    monkeypatch.chdir(tmp_path)
    run = load_run(tmp_path / "run", store)
    assert homes(run.task) == expected
    opened: list[str] = []
    monkeypatch.setattr(
        "leverplus.run.run.open_embedder",
        lambda section, *_: opened.append(section.model),
    )
    monkeypatch.setattr(
        "leverplus_lab.legacy.groups.load_groups",
        lambda path: opened.append(str(path)) or [],
    )
    _ = run.embedder, run.imported_groups
    assert opened == [str(home / "vectors"), str(home / "groups")]
    assert run.recipe.hash == recipe.hash


class Blind:
    """An embedder that reads texts alone."""

    def fingerprint(self) -> dict[str, str]:
        return {"embedder": "blind"}

    def embed(self, items: Sequence[Item], _task: Task) -> Vectors:
        unit = np.ones((len(items), 1), dtype=np.float32)
        return Vectors(None, unit, unit)


@pytest.mark.parametrize("shown", ["x.png", None])
def test_a_run_says_that_pictures_are_not_seen(tmp_path, shown: str | None) -> None:
    write_picture(tmp_path / "x.png", 1)
    lines = [{**row, "image": shown, "image_id": row["id"]} for row in rows(60)]
    path = write(tmp_path / "a.jsonl", lines)
    said: list[str] = []
    run = Run(
        own_recipe({"file": str(path)}),
        tmp_path / "run",
        0,
        tmp_path / "scores.db",
        say=said.append,
    )
    vars(run)["embedder"] = Blind()
    assert len(run.demonstration_vectors) == len(run.demonstrations)
    unseen = "pictures are not seen by the selector"
    assert [line.startswith(unseen) for line in said] == [True] * bool(shown)
