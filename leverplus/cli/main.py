"""`lever`: finds the command and runs it. A problem the user can mend is one sentence and exit code 1."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from leverplus import catalog
from leverplus.cli.command import (
    Command,
    LeverParser,
    Outcome,
    add_arguments,
    show,
)
from leverplus.errors import LeverError, WrongUsage, needs_extra
from leverplus.version import __version__

FAMILIES = {
    "From your data to a selector in use": {
        "fit": "learn from your own data and your own model; ends with a recommendation and a bundle ready to use",
        "select": "choose demonstrations for one query or for many, with a bundle or a run",
        "demos": "add, delete, list and audit demonstrations",
        "pack": "make a bundle from a run: a folder that chooses demonstrations on any machine",
        "serve": "offer a bundle over HTTP: other programs ask it for demonstrations, or send their chats through it",
    },
    "Experiments": {
        "run": "run a whole experiment from a recipe; a stopped one goes on where it was",
        "recipes": "list the recipes, or print one",
        "check": "list every problem of a recipe without running it",
        "pool": "build the candidate pools of a run",
        "score": "ask the frozen model for the scores that a run's training needs",
        "train": "train the selector of a run",
        "eval": "evaluate a run beside every other way of choosing",
        "sweep": "try a grid of settings, choose on dev items, test only the chosen one",
    },
    "Results, and whether they are real": {
        "report": "write one HTML file that shows a run",
        "view": "open a local web page over all runs: compare them, browse queries, try a choice",
        "compare": "compare finished runs item by item, with intervals; or judge a published table",
        "doctor": "find out why a training did not work; reads a run, a store, RL data or a training log",
        "plan": "say before anything is asked what choosing could gain",
        "plan-n": "say how many test items a claim needs",
        "diff": "show in which settings two runs differ, and how far apart two checkpoints are",
        "bench": "make the benchmark tables",
    },
    "Data and stored answers": {
        "task": "check a data set: what was found in it and what is missing",
        "store": "inspect, export, merge and verify the store of paid-for scores",
        "record": "write the scores of a recipe or run into one file that replays without the model",
        "import": "take over files of the earlier Lever-Plus code",
        "export": "write a run in the file formats of the earlier Lever-Plus code",
        "world": "look at the embedded test world: measure its baselines, draw a picture of it",
    },
}
"""Every command with its one line, in the order of `lever --help` and of the reference page."""

COMMANDS = {name: line for family in FAMILIES.values() for name, line in family.items()}

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""What a full or read-only disk answers."""


def overview() -> str:
    """The commands by family, for `lever --help`."""
    lines = []
    for family, commands in FAMILIES.items():
        lines.append(f"{family}:")
        for name, line in commands.items():
            lines.append(f"  {name:<11} {line}")
        lines.append("")
    lines.append(
        "`lever COMMAND --help` lists the options of a command. First steps: lever run world"
    )
    return "\n".join(lines)


def description(line: str) -> str:
    """A command's one line as a sentence."""
    return line[:1].upper() + line[1:].rstrip(".") + "."


def find_command(name: str) -> Command:
    """The function behind a row of `catalog.COMMANDS`; only its module is imported."""
    module, _, function = catalog.COMMANDS[name].partition(":")
    command: Command = getattr(import_module(module), function)
    return command


def add_command(parser: argparse.ArgumentParser, name: str) -> None:
    """The arguments of a command, or those of each of its verbs."""
    if name in catalog.COMMANDS:
        command = find_command(name)
        add_arguments(parser, command)
        parser.set_defaults(function=command)
        return
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for row in catalog.COMMANDS:
        whole, _, verb = row.partition(" ")
        if whole == name:
            line = (find_command(row).__doc__ or "").partition("\n")[0]
            own = verbs.add_parser(verb, help=line, description=line)
            add_command(own, row)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one command; wrong usage exits with code 2. Only that command's module is imported."""
    parser = LeverParser(
        prog="lever",
        usage="lever [--version] [--debug] COMMAND ...",
        description="Chooses the worked examples in the prompt of a frozen (vision-)language model.",
        epilog=overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lever {__version__}")
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, help="one of those below"
    )
    wanted = next((word for word in arguments if word in COMMANDS), None)
    for name, line in COMMANDS.items():
        own = commands.add_parser(
            name, prog=f"lever {name}", description=description(line)
        )
        if name == wanted:
            add_command(own, name)
    return parser.parse_args(arguments)


def run_command(arguments: list[str]) -> int:
    """Run one command and print what it came to; the exit code."""
    given = vars(parse(arguments))
    function = given["function"]
    as_json = given["json"]
    for key in ("command", "verb", "function", "debug", "json"):
        given.pop(key, None)
    if "json" in function.__annotations__:
        given["json"] = as_json
    with needs_extra(f"`lever {' '.join(arguments[:1])}`"):
        outcome: Outcome | None = function(**given)
        if outcome is None:
            return 0
        show(outcome, as_json=as_json)
    return outcome.code


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        with ended_by_signals():
            return run_command(arguments)
    except LeverError as error:
        if debug:
            raise
        print(f"lever: {error}", file=sys.stderr)
        if isinstance(error, WrongUsage):
            return 2
        return 1
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else signal.SIGINT
        print(
            f"\nlever: stopped by {signal.Signals(number).name}; everything measured so far is kept. "
            "Type the same command to go on.",
            file=sys.stderr,
        )
        return 128 + int(number)
    except BrokenPipeError:
        # the reader went away (`| head`); stop quietly, and keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or error.errno not in NO_ROOM:
            raise
        named = ""
        if error.filename:
            named = f"to {error.filename} "
        print(
            f"lever: cannot write {named}({error.strerror}); make room, or make the place writable, then type the same "
            "command to go on. Everything stored so far is kept.",
            file=sys.stderr,
        )
        return 1


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP end the command as Ctrl-C does; what is ignored (`nohup`) stays ignored."""

    def stop(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    raise SystemExit(main())
