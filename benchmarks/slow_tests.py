"""Which tests are slow: measures the CPU seconds of each, and writes those that `-m "not slow"` leaves out.

    python benchmarks/slow_tests.py --measure times.jsonl     runs what is not marked yet, some minutes of one core
    python benchmarks/slow_tests.py --write times.jsonl       writes tests/slow.txt

CPU time of the process and of those it waited for does not depend on what else runs on the machine. What a fixture
shared by a module or a session takes is counted by itself: leaving out the test that happened to be first would
only move it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.txt"
OVER = 0.3
"""CPU seconds from which a test is slow."""


def cpu() -> float:
    """CPU seconds of this process and of the ended ones that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Meter:
    """A plugin of pytest that writes a line for every test: its name, its own seconds, and those of shared fixtures."""

    def __init__(self, file: Path) -> None:
        self.file = file.open("a", encoding="utf-8")
        self.shared = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        start = cpu()
        before = self.shared
        yield
        if fixturedef.scope != "function":
            self.shared = before + cpu() - start  # fixtures that this one asked for are inside

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        self.shared, start = 0.0, cpu()
        yield
        own = cpu() - start - self.shared
        self.file.write(json.dumps({"test": item.nodeid, "own": round(own, 3), "shared": round(self.shared, 3)}) + "\n")
        self.file.flush()


def slow_names(lines: list[dict[str, Any]], over: float = OVER) -> list[str]:
    """The tests that take longer than this, as tests/slow.txt names them: by function where all of its cases do."""
    times: dict[str, dict[str, float]] = {}
    for line in lines:
        test = line["test"].removeprefix("tests/")
        times.setdefault(test.split("[")[0], {})[test] = line["own"]
    names = []
    for function, cases in times.items():
        slow = [test for test, own in cases.items() if own >= over]
        names += [function] if len(slow) == len(cases) else slow
    return sorted(names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", type=Path, metavar="FILE", help="run the tests that are not slow and time them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write tests/slow.txt from such a file")
    parser.add_argument("--over", type=float, default=OVER, help="CPU seconds from which a test is slow (%(default)s)")
    parser.add_argument("tests", nargs="*", help="with --measure: only these files")
    asked = parser.parse_args()
    if asked.measure is not None:
        words = ["-m", "not slow", "-p", "no:cacheprovider", *asked.tests]
        return int(pytest.main(words, plugins=[Meter(asked.measure)]))
    if asked.write is None:
        parser.error("say --measure FILE or --write FILE")
    lines = [json.loads(line) for line in asked.write.read_text(encoding="utf-8").splitlines()]
    known = LIST.read_text(encoding="utf-8").splitlines() if LIST.is_file() else []
    names = sorted({*known, *slow_names(lines, asked.over)})
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    spent = sum(line["own"] + line["shared"] for line in lines)
    print(f"{len(names)} tests are slow; {len(lines):,} tests took {spent:.0f} s of CPU when measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
