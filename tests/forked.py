"""Programs that begin at once, for tests that kill many: each is forked from a process that has its imports already.

What a program does is given as Python source. It is a process of its own, with its own files and memory, and a SIGKILL
ends it as it ends any other; only the seconds in which torch is imported are not spent again.

python forked.py    for every line on stdin, a JSON object (`source`, `environment`), a new process runs it; the number
of the process is printed, then the status it ended with
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import IO, Any

LEVER = """
from leverplus.cli.main import main
raise SystemExit(main({words!r}))
"""
"""The command `lever` with some words."""


@dataclass
class Program:
    """A program that was started; `wait` gives its exit status, negative for the signal that ended it."""

    pid: int
    said: IO[str]

    def running(self) -> bool:
        return not select.select([self.said], [], [], 0.0)[0]

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(int(self.said.readline()))


class Forker:
    """Starts programs one after another: the next when the last has ended."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.maker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, source: str, **environment: str) -> Program:
        assert self.maker.stdin is not None
        assert self.maker.stdout is not None
        self.maker.stdin.write(
            json.dumps({"source": source, "environment": environment}) + "\n"
        )
        self.maker.stdin.flush()
        return Program(int(self.maker.stdout.readline()), self.maker.stdout)

    def run(self, source: str, **environment: str) -> int:
        """The exit status of a program that is left to end."""
        return self.start(source, **environment).wait()

    def close(self) -> None:
        assert self.maker.stdin is not None
        assert self.maker.stdout is not None
        self.maker.stdin.close()
        self.maker.stdout.close()
        self.maker.wait()


def _preload() -> None:
    """What a run imports sooner or later."""
    import importlib

    for name in ("torch._dynamo", "scipy.stats", "pyarrow.parquet", "transformers", "httpx", "leverplus.cli.main",
                 "leverplus.run.evaluate", "leverplus.evaluate.evaluate", "leverplus.web.report"):  # fmt: skip
        try:
            importlib.import_module(name)
        except ImportError:  # of an extra that is not installed
            continue


def _become(asked: dict[str, Any]) -> None:
    """Run a program in this process, and leave it."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.environ.update(asked["environment"])
        exec(compile(asked["source"], "forked", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    _preload()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)  # at once: to take all those modules down again takes seconds


if __name__ == "__main__":
    main()
