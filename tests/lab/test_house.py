"""The measures of the code: counted rightly on a small package, and kept for this one; generated pages are fresh."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking import FOLDER, load_benchmark

house = load_benchmark("house")
pages = load_benchmark("write_pages")

SMALL = {
    "__init__.py": '"""A package."""\n',
    "one.py": "from pack.two import Twice\n\n# a reason\nclass One:\n    pass  # noqa: X\n",
    "two.py": "class Twice:\n    def late(self):\n        from pack import one\n        return [x for x in one.y]\n",
    "three.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.four import F\n\n\nclass Twice:\n    pass\n"
    ),
    "four.py": "from . import three\n\nF = three\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, text in SMALL.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_measures_of_a_small_package_by_hand(package: Path) -> None:
    found = house.measure(package)
    assert found["modules"] == 5
    assert found["classes"] == 3
    assert found["class names used twice"] == 1
    assert found["function lines max"] == 3
    assert found["import cycles"] == 1, "one and two import each other, one inside a function; types do not count"
    lines = sum(len(text.splitlines()) for text in SMALL.values())
    assert found["comments per 100 lines"] == round(100 / lines, 2), "a note to a linter is no comment"
    assert found["comprehensions per 100 lines"] == round(100 / lines, 2)


def test_tokens_are_those_that_say_something() -> None:
    assert house.count_tokens("x = 1\n\n# why\ny = f(x)\n") == (3 + 6, 2, 1)


def test_rooms_import_down_only_and_lab_and_legacy_are_counted_apart() -> None:
    assert house.upward_imports() == 0
    counted = house.core_lines()
    assert counted["core"] > counted["lab"] > 0
    assert counted["legacy"] > 0


@pytest.mark.parametrize("name", sorted(pages.PAGES))
def test_a_generated_page_is_what_one_command_would_write(name: str) -> None:
    assert pages.PAGES[name]() == (FOLDER.parent / "docs" / name).read_text(encoding="utf-8"), "type `make pages`"
