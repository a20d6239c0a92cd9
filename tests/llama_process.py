"""A real llama.cpp server in a process of its own, for the tests that ask one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parent / "models" / "llama_server.py"


@contextmanager
def llama_process() -> Iterator[str]:
    """The address of a server that ends with the block."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield next(line.strip() for line in server.stdout if line.startswith("http"))
        server.stdin.close()
