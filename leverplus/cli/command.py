"""How a command is written: a function whose parameters are its arguments and whose docstring explains them.

    def plan_n(*, effect: float, power: float = 0.8) -> Outcome:
        '''How many items a claim needs.

        --effect X: the difference of accuracies to find, such as 0.01
        --power P: chance of finding it (default 0.8)
        '''

Parameters before the star stand by their place, the others are options; without a default they must be given. A list
takes an option again and again, and with `...` behind the name of its value several values at once. Every command also
takes --json, and prints the value of its `Outcome` then.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from leverplus.errors import plain

if TYPE_CHECKING:
    from rich.table import Table as RichTable

SHARED = {
    "json": "--json: print one JSON object on stdout",
    "store": "--store FILE: the score store (default $LEVERPLUS_STORE, else ~/.cache/leverplus/scores.db)",
}
"""Parameters that mean the same in every command that has them, with their line of explanation."""


@dataclass(frozen=True)
class Table:
    """Rows of texts under a header; columns of numbers stand at the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a command came to: one value for --json, lines and tables for people, and the exit code."""

    value: Any
    shown: Iterable[str | Table] = ()
    code: int = 0


Command = Callable[..., Outcome | None]
"""What a command comes to; None where it has said all itself."""


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print an outcome on stdout; no text of a server or a file moves the cursor."""
    if as_json:
        print(json.dumps(outcome.value), flush=True)
        return
    for part in outcome.shown:
        if isinstance(part, Table):
            from rich.console import Console

            Console().print(draw_table(part))
        else:
            print(plain(part), flush=True)


def draw_table(table: Table) -> RichTable:
    """A table as rich draws it."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=table.title or None,
        title_justify="left",
        caption=table.caption or None,
        caption_justify="left",
    )
    for place, name in enumerate(table.header):
        cells = [row[place] for row in table.rows]
        if place and all(not cell or cell[0] in "+-.0123456789" for cell in cells):
            drawn.add_column(name, justify="right", no_wrap=True)
        else:
            drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*[Text(plain(cell)) for cell in row])
    return drawn


SECONDS = 15
"""How often a line of progress is written where stderr is no terminal."""


class Bars:
    """Progress bars on stderr, one a piece of work; plain lines where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self.live = console.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, Any] = {}
        self.said = time.monotonic()

    def __enter__(self) -> Bars:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Called as work goes on."""
        if self.live:
            if what not in self.tasks:
                self.tasks[what] = self.progress.add_task(what, total=total)
            self.progress.update(self.tasks[what], completed=done, total=total)
            if done >= total:
                self.progress.remove_task(self.tasks.pop(what))
        elif time.monotonic() - self.said > SECONDS:
            self.said = time.monotonic()
            self.say(f"{what}: {done:,} of {total:,}")

    def say(self, line: str) -> None:
        if self.live:
            self.progress.console.print(plain(line), highlight=False, markup=False)
        else:
            print(plain(line), file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Give a parser the arguments of a command."""
    hints = get_type_hints(command)
    lines = iter(explanations(command))
    for name, parameter in inspect.signature(command).parameters.items():
        if name != "json":
            line = SHARED[name] if name in SHARED else next(lines)
            _add(parser, parameter, hints[name], line)
    parser.add_argument("--json", action="store_true", help=SHARED["json"][8:])


def explanations(command: Command) -> list[str]:
    """The lines about arguments in a command's docstring, each with what goes on below it."""
    text = inspect.getdoc(command) or ""
    found = re.findall(r"^\S.*(?:\n .*)*", text.partition("\n\n")[2], re.MULTILINE)
    return [" ".join(line.split()) for line in found]


def _add(
    parser: argparse.ArgumentParser,
    parameter: inspect.Parameter,
    hint: Any,
    line: str,
) -> None:
    words, _, meaning = line.partition(": ")
    flags = []
    values = []
    for word in words.split():
        if word.startswith("-"):
            flags.append(word.rstrip(","))
        else:
            values.append(word)
    options: dict[str, Any] = {"help": meaning.replace("%", "%%")}
    needed = parameter.default is parameter.empty
    if not needed:
        options["default"] = parameter.default
    hint = next((part for part in get_args(hint) if NoneType in get_args(hint)), hint)
    many = get_origin(hint) is Sequence
    kind = get_args(hint)[0] if many else hint
    if kind is bool:
        options |= {"action": "store_true", "dest": parameter.name}
        parser.add_argument(*flags, **options)
        return
    if get_origin(kind) is Literal:
        options["choices"] = get_args(kind)
    else:
        options["type"] = whole_number if kind is int else kind
    if values:
        options["metavar"] = values[0]
    if not flags:
        if many:
            options["nargs"] = "+" if needed else "*"
        elif not needed:
            options["nargs"] = "?"
        parser.add_argument(parameter.name, **options)
        return
    if many:
        options |= {"action": "extend", "nargs": "+"}
        if len(values) == 1:
            options |= {"action": "append", "nargs": None}
        if not needed:
            options["default"] = list(parameter.default)
    parser.add_argument(*flags, dest=parameter.name, required=needed, **options)


def whole_number(text: str) -> int:
    """An argument that is 0, 1, 2, ..., such as a seed; anything else is wrong usage."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a whole number of at least 0"
        )
    return int(text)


class LeverParser(argparse.ArgumentParser):
    """Parses one command; wrong usage is a sentence that names the mistake, under the usage of that command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._subparsers is not None or args is None:
            return super().parse_known_args(args, namespace)
        # before what is missing: a misspelt option is the reason why it is
        self._refuse_unknown_options(args)
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(
                f"not understood: {' '.join(rest)}; `{self.prog} --help` lists what can be written"
            )
        return found, rest

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            if not word.startswith("--") or " " in word:
                continue
            if not any(option.startswith(name) for option in known):
                self.error(f"there is no option {name}; {self._meant(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        verbs = action.choices if isinstance(action, argparse._SubParsersAction) else {}
        if verbs and value not in verbs:
            what = str(action.metavar).lower()
            self.error(f"there is no {what} '{value}'; {self._meant(value, verbs)}")
        super()._check_value(action, value)

    def _meant(self, written: str, known: Iterable[str]) -> str:
        near = get_close_matches(written, list(known), n=1)
        if near:
            return f"did you mean {near[0]}?"
        return f"`{self.prog} --help` lists all"
