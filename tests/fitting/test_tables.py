"""Folders of the `datasets` library are read as records: splits, class labels, pictures inside."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from leverplus.errors import DataError
from leverplus.fitting.look import find_data
from leverplus.fitting.tables import read_tables

NAMES = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}


def table(columns: dict[str, Any], about: dict[str, Any] | None = None) -> pa.Table:
    made = pa.table(columns)
    return made if about is None else made.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})


def saved(folder: Path, content: pa.Table) -> None:
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, content.schema) as out,
    ):
        out.write_table(content)


def test_a_saved_dictionary_of_splits_with_class_labels(tmp_path: Path) -> None:
    for split, count in (("train", 30), ("validation", 10), ("test", 10)):
        saved(
            tmp_path / "d" / split,
            table({"text": [f"t{n}" for n in range(count)], "label": [0, 1] * (count // 2)}, NAMES),
        )
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    found = read_tables(tmp_path / "d", tmp_path / "p")
    rows, pictures = found.rows, found.pictures
    assert pictures is None
    assert rows[0] == {"text": "t0", "label": "neg", "split": "train", "id": "train-0"}
    assert [row["split"] for row in rows].count("dev") == 10
    found = find_data(tmp_path / "d", None, tmp_path / "made.jsonl")
    assert (found.name, found.values["file"]) == ("labels", str(tmp_path / "made.jsonl"))


def test_parquet_with_pictures_inside(tmp_path: Path) -> None:
    files = []
    for colour in ("red", "blue"):
        out = io.BytesIO()
        Image.new("RGB", (4, 4), colour).save(out, "PNG")
        files.append(out.getvalue())
    columns = {
        "question": [f"q{n}" for n in range(50)],
        "answers": [[f"a{n}", "b"] for n in range(50)],
        "image": [{"bytes": content, "path": None} for content in files] * 25,
    }
    (tmp_path / "d").mkdir()
    parquet.write_table(table(columns), tmp_path / "d" / "train-00000-of-00001.parquet")
    found = read_tables(tmp_path / "d", tmp_path / "p")
    rows, pictures = found.rows, found.pictures
    assert pictures == str(tmp_path / "p")
    assert rows[3]["answers"] == ["a3", "b"]
    assert "split" not in rows[3], "one split alone is divided by us"
    assert (tmp_path / "p" / rows[3]["image"]).read_bytes() == files[1]
    assert find_data(tmp_path / "d", None, tmp_path / "made.jsonl").values["images"] == str(tmp_path / "made")


def test_what_is_no_data_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set"):
        read_tables(tmp_path, tmp_path / "p")
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as a data set"):
        read_tables(tmp_path, tmp_path / "p")
    (tmp_path / "a.parquet").unlink()
    parquet.write_table(table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has the columns x; needed are one of"):
        read_tables(tmp_path, tmp_path / "p")


def test_rows_that_nobody_labelled_are_left_out_and_counted(tmp_path: Path) -> None:
    """Public test splits have class labels of -1; the last name is not theirs."""
    (tmp_path / "d").mkdir()
    texts = [f"t{n}" for n in range(50)]
    labelled = table({"text": texts, "label": [0, 1] * 25}, NAMES)
    parquet.write_table(labelled, tmp_path / "d" / "train.parquet")
    parquet.write_table(table({"text": texts, "label": [-1] * 50}, NAMES), tmp_path / "d" / "test.parquet")
    found = find_data(tmp_path / "d", None, tmp_path / "made.jsonl")
    assert found.said == ("50 texts with labels", "50 records without a label or an answer are left out")
    rows = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    assert {row["label"] for row in rows} == {"neg", "pos"}
    parquet.write_table(table({"text": texts, "label": [None, "a"] * 25}), tmp_path / "d" / "train.parquet")
    assert [row["label"] for row in read_tables(tmp_path / "d", tmp_path / "p").rows] == ["a"] * 25
    (tmp_path / "d" / "train.parquet").unlink()
    with pytest.raises(DataError, match="none of 50 records has a label or an answer"):
        find_data(tmp_path / "d", None, tmp_path / "made.jsonl")


def test_one_parquet_file_is_a_data_set_too(tmp_path: Path) -> None:
    content = table({"text": [f"t{n}" for n in range(60)], "label": ["a", "b"] * 30})
    parquet.write_table(content, tmp_path / "mine.parquet")
    found = find_data(tmp_path / "mine.parquet", None, tmp_path / "made.jsonl")
    assert (found.name, found.said) == ("labels", ("60 texts with labels",))
    (tmp_path / "mine.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"mine\.parquet cannot be read as a data set"):
        find_data(tmp_path / "mine.parquet", None, tmp_path / "made.jsonl")
