"""The generated pages of docs/reference: every command from its parser, every recipe key from its setting.

`python benchmarks/write_pages.py` writes them. Nothing here depends on the width of a terminal or the Python version.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from leverplus.cli.main import COMMANDS, FAMILIES, add_command, description
from leverplus.data.settings import KINDS, settings_of
from leverplus.run.recipe import SECTIONS

GENERATED = "<!-- Written by `make pages`; change the texts in the code instead. -->"


def commands_page() -> str:
    """docs/reference/commands.md: every command with its arguments, in the families of `lever --help`."""
    lines = [
        "# Commands",
        GENERATED,
        "",
        "`lever COMMAND --help` prints the same. Every command ends with exit code 0 when it is done, 1 when there is",
        "a problem that you can mend (one sentence says what, and what to type next) and 2 when it was typed wrongly.",
        "`lever --debug COMMAND` shows the stack trace of an error. Where there is `--json`, exactly one JSON object",
        "goes to standard output and everything else to standard error.",
        "",
    ]
    for family, names in FAMILIES.items():
        lines += [f"## {family}", ""]
        for name in names:
            lines += command_lines(name)
    return "\n".join(lines).rstrip() + "\n"


def command_lines(name: str) -> list[str]:
    parser = argparse.ArgumentParser(prog=f"lever {name}")
    add_command(parser, name)
    lines = [f"### `lever {name}`", "", description(COMMANDS[name]), ""]
    verbs = next(
        (
            action
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
        ),
        None,
    )
    if verbs is None:
        return lines + argument_lines(parser)
    about = {choice.dest: choice.help or "" for choice in verbs._choices_actions}
    for verb, sub in verbs.choices.items():
        lines += [
            f"#### `lever {name} {verb}`",
            "",
            description(about.get(verb, "")),
            "",
            *argument_lines(sub),
        ]
    return lines


def argument_lines(parser: argparse.ArgumentParser) -> list[str]:
    """The usage line and one row per argument."""
    actions = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
    ]
    usage = " ".join(
        [parser.prog, *(shown for action in actions if (shown := usage_word(action)))]
    )
    groups = {
        id(action): group.title
        for group in parser._action_groups[2:]
        for action in group._group_actions
    }
    rows = []
    for action in actions:
        group = f"{groups[id(action)]}: " if id(action) in groups else ""
        rows.append(f"| `{argument_name(action)}` | {group}{meaning(action)} |")
    table = ["| argument | meaning |", "|---|---|", *rows] if rows else []
    return ["```text", usage, "```", "", *table, *([""] if table else [])]


def usage_word(action: argparse.Action) -> str:
    """Positional arguments and options that must be given; the others stand in the table only."""
    if not action.option_strings:
        name = value_name(action)
        return {
            "?": f"[{name}]",
            "*": f"[{name} ...]",
            "+": f"{name} [{name} ...]",
        }.get(str(action.nargs), name)
    return (
        f"{action.option_strings[-1]} {value_name(action)}" if action.required else ""
    )


def value_name(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest if not action.option_strings else action.dest.upper()


def argument_name(action: argparse.Action) -> str:
    if not action.option_strings:
        return usage_word(action)
    name = ", ".join(action.option_strings)
    if action.nargs == 0:  # a switch
        return name
    several = f" [{value_name(action)} ...]" if action.nargs in ("+", "*") else ""
    return f"{name} {value_name(action)}{several}"


def meaning(action: argparse.Action) -> str:
    text = (
        (action.help or "")
        .replace("%(default)s", str(action.default))
        .replace("%%", "%")
    )
    return text.replace(str(Path.home()), "~").replace("|", "\\|")


def recipe_page() -> str:
    """docs/reference/recipe.md: every key of every section with its default and what is allowed."""
    lines = [
        "# Recipe keys",
        GENERATED,
        "",
        "A recipe is a TOML file with these sections. A key that is left out has its default. `lever recipes NAME`",
        "prints a shipped recipe, and `lever check FILE` names every problem of yours. `--set section.key=value`",
        "overrides a key on the command line.",
        "",
        "Beside the sections a recipe may have `purpose` and `expected` (one line of text each) and `extends`",
        "(the name or file of a recipe to start from; what this file gives wins).",
        "",
        "A key that names a part (a reward, a pool, a backend ...) also takes `package.module:attribute` of your own.",
        "",
    ]
    for name, section in SECTIONS.items():
        lines += [
            f"## `[{name}]`",
            "",
            section_text(section),
            "",
            "| key | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        hints = get_type_hints(section)
        for field in settings_of(section):
            default = ""
            if field.default is not None:
                default = f"`{json.dumps(field.default)}`"
            doc = field.metadata["doc"].replace("|", "\\|")
            kinds = allowed(hints[field.name], field.metadata)
            lines.append(
                f"| `{field.name}` | {default} | {kinds} | {doc}{read_when(field)} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def read_when(field: Any) -> str:
    """With which other setting a key is read."""
    if not field.metadata["when"]:
        return ""
    key, *values = field.metadata["when"]
    if not values:
        return f" (with `{key}`)"
    return f" (`{key}` = {', '.join(map(str, values))})"


def section_text(cls: type) -> str:
    """The section's docstring as one line, without its own name in front."""
    text = " ".join((cls.__doc__ or "").split())
    said = text.split("]`: ", 1)[-1]
    return said[:1].upper() + said[1:]


def allowed(hint: Any, about: Any) -> str:
    """Type, choices or range, in words."""
    inner = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if get_origin(hint) is tuple:
        return f"list of: {allowed(inner[0], about)}"
    choices = about["choices"]
    if choices is not None:
        return ", ".join(f"`{value}`" for value in choices)
    words = [KINDS[inner[0] if inner else hint].removeprefix("a ")]
    for key, word in (("low", "at least"), ("above", "above"), ("high", "at most")):
        if about[key] is not None:
            words.append(f"{word} {about[key]:g}")
    return " ".join(words)
