"""Folders of the `datasets` library as records: what `save_to_disk` wrote, or Parquet files, read with pyarrow alone.

Columns are found by their usual names; class labels become their words; pictures that stand inside are written as
files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.errors import DataError
from leverplus.fitting.look import SPLITS
from leverplus.rundir import read_json

QUESTIONS = ("question", "text", "sentence", "content", "title")
ANSWERS = ("answers", "answer", "label", "labels", "coarse_label", "multiple_choice_answer")
PICTURES = ("image", "img", "picture")


@dataclass(frozen=True)
class FoundTables:
    """The records of a data set, the folder that its pictures were written to (None: it has none), what was seen."""

    rows: list[dict[str, Any]]
    pictures: str | None
    said: tuple[str, ...] = ()


def read_tables(place: Path, pictures: Path) -> FoundTables:
    """The records of a data set's folder, or of one Parquet file; those that nobody labelled are left out."""
    rows: list[dict[str, Any]] = []
    seen_picture, number, unlabelled = False, 0, 0
    for split, table, names in _tables(place):
        columns = table.column_names
        question, answer = _column(columns, QUESTIONS), _column(columns, ANSWERS)
        picture = next((name for name in PICTURES if name in columns), None)
        if question is None or answer is None:
            raise DataError(
                f"{place} has the columns {', '.join(columns)}; needed are one of {', '.join(QUESTIONS)} and one of "
                f"{', '.join(ANSWERS)}"
            )
        wanted = [name for name in (question, answer, picture, "id") if name is not None and name in columns]
        for row in table.select(list(dict.fromkeys(wanted))).to_pylist():
            made, number = _record(row, question, answer, names), number + 1
            if made is None:
                unlabelled += 1
                continue
            if split:
                made["split"] = split
            made["id"] = f"{split or 'item'}-{row.get('id', number - 1)}"
            if picture is not None and row.get(picture) is not None:
                made["image"], seen_picture = _keep_picture(row[picture], place, pictures), True
            rows.append(made)
    if not rows and unlabelled:
        raise DataError(f"{place}: none of {unlabelled:,} records has a label or an answer; a demonstration needs one")
    if len({row.get("split") for row in rows}) == 1:
        for row in rows:
            row.pop("split", None)  # one split alone is divided like a file without splits
    said = (f"{unlabelled:,} records without a label or an answer are left out",) if unlabelled else ()
    return FoundTables(rows, str(pictures) if seen_picture else None, said)


def _record(row: Mapping[str, Any], question: str, answer: str, names: Sequence[str] | None) -> dict[str, Any] | None:
    """A row as a record; None where nobody labelled it (null, or a class label of -1)."""
    value = row[answer]
    if isinstance(value, dict):  # answers as {"text": [...], ...}
        value = value.get("text") or value.get("answer")
    if value is None or value == []:
        return None
    if names is not None and isinstance(value, int):
        return {"text": row[question], "label": names[value]} if 0 <= value < len(names) else None
    if isinstance(value, str) and answer in ("label", "labels", "coarse_label"):
        return {"text": row[question], "label": value}
    if isinstance(value, list):
        value = [own.get("answer", "") if isinstance(own, dict) else str(own) for own in value]
    return {"question": row[question], "answers": value if isinstance(value, list) else [str(value)]}


def _column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _tables(folder: Path) -> Iterator[tuple[str, Any, list[str] | None]]:
    """Each table of a folder: its split ("" where nothing says), the table, the words of its class labels."""
    import pyarrow as arrow
    from pyarrow import parquet

    if folder.is_file():
        try:
            table = parquet.read_table(folder)
        except (arrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{folder} cannot be read as a data set ({error})") from error
        yield "", table, _label_names(table)
        return
    if (folder / "dataset_dict.json").is_file():
        for name in read_json(folder / "dataset_dict.json").get("splits", []):
            for _, table, names in _tables(folder / str(name)):
                yield SPLITS.get(str(name).lower(), ""), table, names
        return
    try:
        found = False
        for path in sorted(folder.glob("*.arrow")):
            found = True
            with arrow.memory_map(str(path)) as source:
                table = arrow.ipc.open_stream(source).read_all()
            yield "", table, _label_names(table)
        for path in sorted(folder.rglob("*.parquet")):
            found = True
            table = parquet.read_table(path)
            split = SPLITS.get(path.stem.split("-")[0].lower(), SPLITS.get(path.parent.name.lower(), ""))
            yield split, table, _label_names(table)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{folder} cannot be read as a data set ({error})") from error
    if not found:
        raise DataError(f"{folder} holds no data set: no dataset_dict.json, *.arrow or *.parquet")


def _label_names(table: Any) -> list[str] | None:
    """The words of a class label, from what `datasets` writes into the schema."""
    about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = about.get("info", {}).get("features", {})
    for name in ANSWERS:
        if isinstance(features.get(name), dict) and features[name].get("_type") == "ClassLabel":
            return [str(word) for word in features[name]["names"]]
    return None


def _keep_picture(value: Any, folder: Path, pictures: Path) -> str:
    """The name of a picture's file below the folder of pictures."""
    content = value.get("bytes") if isinstance(value, dict) else None
    if content is None:
        path = Path(value["path"] if isinstance(value, dict) else str(value))
        path = path if path.is_absolute() else (folder if folder.is_dir() else folder.parent) / path
        if not path.is_file():
            raise DataError(f"{folder}: there is no picture {path}")
        content = path.read_bytes()
    name = hashlib.sha256(content).hexdigest()[:32] + ".img"
    pictures.mkdir(parents=True, exist_ok=True)
    if not (pictures / name).is_file():
        (pictures / name).write_bytes(content)
    return name
