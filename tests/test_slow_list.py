"""The list of slow tests names tests that exist, and what is measured counts shared fixtures by themselves."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarking import load_benchmark

ROOT = Path(__file__).parents[1]
SLOW_TESTS = load_benchmark("slow_tests")
NAMES = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()


def test_the_list_is_sorted_and_every_name_is_a_test() -> None:
    assert sorted(set(NAMES)) == NAMES
    by_file: dict[str, set[str]] = {}
    for name in NAMES:
        file, _, test = name.partition("::")
        by_file.setdefault(file, set()).add(test.split("[")[0])
    for file, wanted in by_file.items():
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert wanted <= functions, f"{file} has no {sorted(wanted - functions)}; take them out of tests/slow.txt"


def test_a_test_is_named_by_its_function_where_all_of_its_cases_are_slow() -> None:
    times = {"a.py::test_x[1]": 0.9, "a.py::test_x[2]": 0.1, "a.py::test_y[1]": 0.4, "a.py::test_y[2]": 0.5}
    lines = [{"test": f"tests/{name}", "own": own, "shared": 7.0} for name, own in times.items()]
    assert SLOW_TESTS.slow_names(lines) == ["a.py::test_x[1]", "a.py::test_y"]


@pytest.mark.slow
def test_what_a_shared_fixture_takes_is_not_its_first_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import time, pytest\n"
        "def burn(seconds):\n"
        "    end = time.process_time() + seconds\n"
        "    while time.process_time() < end:\n"
        "        pass\n"
        "@pytest.fixture(scope='module')\n"
        "def inner():\n    burn(0.2)\n"
        "@pytest.fixture(scope='module')\n"
        "def shared(inner):\n    burn(0.3)\n"
        "def test_first(shared):\n    burn(0.1)\n"
        "def test_second(shared):\n    burn(0.2)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    file = tmp_path / "times.jsonl"
    words = [sys.executable, str(ROOT / "benchmarks" / "slow_tests.py"), "--measure", str(file), "test_it.py"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    first, second = [json.loads(line) for line in file.read_text().splitlines()]
    assert first["shared"] == pytest.approx(0.5, abs=0.1)
    assert first["own"] == pytest.approx(0.1, abs=0.09)
    assert (second["own"], second["shared"]) == (pytest.approx(0.2, abs=0.09), 0.0)
