"""The results file: what was measured once stays, what is damaged or foreign is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leverplus.errors import DataError
from leverplus.lab.records import FILE, Records


def record(n: int, conditions: str = "same", **accuracy: float) -> dict[str, Any]:
    return {"n": n, "conditions": conditions, "accuracy": {arm: {"1": [value]} for arm, value in accuracy.items()}}


def test_a_record_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    records = Records.read(tmp_path)
    records.add({"best/8000/world0/seed0": record(1000)})
    records.add({"best/8000/world0/seed0": record(12), "best/8000/world0/seed0/pool16": record(12)})
    records.write()
    found = Records.read(tmp_path).found
    assert {key: record["n"] for key, record in found.items()} == {
        "best/8000/world0/seed0": 1000,
        "best/8000/world0/seed0/pool16": 12,
    }


def test_a_record_gets_the_arms_it_lacked_and_keeps_the_others(tmp_path: Path) -> None:
    records = Records.read(tmp_path)
    records.add({"arms/0/world0/seed0": record(1000, mmr=0.5)})
    records.add({"arms/0/world0/seed0": record(1000, mmr=0.6, label_rank=0.7)})
    assert records.found["arms/0/world0/seed0"]["accuracy"] == {"mmr": {"1": [0.5]}, "label_rank": {"1": [0.7]}}
    records.add({"arms/0/world0/seed0": record(1000, "other items", oracle=0.9)})
    assert "oracle" not in records.found["arms/0/world0/seed0"]["accuracy"]


@pytest.mark.parametrize("content", [b"not gzip", b""])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        Records.read(tmp_path)
