"""`lever task check`: what a task found, what is missing and where to get it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from leverplus import catalog
from leverplus.cli.console import add_task_values
from leverplus.errors import RecipeError
from leverplus.recipe.recipe import apply_override
from leverplus.recipe.schema import read_section
from leverplus.recipe.sections import TaskSection

if TYPE_CHECKING:
    from leverplus.tasks.base import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="say what a task found, what is missing and where to get it")
    check.add_argument("task", metavar="TASK", help=f"a task: {', '.join(catalog.TASKS)}")
    add_task_values(check)
    check.add_argument("--quick", action="store_true", help="read only the beginning and the end of each picture")
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    task = load_task(args.task, args.set)
    found = {
        "task": task.name,
        "version": task.version,
        "metric": task.metric,
        "splits": {split: _describe(task, split) for split in ("train", "dev", "test")},
        "pictures_decoded": 0 if args.quick else _decode_all(task),
        "notes": list(getattr(task, "notes", ())),
    }
    print(json.dumps(found) if args.json else "\n".join(_lines(found)))
    return 0


def load_task(name: str, overrides: list[str]) -> Task:
    """A task by name and `key=value` settings of its section."""
    from leverplus.engine.open import build_task

    catalog.load(catalog.TASKS, name, "task")  # an unknown name is answered before its settings are read
    problems: list[str] = []
    values: dict[str, Any] = {"task": {"name": name}}
    for override in overrides:
        apply_override(values, override if override.startswith("task.") else f"task.{override}", problems)
    section = read_section(TaskSection, values["task"], "task.", problems)
    if problems or section is None:
        raise RecipeError(f"task {name}", problems)
    return build_task(section)


def _describe(task: Task, split: str) -> dict[str, int]:
    items = task.items(split)
    return {
        "items": len(items),
        "pictures": len({item.image for item in items} - {None}),
        "answers": len({item.answer for item in items}),
    }


def _decode_all(task: Task) -> int:
    """Read every picture to its end; broken ones are named together."""
    from leverplus.tasks.files import FileTask, check_picture_files
    from leverplus.tasks.reading import Problems

    if not isinstance(task, FileTask):
        return 0
    problems = Problems(task.name)
    items = [item for split in ("train", "dev", "test") for item in task.items(split)]
    seen = check_picture_files(items, task.places, problems, decode=True)
    problems.finish()
    return seen


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['task']} (version {found['version']}, judged by {found['metric']})"]
    for split, counts in found["splits"].items():
        pictures = f", {counts['pictures']:,} pictures" if counts["pictures"] else ""
        lines.append(f"  {split:5} {counts['items']:>7,} items{pictures}, {counts['answers']:,} different answers")
    if found["pictures_decoded"]:
        lines.append(f"  all {found['pictures_decoded']:,} pictures can be read")
    return lines + [f"  note: {note}" for note in found["notes"]]
