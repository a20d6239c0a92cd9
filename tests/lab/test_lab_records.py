"""The results file: what was measured once stays, what is damaged or foreign is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from leverplus.errors import DataError
from leverplus.lab.records import FILE, Records


def test_a_record_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    records = Records.read(tmp_path)
    records.add({"best/8000/world0/seed0": {"n": 1000}})
    records.add({"best/8000/world0/seed0": {"n": 12}, "best/8000/world0/seed0/pool16": {"n": 12}})
    records.write()
    found = Records.read(tmp_path).found
    assert {key: record["n"] for key, record in found.items()} == {
        "best/8000/world0/seed0": 1000,
        "best/8000/world0/seed0/pool16": 12,
    }


@pytest.mark.parametrize("content", [b"not gzip", b""])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        Records.read(tmp_path)
