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
from typing import Any

from leverplus import __version__
from leverplus.cli.parser import LeverParser
from leverplus.errors import LeverError, WrongUsage

COMMANDS = {
    "fit": "learn from your own data and your own model; ends with a recommendation and a bundle ready to use",
    "run": "run a whole experiment from a recipe; a stopped one goes on where it was",
    "recipes": "list the recipes, or print one",
    "check": "list every problem of a recipe without running it",
    "pool": "build the candidate pools of a run",
    "score": "ask the frozen model for the scores that a run's training needs",
    "train": "train the selector of a run",
    "eval": "evaluate a run beside every other way of choosing",
    "compare": "compare finished runs item by item, with intervals; or judge a published table",
    "diff": "show in which settings two runs differ, and how far apart two checkpoints are",
    "sweep": "try a grid of settings, choose on dev items, test only the chosen one",
    "bench": "make the benchmark tables",
    "plan": "estimate from a few hundred recorded calls what choosing could gain",
    "plan-n": "say how many test items a claim needs",
    "doctor": "find out why a training did not work; reads a run, a store, RL data or a training log",
    "report": "write one HTML file that shows a run",
    "view": "open a local web page over all runs: compare them, browse queries, try a choice",
    "pack": "make a bundle from a run: a folder that chooses demonstrations on any machine",
    "serve": "offer a bundle over HTTP: other programs ask it for demonstrations, or send their chats through it",
    "select": "choose demonstrations for one query or for many, with a bundle or a run",
    "demos": "add, delete, list and audit demonstrations",
    "store": "inspect, export, merge and verify the store of paid-for scores",
    "task": "check a data set: what was found in it and what is missing",
    "import": "take over files of the earlier Lever-Plus code",
    "record": "write the scores of a recipe or run into one file that replays without the model",
    "export": "write a run in the file formats of the earlier Lever-Plus code",
    "completion": "print a script that lets bash, zsh or fish complete commands and options",
    "world": "look at the embedded test world: measure its baselines, draw a picture of it",
}
"""Every command with its one line; the module of the same name in this folder holds add_arguments and run."""

FAMILIES = {
    "From your data to a selector in use": ("fit", "select", "demos", "pack", "serve"),
    "Experiments": ("run", "recipes", "check", "pool", "score", "train", "eval", "sweep"),
    "Results, and whether they are real": ("report", "view", "compare", "doctor", "plan", "plan-n", "diff", "bench"),
    "Data and stored answers": ("task", "store", "record", "import", "export", "world"),
    "Your shell": ("completion",),
}
"""The order of `lever --help` and of the reference page. A name that is not in COMMANDS yet is left out there."""


def families() -> dict[str, list[str]]:
    """Every command once, in its family; one that no family names stands in the first."""
    found = {}
    for family, names in FAMILIES.items():
        found[family] = [name for name in names if name in COMMANDS]
    placed = {name for names in found.values() for name in names}
    next(iter(found.values())).extend(name for name in COMMANDS if name not in placed)
    return found


def overview() -> str:
    """The commands by family, for `lever --help`."""
    lines = []
    for family, names in families().items():
        lines += [f"{family}:", *(f"  {name:<11} {COMMANDS[name]}" for name in names), ""]
    return "\n".join([*lines, "`lever COMMAND --help` lists the options of a command. First steps: lever run world"])


def description(line: str) -> str:
    """A command's one line as a sentence."""
    return line[:1].upper() + line[1:] + "."


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""What a full or read-only disk answers."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one command; wrong usage exits with code 2. Only that command's module is imported."""
    parser = LeverParser(
        prog="lever",
        usage="lever [--version] [--debug] COMMAND ...",
        description="Learns which worked examples to put into the prompt of a frozen (vision-)language model.",
        epilog=overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lever {__version__}")
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, help="one of those below")
    wanted = next((word for word in arguments if word in COMMANDS), None)
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, prog=f"lever {name}", description=description(line))
        if name == wanted:
            command_module(name).add_arguments(sub)
    return parser.parse_args(arguments)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        with ended_by_signals():
            args = parse(arguments)
            code: int = command_module(args.command).run(args)
    except LeverError as error:
        if debug:
            raise
        print(f"lever: {error}", file=sys.stderr)
        return 2 if isinstance(error, WrongUsage) else 1
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        print(
            f"\nlever: stopped by {signal.Signals(number).name}; everything measured so far is kept. "
            "Type the same command to go on.",
            file=sys.stderr,
        )
        return 128 + number
    except BrokenPipeError:
        # the reader went away (`| head`); stop quietly, and keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or error.errno not in NO_ROOM:
            raise
        named = f"to {error.filename} " if error.filename else ""
        print(
            f"lever: cannot write {named}({error.strerror}); make room, or make the place writable, then type the same "
            "command to go on. Everything stored so far is kept.",
            file=sys.stderr,
        )
        return 1
    return code


class Stopped(KeyboardInterrupt):
    """Somebody asked the command to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP end the command as Ctrl-C does; what is ignored (`nohup`) stays ignored."""

    def stop(number: int, _frame: object) -> None:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_module(command: str) -> Any:
    """The module of a command; only the one that is asked for is imported."""
    name = {"import": "import_"}.get(command, command.replace("-", "_"))  # `import` is a keyword of Python
    return import_module(f"leverplus.cli.{name}")


if __name__ == "__main__":
    raise SystemExit(main())
