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
from leverplus.errors import LeverError, WrongUsage

COMMANDS = {
    "fit": "your data and a model in; a bundle, a report and one recommendation out",
    "run": "every stage of a recipe, resuming what is done",
    "recipes": "list the recipes, or print one",
    "check": "all problems of a recipe at once",
    "pool": "build the pools of a run",
    "score": "ask the frozen model what a run's training needs",
    "train": "train the selector of a run",
    "eval": "evaluate a run against every baseline",
    "compare": "compare runs on the same items, or read a published table",
    "diff": "the settings in which two runs differ, and how far two checkpoints lie apart",
    "sweep": "a grid of settings on one store: chosen on dev, test once for the chosen",
    "bench": "the benchmark tables",
    "plan": "from some hundred recorded calls, what choosing by measured effects could gain",
    "plan-n": "how many items a claim needs",
    "doctor": "why did this training not work? findings on a run, a store, RL data or a training log",
    "report": "one self-contained HTML file that shows a run",
    "view": "a local web page over all runs: compare them, browse queries, try it",
    "pack": "a bundle from a run: a folder that chooses demonstrations anywhere",
    "select": "choose demonstrations for one query, or for many, by a bundle or a run",
    "demos": "add, delete and list the demonstrations of a bundle",
    "serve": "a bundle as an HTTP service, and as a proxy in front of an OpenAI-compatible server",
    "store": "look into the score store, export it, merge others into it, prove it whole",
    "task": "what a task found and what is missing",
    "import": "take over files of the earlier Lever-Plus code",
    "record": "the scores of a recipe or run as a recorded table that replays anywhere",
    "export": "write a run or imported files in the formats of the earlier Lever-Plus code",
    "completion": "a script that lets bash, zsh or fish complete commands and options",
    "world": "the embedded world: its ladder of baselines, and a picture of it",
}
"""Every command with its one line; the module of the same name in this folder holds HELP, add_arguments and run."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""What a full or read-only disk answers."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one command; wrong usage exits with code 2. Only that command's module is imported."""
    parser = argparse.ArgumentParser(
        prog="lever",
        description="Learns which worked examples to put into the prompt of a frozen vision-language model.",
    )
    parser.add_argument("--version", action="version", version=f"lever {__version__}")
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in arguments if word in COMMANDS), None)
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
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
