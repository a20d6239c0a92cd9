"""A JSONL file of questions is a task; every faulty line is named, and nothing is half loaded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from miniatures import write_picture

from leverplus.embedders.base import Vectors
from leverplus.errors import DataError
from leverplus.experiment.opening import load_run, open_run
from leverplus.experiment.run import Run
from leverplus.metrics import vqa_accuracy
from leverplus.recipe.recipe import build_recipe
from leverplus.tasks.base import SPLITS, Task
from leverplus.tasks.jsonl import LONGEST_LINE, jsonl
from leverplus.tasks.splits import share_of
from leverplus.types import Item, ItemId

TEXT_FIELDS = {"query_fields": ["text"], "demo_fields": ["text", "answer"]}


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int = 20) -> list[dict[str, object]]:
    return [{"id": n, "question": f"What is {n}?", "answers": [str(n)]} for n in range(count)]


def test_splits_are_made_when_no_line_has_one(tmp_path, section) -> None:
    task = jsonl(section(file=write(tmp_path / "a.jsonl", rows()), rules="0.1"))
    assert {split: len(task.items(split)) for split in SPLITS} == {"train": 12, "dev": 4, "test": 4}
    task = jsonl(section(file=write(tmp_path / "a.jsonl", rows(500))))
    assert all(80 <= len(task.items(split)) <= 120 for split in ("dev", "test"))
    assert (task.metric, task.item(ItemId("7")).answer) == ("exact_match", "7")


def test_a_record_without_an_id_is_named_by_its_line(tmp_path, section) -> None:
    nameless = [{"question": f"What is {n}?", "answers": [str(n)]} for n in range(20)]
    task = jsonl(section(file=write(tmp_path / "a.jsonl", nameless)))
    assert task.item(ItemId("7")).answer == "6"


@pytest.mark.parametrize("seed", range(40))
def test_three_lines_fill_three_splits_wherever_their_hashes_lie(seed, tmp_path, section) -> None:
    task = jsonl(section(file=write(tmp_path / "a.jsonl", rows(3)), split_seed=seed))
    assert [len(task.items(split)) for split in SPLITS] == [1, 1, 1]


def homes(task: Task) -> dict[str, str]:
    return {item.id: split for split in SPLITS for item in task.items(split)}


def test_lines_that_are_added_move_no_other_item(tmp_path, section) -> None:
    before = homes(jsonl(section(file=write(tmp_path / "a.jsonl", rows(85)))))
    for count in range(86, 130):
        lines = rows(count)
        after = homes(jsonl(section(file=write(tmp_path / "a.jsonl", lines[::-1] if count % 2 else lines))))
        assert {name: after[name] for name in before} == before
        before = after


def test_whatever_is_added_a_training_item_never_becomes_one_to_judge_by(tmp_path, section) -> None:
    """Sizes at which a split reaches its number of items, and files of a few lines where a split would be empty."""
    before: dict[str, str] = {}
    for count in (3, 4, 5, 6, 8, 13, 60, 70, 71, 120, 141, 142, 143, 290, 600):
        after = homes(jsonl(section(file=write(tmp_path / "a.jsonl", rows(count)), test_items=10, dev_items=5)))
        trained = {name for name, split in before.items() if split == "train"}
        assert all(after[name] == "train" for name in trained)
        assert set(after.values()) == set(SPLITS)
        before = after
    assert 5 <= sum(split == "test" for split in before.values()) <= 20


def test_splits_do_not_depend_on_where_the_data_lie(tmp_path, section, monkeypatch) -> None:
    found = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        lines = [{**row, "image": f"{row['id']}.png"} for row in rows(30)]
        for number in range(30):
            write_picture(folder / f"{number}.png", number, size=4)
        found.append(homes(jsonl(section(file=write(folder / "a.jsonl", lines)))))
    monkeypatch.chdir(tmp_path / "here")
    assert found[0] == found[1] == homes(jsonl(section(file="a.jsonl")))


def test_a_share_is_halved_only_when_a_data_set_has_doubled() -> None:
    shares = [share_of(1000, size) for size in range(100, 60_000, 100)]
    assert shares[0] == 0.2
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 5
    assert all(
        700 <= share * size <= 1415 for share, size in zip(shares, range(100, 60_000, 100), strict=True) if share < 0.2
    )


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


def test_records_of_the_other_kind_of_file_are_told_who_reads_them(tmp_path, section) -> None:
    lines = [{"id": number, "text": f"text {number}", "label": "a"} for number in range(12)]
    with pytest.raises(DataError, match=r"12 problems.*\n.*line 1: this is a text with a label.*set task\.name=labels"):
        jsonl(section(file=write(tmp_path / "a.jsonl", lines)))


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


def test_auto_takes_what_most_items_allow_and_says_why(tmp_path, section) -> None:
    lines = [{**row, "answers": ["a", "a", "b", "c"]} for row in rows(139)]
    for line in lines[:4]:
        line["answers"] = ["d", "e"]
    path = write(tmp_path / "a.jsonl", lines)
    task = jsonl(section(file=path))
    assert task.metric == "vqa_accuracy"
    said = (
        "takes vqa_accuracy, because 135 of 139 items have 4 answers or more; of the other 4 any answer counts as right"
    )
    assert any(said in note for note in task.notes)
    few = task.item(ItemId("0"))
    assert [vqa_accuracy(word, list(few.answers)) for word in ("d", "e", "f")] == [1.0, 1.0, 0.0]
    assert jsonl(section(file=path, rules="0.1")).metric == "exact_match"
    short = jsonl(section(file=write(tmp_path / "b.jsonl", rows())))
    assert short.notes == ("task.metric = auto takes exact_match, because 0 of 20 items have 4 answers or more",)


def test_items_without_an_answer_are_left_out_when_told_to(tmp_path, section) -> None:
    lines = rows(30)
    lines[0]["answers"] = ["", "", "", "c"]
    lines[1]["answers"] = ["c", "c", " "]
    lines[2]["answers"] = []
    path = write(tmp_path / "a.jsonl", lines)
    with pytest.raises(DataError, match=r"line 1: an answer is empty; task\.skip_empty = true"):
        jsonl(section(file=path))
    task = jsonl(section(file=path, skip_empty=True))
    assert sum(len(task.items(split)) for split in SPLITS) == 28
    assert task.item(ItemId("1")).answers == ("c", "c")
    assert any("2 items without an answer were left out: 0, 2" in note for note in task.notes)


def test_answers_that_are_numbers_truth_values_or_null(tmp_path, section) -> None:
    lines = [{"id": n, "question": f"What is {n}?", "answer": (n, True, 1.5)[n % 3]} for n in range(30)]
    task = jsonl(section(file=write(tmp_path / "a.jsonl", lines)))
    assert [task.item(ItemId(str(n))).answers for n in range(3)] == [("0",), ("true",), ("1.5",)]
    lines[4]["answer"] = None
    path = write(tmp_path / "b.jsonl", lines)
    with pytest.raises(DataError, match=r"line 5: the answer is empty; task\.skip_empty = true leaves such items out"):
        jsonl(section(file=path))
    assert sum(len(jsonl(section(file=path, skip_empty=True)).items(split)) for split in SPLITS) == 29
    lines[4] = {"id": 4, "question": "What?", "answers": "yes"}
    with pytest.raises(DataError, match='answers must be a list of texts; they are "yes"'):
        jsonl(section(file=write(tmp_path / "c.jsonl", lines)))


def test_marks_and_line_ends_of_other_systems_are_read(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl"
    body = "\r\n".join(json.dumps(row) for row in rows()) + "\r\n\r\n  \r\n"
    path.write_bytes(b"\xef\xbb\xbf" + body.encode())
    assert sum(len(jsonl(section(file=path)).items(split)) for split in SPLITS) == 20


BOMB = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("null", "must be an object in braces; it is null"),
        ("7", "must be an object in braces; it is 7"),
        (BOMB, "is not JSON (lists or objects are nested more than 64 deep"),
        ('{"id": 1, "meta": ' + BOMB + "}", "nested more than 64 deep"),
        ('{"id": ' + "7" * 5000 + "}", "a number cannot be read"),
        ('{"id": "a", "question": "\\ud800", "answer": "x"}', "half of a character"),
        ('{"id": "a", "question": "\0"}', "is not JSON (Invalid control character"),
        ('{"id": "a", "question": "' + "x" * LONGEST_LINE + '"}', "characters; a line may have 1,048,576"),
        ('{"id": true, "question": "Q", "answer": "x"}', "id must be a text or a whole number"),
        ('{"id": "a", "question": "Q", "answer": "x", "split": ["train"]}', "split must be one of"),
        ('{"id": "a", "question": "Q", "answer": "x", "image": "a\\u0000b"}', "image must be a path or null"),
        ('{"id": "a", "question": "Q", "answer": "x", "image": "' + "n" * 5000 + '.png"}', "File name too long"),
        ('{"id": "a", "question": "Q", "answer": "x", "image": "no.png"}', "is not there"),
        ('{"id": "a", "question": "Q", "answer": "x", "image": "."}', "is not there"),
        ('{"id": "a", "question": "Q", "answer": "x", "image": "a.jsonl"}', "cannot be read as a picture"),
    ],
)
def test_a_strange_line_is_named(tmp_path, section, line: str, what: str) -> None:
    path = write(tmp_path / "a.jsonl", [{**row, "split": SPLITS[n % 3]} for n, row in enumerate(rows())])
    path.write_text(
        path.read_text() + line.replace('"answer": "x"', '"answer": "x", "split": "dev"', "split" not in line) + "\n"
    )
    with pytest.raises(DataError) as caught:
        jsonl(section(file=path))
    assert "a.jsonl, line 21" in str(caught.value)
    assert what in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_packed_file_that_grows_without_measure_is_refused(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 27)))
    with pytest.raises(DataError, match="bytes unpack to more than 67,108,864"):
        jsonl(section(file=path))
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows()).encode()))
    assert len(jsonl(section(file=path)).items("train")) > 5


def test_pictures_stay_below_their_folder_unless_the_user_allows_more(tmp_path, section) -> None:
    write_picture(tmp_path / "private" / "passport.png", 1)
    data = tmp_path / "data"
    write_picture(data / "pictures" / "0.png", 2)
    (data / "link.png").symlink_to(tmp_path / "private" / "passport.png")
    (data / "folder").symlink_to(tmp_path / "private")
    inside = str(data / "pictures" / "0.png")
    for image in (
        "../private/passport.png",
        str(tmp_path / "private" / "passport.png"),
        "link.png",
        "folder/passport.png",
    ):
        lines = [{**row, "image": inside} for row in rows()]
        lines[3]["image"] = image
        lines = [{**row, "image_id": row["id"]} for row in lines]
        path = write(data / "a.jsonl", lines)
        with pytest.raises(DataError, match=r"line 4: the picture .* lies outside .*task\.outside = true"):
            jsonl(section(file=path))
        assert jsonl(section(file=path, outside=True)).image(jsonl(section(file=path, outside=True)).item(ItemId("3")))


def test_an_address_of_a_picture_is_not_fetched_and_said_so(tmp_path, section) -> None:
    path = write(tmp_path / "a.jsonl", [*rows(3), {**rows(4)[3], "image": "https://example.org/x.png"}])
    with pytest.raises(DataError, match=r"line 4: the picture .* is an address, and nothing is fetched; download it"):
        jsonl(section(file=path))


def test_a_run_folder_of_before_there_were_rules_keeps_its_splits(tmp_path, section) -> None:
    path = write(tmp_path / "a.jsonl", rows(60))
    values = {"task": {"name": "jsonl", "file": str(path)}, "embed": {"name": "sentence"}, "score": {"backend": "hf"}}
    values |= {"model": {"name": "any"}, "select": TEXT_FIELDS, "pool": {"kind": "nearest_text", "size": 8}}
    recipe = build_recipe("own", values, "a test")
    (tmp_path / "resolved.toml").write_text('[task]\nname = "jsonl"\nsplit_seed = 0\n')
    before = Run(recipe, tmp_path, 0, tmp_path / "scores.db")
    assert homes(before.task) == homes(jsonl(section(file=path, rules="0.1")))
    fresh = Run(recipe, tmp_path / "fresh", 0, tmp_path / "scores.db")
    assert homes(fresh.task) == homes(jsonl(section(file=path))) != homes(before.task)


def test_a_run_finds_its_relative_files_from_another_folder(tmp_path, monkeypatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write(home / "a.jsonl", rows(60))
    values = {"task": {"name": "jsonl", "file": "a.jsonl"}, "embed": {"name": "sentence"}, "score": {"backend": "hf"}}
    values |= {"model": {"name": "any"}, "select": TEXT_FIELDS, "pool": {"kind": "nearest_text", "size": 8}}
    recipe, source = build_recipe("own", values, "a test"), tmp_path / "own.toml"
    source.write_text("")
    monkeypatch.chdir(home)
    made = open_run(recipe, source, tmp_path / "run", seed=0, store_path=tmp_path / "scores.db")
    expected = homes(made.task)
    monkeypatch.chdir(tmp_path)
    assert homes(load_run(tmp_path / "run", tmp_path / "scores.db").task) == expected


def test_a_run_finds_relative_vectors_and_groups_from_another_folder(tmp_path, monkeypatch) -> None:
    home = tmp_path / "home"
    for folder in ("vectors", "groups"):
        (home / folder).mkdir(parents=True)
    (home / "vectors" / "config.json").write_text("{}")  # what a folder with an encoder has
    write(home / "a.jsonl", rows(60))
    values = {"task": {"name": "jsonl", "file": "a.jsonl"}, "embed": {"name": "sentence", "model": "vectors"}}
    values |= {"score": {"backend": "hf", "groups": "groups"}, "model": {"name": "weights"}, "select": TEXT_FIELDS}
    values |= {"pool": {"kind": "nearest_text", "size": 8}}
    recipe, source = build_recipe("own", values, "a test"), tmp_path / "own.toml"
    source.write_text("")
    monkeypatch.chdir(home)
    open_run(recipe, source, tmp_path / "run", seed=0, store_path=tmp_path / "scores.db")
    monkeypatch.chdir(tmp_path)
    run = load_run(tmp_path / "run", tmp_path / "scores.db")
    opened: list[str] = []
    monkeypatch.setattr("leverplus.embedders.cached.open_embedder", lambda section, *_: opened.append(section.model))
    monkeypatch.setattr("leverplus.scoring.group_file.load_groups", lambda path: opened.append(str(path)) or [])
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


@pytest.mark.parametrize("with_pictures", [True, False])
def test_a_run_says_that_pictures_are_not_seen(tmp_path, with_pictures: bool) -> None:
    write_picture(tmp_path / "x.png", 1)
    lines = [{**row, "image": "x.png" if with_pictures else None, "image_id": row["id"]} for row in rows(60)]
    values = {"task": {"name": "jsonl", "file": str(write(tmp_path / "a.jsonl", lines))}}
    values |= {
        "embed": {"name": "sentence"},
        "score": {"backend": "hf"},
        "model": {"name": "any"},
        "select": TEXT_FIELDS,
    }
    values |= {"pool": {"kind": "nearest_text", "size": 8}}
    said: list[str] = []
    run = Run(build_recipe("own", values, "a test"), tmp_path / "run", 0, tmp_path / "scores.db", say=said.append)
    vars(run.parts)["embedder"] = Blind()
    assert len(run.demonstration_vectors) == len(run.demonstrations)
    assert [line.startswith("pictures are not seen by the selector") for line in said] == [True] * with_pictures


def test_a_metric_that_does_not_suit_the_answers_is_a_note(tmp_path, section) -> None:
    phrases = [{"id": n, "question": f"Why {n}?", "answer": f"because it is number {n}"} for n in range(20)]
    task = jsonl(section(file=write(tmp_path / "phrases.jsonl", phrases), metric="exact_match"))
    assert "20 of 20 items have answers of 4 words or more; token_f1" in " ".join(task.notes)
    assert not jsonl(section(file=write(tmp_path / "phrases.jsonl", phrases), metric="token_f1")).notes
    labels = [{"id": n, "question": f"What {n}?", "answers": ["yes" if n % 2 else "no"] * 10} for n in range(20)]
    task = jsonl(section(file=write(tmp_path / "labels.jsonl", labels), metric="vqa_accuracy"))
    assert "one answer out of 2: these are labels" in " ".join(task.notes)
    words = [{"id": n, "question": f"What {n}?", "answers": [f"word{n}"] * 10} for n in range(20)]
    assert not jsonl(section(file=write(tmp_path / "words.jsonl", words), metric="vqa_accuracy")).notes
