"""docs/architecture.md: the files and functions it names exist, and its rooms are those of the layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_layers import ROOMS

from leverplus import catalog

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)` `(\w+)`", PAGE.replace("\n   ", " "))))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {
                target.id for target in node.targets if isinstance(target, ast.Name)
            }
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_the_page_names_is_where_it_says(file: str, name: str) -> None:
    path = ROOT / file
    assert name in names_in(path if path.is_file() else ROOT / "leverplus" / file)


def test_the_walk_is_whole_and_every_file_on_the_page_exists() -> None:
    assert len(NAMED) > 30
    files = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert [
        file
        for file in files
        if not ((ROOT / "leverplus" / file).is_file() or (ROOT / file).is_file())
    ] == []


def test_the_rooms_on_the_page_are_the_rooms_of_the_layers_from_the_top_down() -> None:
    picture = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert picture is not None
    named = [
        line.split()[0] for line in picture[1].splitlines() if line.split()[0] in ROOMS
    ]
    assert named == [room for room in reversed(ROOMS) if room != "__init__"]


def test_every_kind_of_part_is_in_the_table() -> None:
    assert [kind for kind, _ in catalog.KINDS if f"| {kind} |" not in PAGE] == []
