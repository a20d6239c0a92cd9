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
MODULES = sorted(PACKAGE.rglob("*.py"))

ROOMS = (
    ("errors", "parsing", "renamed", "version"),
    ("types", "catalog", "rundir"),
    ("maths", "metrics", "stats"),
    ("recipe",),
    ("world", "store"),
    ("tasks", "policies", "effects"),
    ("embedders", "backends"),
    ("pools", "engine"),
    ("ranking",),
    ("scoring",),
    ("training",),
    ("evaluation",),
    ("doctor",),
    ("report",),
    ("experiment",),
    ("selector", "legacy"),
    ("lab", "adapters"),
    ("fitting",),
    ("__init__",),
    ("view",),
    ("serve",),
    ("cli",),
    ("__main__",),
)
"""Lowest first. A room knows the rooms of the rows below its own, and not its neighbours in the same row."""

LEVEL = {room: level for level, row in enumerate(ROOMS) for room in row}
HEAVY = ("torch", "numpy", "scipy", "pyarrow", "rich", "jinja2")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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
        found |= {part[1] if len(part) > 1 and not part[1].startswith("__") else "__init__" for part in parts}
    return found


def upward_imports(path: Path, tree: ast.AST) -> list[str]:
    own = room_of(path)
    return [other for other in sorted(imported_rooms(tree)) if other != own and LEVEL[other] >= LEVEL[own]]


def test_only_a_server_needs_the_package_for_http() -> None:
    needing = re.compile(r"leverplus\.backends\.api\.(client|wire|backend)\b")
    asking = [str(path.relative_to(PACKAGE)) for path in MODULES if needing.search(path.read_text(encoding="utf-8"))]
    outside = [path for path in asking if not path.startswith("backends/api/") and path != "catalog.py"]
    assert outside in ([], ["fitting/fit.py"]), "a run without a server must start without httpx"


def test_every_module_stands_in_a_known_room() -> None:
    strangers = {room_of(path) for path in MODULES} - set(LEVEL)
    assert not strangers, f"give {sorted(strangers)} a row in ROOMS, above everything they import"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    assert upward_imports(path, ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "from leverplus.training.loop import run_stage",
        "from leverplus.experiment import train",
        "import leverplus.cli.main",
        "def late():\n    from leverplus.scoring.scorer import Scorer",
        "if TYPE_CHECKING:\n    from leverplus.evaluation.arms import EvaluationContext",
    ],
)
def test_an_upward_import_is_seen_wherever_it_hides(code: str) -> None:
    assert upward_imports(PACKAGE / "pools" / "build.py", ast.parse(code))


def test_a_neighbour_in_the_same_row_counts_as_upward() -> None:
    assert upward_imports(PACKAGE / "pools" / "build.py", ast.parse("from leverplus.engine.base import Engine"))
    assert not upward_imports(PACKAGE / "pools" / "build.py", ast.parse("from leverplus.types import Pool"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    printed = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert room_of(path) == "cli" or not printed, f"{path} prints in lines {printed}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_says_what_it_is_and_fits_500_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 500


def heavy_modules_after(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after some code."""
    ask = f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_nothing_heavy_is_imported_to_show_help_or_read_a_recipe() -> None:
    assert heavy_modules_after("import leverplus, leverplus.cli.main, leverplus.recipe.recipe") == []
    check = "from leverplus.cli.main import main\nassert main(['check', 'world']) == 0"
    assert heavy_modules_after(check) == []
    assert "torch" in heavy_modules_after("import leverplus.maths.losses"), "the question must be able to say yes"


def test_help_answers_in_under_half_a_second() -> None:
    """By the time that processors spend on it: a busy machine makes nobody wait longer through our fault."""
    taken = []
    for _ in range(3):
        started = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "leverplus.cli.main", "--help"], capture_output=True, text=True, check=True
        )
        ended = os.times()
        taken.append(ended.children_user + ended.children_system - started.children_user - started.children_system)
        assert "run" in done.stdout
    assert min(taken) < 0.5


OUTSIDE_THE_CORE = ("lab", "legacy")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_imports_neither_lab_nor_legacy(path: Path) -> None:
    """The commands open every room; a part of the core that needs one of these asks the catalog for it by name."""
    if room_of(path) not in (*OUTSIDE_THE_CORE, "cli"):
        assert not imported_rooms(ast.parse(path.read_text(encoding="utf-8"))) & set(OUTSIDE_THE_CORE)
