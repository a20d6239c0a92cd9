"""Text classification: lines `label text`, JSONL with labels, and the real TREC and SST-2 files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from leverplus.errors import DataError
from leverplus.tasks.base import SPLITS
from leverplus.tasks.labels import labels, sst2, trec


def test_numbers_and_official_names_of_trec_labels_mean_the_same(tmp_path, section) -> None:
    tasks = []
    for folder, words in (
        ("numbers", "0 1 2 3 4 5"),
        ("names", "DESC:manner ENTY:cremat ABBR:exp HUM:ind LOC:city NUM:date"),
    ):
        (tmp_path / folder).mkdir()
        lines = [f"{label} Question {n} of this kind ?" for n in range(5) for label in words.split()]
        files = ("TREC.train.all", "TREC.test.all") if folder == "numbers" else ("train_5500.label", "TREC_10.label")
        for name, mark in zip(files, ("", "!"), strict=True):
            text = "\n".join(f"{line} {place}{mark}" for place, line in enumerate(lines))
            (tmp_path / folder / name).write_text(text + " caf\u00e9\n", encoding="latin-1")
        tasks.append(trec(section(folder=tmp_path / folder)))
    assert tasks[0].version == tasks[1].version
    assert tasks[0].labels == ("description", "entity", "abbreviation", "person", "location", "number")
    item = tasks[0].items("test")[-1]
    assert item.question.endswith("29! caf\u00e9")
    assert item.answer == "number"


def test_a_line_with_an_unknown_label_is_named(tmp_path, section) -> None:
    for split in SPLITS:
        (tmp_path / f"SST2.{split}").write_text("0 dull\n1 good\n2 so so\n")
    with pytest.raises(DataError, match=r"SST2\.train, line 3: starts with '2'"):
        sst2(section(folder=tmp_path))


def test_a_wrong_encoding_is_named_with_its_line(tmp_path, section) -> None:
    for split in SPLITS:
        (tmp_path / f"SST2.{split}").write_bytes(b"0 dull\n1 caf\xe9\n")
    with pytest.raises(DataError, match=r"SST2\.dev, line 2: is not utf-8"):
        sst2(section(folder=tmp_path))


def test_a_text_of_test_is_left_out_of_train(tmp_path, section) -> None:
    lines = {"train": [f"{n % 2} text {n}" for n in range(10)], "dev": ["0 d0", "1 d1"], "test": ["1 Text  3", "0 t1"]}
    for split, own in lines.items():
        (tmp_path / f"SST2.{split}").write_text("\n".join(own))
    task = sst2(section(folder=tmp_path))
    assert "text 3" not in {item.question for item in task.items("train")}
    assert [len(task.items(split)) for split in SPLITS] == [9, 2, 2]
    assert task.notes == ("1 texts were left out because a later split has them too",)


def test_any_jsonl_with_labels_is_a_task(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"text {n}", "label": "sport" if n % 3 else "world news"} for n in range(30)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    task = labels(section(file=path))
    assert task.labels == ("world news", "sport")
    assert [len(task.items(split)) for split in SPLITS] == [17, 7, 6]
    path.write_text(json.dumps({"text": "a", "label": "Answer, other"}) + "\n" + json.dumps({"text": "", "label": "x"}))
    with pytest.raises(DataError) as caught:
        labels(section(file=path))
    assert "line 1: the label 'Answer, other' would be cut" in str(caught.value)
    assert "line 2: the question is empty" in str(caught.value)


def lines(path, *own) -> Path:
    path.write_text("".join(json.dumps({"text": f"text {n}", "label": own[n % len(own)]}) + "\n" for n in range(40)))
    return path


def test_labels_that_are_numbers_or_truth_values_are_words(tmp_path, section) -> None:
    assert labels(section(file=lines(tmp_path / "a.jsonl", 0, 1, 2.5))).labels == ("0", "1", "2.5")
    assert labels(section(file=lines(tmp_path / "b.jsonl", True, False))).labels == ("true", "false")


def test_texts_without_a_label_are_left_out_when_told_to(tmp_path, section) -> None:
    path = lines(tmp_path / "a.jsonl", "yes", None, "no", "")
    with pytest.raises(DataError, match=r"line 2: .*its label is null; task\.skip_empty = true leaves such items out"):
        labels(section(file=path))
    task = labels(section(file=path, skip_empty=True))
    assert task.labels == ("yes", "no")
    assert sum(len(task.items(split)) for split in SPLITS) == 20


def test_labels_that_count_as_one_are_said_and_refused_where_nothing_is_left(tmp_path, section) -> None:
    task = labels(section(file=lines(tmp_path / "a.jsonl", "Good", "good", "bad")))
    assert task.notes == ("the labels 'Good', 'good' count as one and the same answer",)
    with pytest.raises(DataError, match=r"labels that count as one: 'Good', 'good'; there is nothing to tell apart"):
        labels(section(file=lines(tmp_path / "b.jsonl", "Good", "good")))


def test_records_of_other_keys_are_refused_with_their_keys_and_few_lines(tmp_path, section) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"sentence": f"text {n}", "class": "x"}) + "\n" for n in range(60)))
    with pytest.raises(DataError) as caught:
        labels(section(file=path))
    said = str(caught.value).splitlines()
    assert said[0].startswith("task labels: 60 problems")
    assert said[1].endswith("line 1: needs a text and a label, both texts; its keys are sentence, class")
    assert said[4] == "    ... the same at 57 more places"


@pytest.mark.parametrize("form", ["excel.csv", "commas.csv", "tabs.tsv", "list.json", "list on one line.json"])
def test_tables_and_lists_are_refused_with_a_command_that_converts_them(tmp_path, section, form: str) -> None:
    rows = [{"text": f"text, {n}; é", "label": "yn"[n % 2]} for n in range(40)]
    path, out = tmp_path / form, io.StringIO(newline="")
    if form.startswith("list"):
        out.write(json.dumps(rows, indent=None if "one line" in form else 1))
    else:
        mark = {"excel.csv": ";", "commas.csv": ",", "tabs.tsv": "\t"}[form]
        table = csv.DictWriter(out, ["text", "label"], delimiter=mark)
        table.writeheader()
        table.writerows(rows)
    path.write_bytes((b"\xef\xbb\xbf" if form == "excel.csv" else b"") + out.getvalue().encode())
    with pytest.raises(DataError) as caught:
        labels(section(file=path))
    (said,) = [line for line in str(caught.value).splitlines() if "convert it" in line]
    code = said[said.index('python -c "') + len('python -c "') : said.rindex('"')]
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    (tmp_path / "new.jsonl").write_bytes(printed)
    task = labels(section(file=tmp_path / "new.jsonl"))
    assert {item.question for split in SPLITS for item in task.items(split)} == {row["text"] for row in rows}


def test_the_real_trec_and_sst2_files_are_read(shared_data, section) -> None:
    questions = trec(section(folder=shared_data / "text"))
    assert [len(questions.items(split)) for split in SPLITS] == [4941, 500, 500]
    assert Counter(item.answer for item in questions.items("test")).most_common(1) == [("description", 138)]
    texts = [{item.image_id for item in questions.items(split)} for split in SPLITS]
    assert not texts[0] & (texts[1] | texts[2])
    assert not texts[1] & texts[2]
    reviews = sst2(section(folder=shared_data / "text"))
    assert [len(reviews.items(split)) for split in SPLITS] == [6917, 872, 1821]
