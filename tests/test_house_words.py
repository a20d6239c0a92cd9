"""One word for one thing: every class name and every public function name stands once in the package."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "leverplus"
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_class_name_stands_once_in_the_package() -> None:
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


PARALLEL = {
    "lever_demos": "each framework's own entry, called by that name in its configuration",
    "rank": "a reward and an advantage, both called so in recipes",
    "spoil_pools": "training asks, the room for the earlier code does",
    "spoil_groups": "likewise",
    "spoil_rows": "likewise",
    "convert_checkpoint": "likewise",
}
"""Functions that may stand twice, and why. Commands are left out: each has a `run` and `add_arguments`."""


def test_every_public_function_stands_once_in_the_package() -> None:
    found: dict[str, list[str]] = {}
    for path in MODULES:
        if "cli" not in path.relative_to(PACKAGE).parts:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in PARALLEL} == {}
    assert set(PARALLEL) <= set(twice)


FORMER = {
    "oversight": "monitor",
    "acquisition": "active",
    "expectation": "expected_accuracy",
    "crew": "worker pool",
    "standings": "summary",
    "bench_of": "evaluation_context",
    "pulse": "heartbeat",
    "worth": "value, or gain",
    "sick": "known mistake",
}
"""Words that needed explaining, and what stands in their place; file formats and log names may keep them as texts."""


def names_in(tree: ast.AST) -> set[str]:
    """Every name that a module gives to something: functions, classes, arguments, variables, attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_words_that_needed_explaining_do_not_come_back_as_names() -> None:
    found = {}
    for path in MODULES:
        old = sorted(name for name in names_in(ast.parse(path.read_text(encoding="utf-8"))) if name.lower() in FORMER)
        if old:
            found[str(path.relative_to(PACKAGE))] = {name: f"say {FORMER[name.lower()]}" for name in old}
    assert found == {}
