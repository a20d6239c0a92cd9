"""The shape of the house: imports point down, only the command line prints, modules stay small, starting is quick."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "leverplus"
LAB = PACKAGE.with_name("leverplus_lab")
DOCTOR = PACKAGE.with_name("leverplus_doctor")
MODULES = sorted(PACKAGE.rglob("*.py"))
OTHER_MODULES = sorted([*LAB.rglob("*.py"), *DOCTOR.rglob("*.py")])
PRINTING = (PACKAGE / "cli", LAB / "cli", DOCTOR / "command.py")

ROOMS = (
    "version", "errors", "catalog", "data", "metrics", "models", "encode", "scores", "arms", "learn", "evaluate",
    "bundle", "run", "adapters", "__init__", "web", "cli", "__main__",
)  # fmt: skip
"""Lowest first. A room knows the rooms before its own; `metrics` is the public name of those in `data`."""

LEVEL = {room: level for level, room in enumerate(ROOMS)}
HEAVY = ("torch", "numpy", "scipy", "pyarrow", "rich", "jinja2")


def room_of(path: Path) -> str:
    return room_named(path.relative_to(PACKAGE).parts)


def room_named(parts: tuple[str, ...]) -> str:
    """The room of a module's path: its first part."""
    return parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    """Rooms that a module imports from, wherever the import stands: at the top, in a function, for types only."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names if name.split(".")[0] == "leverplus"]
        found |= {
            room_named(tuple(part[1:]))
            if len(part) > 1 and not part[1].startswith("__")
            else "__init__"
            for part in parts
        }
    return found


def upward_imports(path: Path, tree: ast.AST) -> list[str]:
    own = room_of(path)
    return [
        other
        for other in sorted(imported_rooms(tree))
        if other != own and LEVEL[other] >= LEVEL[own]
    ]


def test_only_a_server_needs_the_package_for_http() -> None:
    needing = re.compile(r"leverplus\.models\.api\.(client|wire|backend)\b")
    asking = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if needing.search(path.read_text(encoding="utf-8"))
    ]
    outside = [
        path
        for path in asking
        if not path.startswith(("models/api/", "run/")) and path != "catalog.py"
    ]
    allowed = {"encode/endpoint.py"}
    assert set(outside) <= allowed, "a run without a server must start without httpx"


def test_every_module_stands_in_a_known_room() -> None:
    strangers = {room_of(path) for path in MODULES} - set(LEVEL)
    assert not strangers, (
        f"give {sorted(strangers)} a row in ROOMS, above everything they import"
    )


def test_imports_point_downward() -> None:
    found = {}
    for path in MODULES:
        if up := upward_imports(path, ast.parse(path.read_text(encoding="utf-8"))):
            found[str(path.relative_to(PACKAGE))] = up
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "from leverplus.learn.loop import run_stage",
        "from leverplus.run import train",
        "import leverplus.cli.main",
        "def late():\n    from leverplus.bundle.selector import Selector",
        "if TYPE_CHECKING:\n    from leverplus.evaluate.evaluate import EvaluationContext",
    ],
)
def test_an_upward_import_is_seen_wherever_it_hides(code: str) -> None:
    assert upward_imports(PACKAGE / "arms" / "pools.py", ast.parse(code))


def test_an_import_from_a_lower_room_is_allowed() -> None:
    code = "from leverplus.data.types import Pool"
    assert not upward_imports(PACKAGE / "arms" / "pools.py", ast.parse(code))


def test_only_the_command_line_prints() -> None:
    found = []
    for path in (*MODULES, *OTHER_MODULES):
        if any(map(path.is_relative_to, PRINTING)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id == "print":
                found.append(f"{path.name}:{node.lineno}")
    assert not found


def test_a_module_says_what_it_is_and_is_no_book() -> None:
    silent, long = [], []
    for path in (*MODULES, *OTHER_MODULES):
        text = path.read_text(encoding="utf-8")
        if not ast.get_docstring(ast.parse(text)):
            silent.append(path.name)
        if len(text.splitlines()) > 700:
            long.append(path.name)
    assert not silent
    assert not long


def heavy_modules_after(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after some code."""
    ask = (
        f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.slow
def test_nothing_heavy_is_imported_to_show_help_or_read_a_recipe() -> None:
    assert (
        heavy_modules_after(
            "import leverplus, leverplus.cli.main, leverplus.run.recipe"
        )
        == []
    )
    check = "from leverplus.cli.main import main\nassert main(['check', 'world']) == 0"
    assert set(heavy_modules_after(check)) <= {"numpy", "scipy"}
    assert "torch" in heavy_modules_after("import leverplus.learn.maths.losses"), (
        "the question must be able to say yes"
    )


@pytest.mark.slow
def test_help_answers_in_under_half_a_second() -> None:
    """By the time that processors spend on it: a busy machine makes nobody wait longer through our fault."""
    taken = []
    for _ in range(3):
        started = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "leverplus.cli.main", "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        ended = os.times()
        taken.append(
            ended.children_user
            + ended.children_system
            - started.children_user
            - started.children_system
        )
        assert "run" in done.stdout
    assert min(taken) < 0.5


def test_the_core_knows_the_other_packages_only_by_the_names_of_the_catalog() -> None:
    imports = re.compile(r"^\s*(?:from|import) leverplus_(?:lab|doctor)", re.MULTILINE)
    names = re.compile(r"leverplus_(?:lab|doctor)\.")
    found = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if imports.search(text) or (path.name != "catalog.py" and names.search(text)):
            found.append(path.name)
    assert not found
