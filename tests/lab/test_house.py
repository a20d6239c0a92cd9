"""The measures of the code are counted rightly on a small package; generated pages are fresh."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking import FOLDER, load_benchmark

house = load_benchmark("house")
pages = load_benchmark("write_pages")

SMALL = {
    "__init__.py": '"""A package."""\n',
    "one.py": "from pack.two import Twice\n\n# a reason\nclass One:\n    pass  # noqa: X\n",
    "two/__init__.py": (
        '"""A room."""\n\nclass Twice:\n    """Two."""\n\n    def late(self):\n'
        "        from pack import one\n        return [x if x else 1 for x in one.y]\n"
    ),
}


def test_measures_of_a_small_package_by_hand(tmp_path: Path) -> None:
    for name, text in SMALL.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = house.measure(tmp_path / "pack")
    assert found["lines"] == 14
    assert found["tokens"] == 6 + 3 + 1 + 3 + 6 + 4 + 14
    assert found["tokens a code line"] == round(37 / 7, 2)
    assert (found["rooms"], found["edges between rooms"]) == (3, 2)
    assert found["function lines p50, p90, max"] == [3, 3, 3]
    assert (
        found["comprehensions per 100 lines"]
        == found["ternaries per 100 lines"]
        == round(100 / 14, 2)
    )
    assert found["imports inside functions"] == 1


@pytest.mark.slow
def test_a_generated_page_is_what_one_command_would_write() -> None:
    docs = FOLDER.parent / "docs"
    stale = [
        name
        for name, write in pages.PAGES.items()
        if write() != (docs / name).read_text(encoding="utf-8")
    ]
    assert stale == [], "type `make pages`"
