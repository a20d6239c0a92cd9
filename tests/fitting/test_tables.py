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
from leverplus.fitting.tables import rows_of_folder

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
    rows, pictures = rows_of_folder(tmp_path / "d", tmp_path / "p")
    assert pictures is None
    assert rows[0] == {"text": "t0", "label": "neg", "split": "train", "id": "train-0"}
    assert [row["split"] for row in rows].count("dev") == 10
    found = find_data(tmp_path / "d", None, tmp_path / "made.jsonl")
    assert (found.name, found.values["file"]) == ("labels", str(tmp_path / "made.jsonl"))


def test_parquet_with_pictures_inside(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(out, "PNG")
    columns = {
        "question": [f"q{n}" for n in range(50)],
        "answers": [[f"a{n}", "b"] for n in range(50)],
        "image": [{"bytes": out.getvalue(), "path": None}] * 50,
    }
    (tmp_path / "d").mkdir()
    parquet.write_table(table(columns), tmp_path / "d" / "train-00000-of-00001.parquet")
    rows, pictures = rows_of_folder(tmp_path / "d", tmp_path / "p")
    assert pictures == str(tmp_path / "p")
    assert rows[3]["answers"] == ["a3", "b"]
    assert "split" not in rows[3], "one split alone is divided by us"
    assert (tmp_path / "p" / rows[3]["image"]).read_bytes() == out.getvalue()
    assert find_data(tmp_path / "d", None, tmp_path / "made.jsonl").values["images"] == str(tmp_path / "made")


def test_what_is_no_data_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set"):
        rows_of_folder(tmp_path, tmp_path / "p")
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as a data set"):
        rows_of_folder(tmp_path, tmp_path / "p")
    (tmp_path / "a.parquet").unlink()
    parquet.write_table(table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has the columns x; needed are one of"):
        rows_of_folder(tmp_path, tmp_path / "p")
