"""An instruction of the user's own: tuned on the records a fit trains on, and read from whatever holds it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import leverplus
from leverplus.cli.fit import read_instruction
from leverplus.errors import MissingFile, WrongUsage
from leverplus.fitting.fit import fit

sys.path += [str(Path(__file__).parents[1] / "backends")]
from speaking_server import CAPITALS, speaking


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(count: int) -> list[dict[str, Any]]:
    lands = list(CAPITALS.items())
    asked = [lands[number % len(lands)] for number in range(count)]
    return [{"question": f"capital of {land}, {n}?", "answer": city} for n, (land, city) in enumerate(asked)]


@pytest.mark.parametrize("count", [60, 400])
def test_training_records_are_those_of_the_fit_and_none_of_dev_and_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "mine.jsonl", records(count))
    rows = leverplus.training_records(data)
    said: list[str] = []
    with speaking() as served:
        fit(data, model=served.url, dry_run=True, say=said.append)
    dealt = next(line for line in said if "splits: " in line)
    assert f"splits: {len(rows)} train, " in dealt
    items = (tmp_path / "bundles" / "mine.items.jsonl").read_text().splitlines()
    held = {
        row.get("text", row.get("question")) for row in map(json.loads, items) if row.get("split") in ("dev", "test")
    }
    assert not held & {row["question"] for row in rows}
    assert bool(held) == (count == 60), "fewer than 200 are dealt in the file, others by the task"
    assert len(rows) < 0.75 * count
    assert all(CAPITALS[row["question"].split()[2].strip(",")] == row["answer"] for row in rows)


def test_training_records_carry_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(60):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append({"question": f"how red is it, {number}?", "answer": f"about {number}", "image": f"{number}.png"})
    found = leverplus.training_records(write(tmp_path / "mine.jsonl", rows))
    assert found
    for row in found:
        red = int(row["answer"].split()[1])
        assert Image.open(row["image"]).getpixel((0, 0)) == (red, 0, 0)


def test_records_that_are_not_there_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFile, match=r"there is no file nowhere\.jsonl"):
        leverplus.training_records("nowhere.jsonl")


SIGNATURE = {"instructions": "Name the city.\n", "fields": [{"prefix": "Question:", "description": "x"}]}
PREDICTOR = {"traces": [], "train": [], "demos": [], "signature": SIGNATURE, "lm": None}


@pytest.mark.parametrize(
    "state",
    [
        {**PREDICTOR, "metadata": {"dependency_versions": {}}},
        {"predict": PREDICTOR, "metadata": {}},
        {"predictor": PREDICTOR, "chosen": {"source": "bundles/mine", "shots": 2, "fingerprint": "x"}},
    ],
    ids=["a predictor", "a module", "a module with chosen demonstrations"],
)
def test_a_program_that_dspy_saved_gives_its_instruction(tmp_path: Path, state: dict[str, Any]) -> None:
    (tmp_path / "found.json").write_text(json.dumps(state))
    assert read_instruction(str(tmp_path / "found.json")) == "Name the city."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"a": PREDICTOR, "b": PREDICTOR}), "holds 2 instructions of DSPy"),
        ("{}", "is no program that DSPy saved"),
        ("Name the city.", "is no program that DSPy saved"),
        ("[" * 200, "is no program that DSPy saved"),
        (json.dumps({"signature": {"instructions": " "}}), "is empty"),
    ],
)
def test_a_json_file_without_one_instruction_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "found.json").write_text(text)
    with pytest.raises(WrongUsage, match=said) as told:
        read_instruction(str(tmp_path / "found.json"))
    assert "\n" not in str(told.value)
