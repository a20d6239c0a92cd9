"""docs/doctor.md lists every check of the catalog with its cause, evidence and cure."""

from __future__ import annotations

import re
from pathlib import Path

from leverplus import catalog
from leverplus.doctor.examine import handbook, text_of

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_the_handbook_lists_exactly_the_checks_of_the_catalog():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [code for code, _ in rows] == list(catalog.CHECKS)
    assert [severity for _, severity in rows] == [text_of(code).severity for code in catalog.CHECKS]


def test_the_handbook_says_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8").endswith(handbook())
