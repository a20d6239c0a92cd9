"""The mutation benchmark: which mistakes it makes, that tests catch one, and that its tables are up to date."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
from benchmarking import FOLDER, load_benchmark

mutants = load_benchmark("mutants")
mutation = load_benchmark("mutation")

SOURCE = '''
"""A text with < and 1 in it."""
def f(x: int = 3, y=-1, *, descending=True):
    """1 < 2"""
    if not x:
        raise ValueError("x < 1", 1 + 1)
    return min(x, y) if x <= y and y > 0.5 else g(x, -y).clamp(min=0.0)
'''


def replacements(source: str) -> set[tuple[str, str, str]]:
    return {
        (mutant.kind, mutant.old, mutant.new)
        for mutant in mutants.mutants_of(source, "f.py")
    }


def test_every_kind_of_mistake_is_made_and_texts_and_errors_are_left_alone() -> None:
    assert replacements(SOURCE) == {
        ("constant", "3", "4"),
        ("minus", "-1", "1"),
        ("constant", "-1", "(-2)"),
        ("constant", "1", "2"),
        ("flag", "True", "False"),
        ("negation", "not x", "x"),
        ("branches", "min(x, y) if x <= y and y > 0.5 else g(x, -y).clamp(min=0.0)",
         "(g(x, -y).clamp(min=0.0) if x <= y and y > 0.5 else min(x, y))"),
        ("boolean", "x <= y and y > 0.5", "(x <= y or y > 0.5)"),
        ("boundary", "x <= y", "(x < y)"),
        ("reversed", "x <= y", "(x >= y)"),
        ("boundary", "y > 0.5", "(y >= 0.5)"),
        ("reversed", "y > 0.5", "(y < 0.5)"),
        ("constant", "0.5", "1.0"),
        ("twin", "min(x, y)", "max(x, y)"),
        ("unbounded", "g(x, -y).clamp(min=0.0)", "g(x, -y)"),
        ("swapped", "g(x, -y)", "g(-y, x)"),
        ("minus", "-y", "y"),
        ("constant", "0.0", "1.0"),
    }  # fmt: skip


def test_a_mistake_changes_one_place_and_brackets_keep_what_stands_around_it() -> None:
    (mutant,) = [
        own
        for own in mutants.mutants_of("y = 'ü' * ((a + b).clamp(0) ** n)\n", "f")
        if own.kind == "unbounded"
    ]
    changed = mutant.applied("y = 'ü' * ((a + b).clamp(0) ** n)\n")
    assert changed == "y = 'ü' * ((a + b) ** n)\n"
    assert (
        mutant.diff("y = 'ü' * ((a + b).clamp(0) ** n)\n")
        == f"-y = 'ü' * ((a + b).clamp(0) ** n)\n+{changed.strip()}"
    )


@pytest.mark.slow
def test_every_mistake_in_the_core_can_be_read_has_its_own_key_and_is_a_change() -> (
    None
):
    every = mutation.all_mutants()
    assert len({mutant.key for mutant in every}) == len(every) > 3000
    sources = {
        file: mutation.path_of(file).read_text(encoding="utf-8")
        for file in mutation.TESTS
    }
    trees = {file: ast.dump(ast.parse(source)) for file, source in sources.items()}
    for mutant in every[::40]:
        assert (
            ast.dump(ast.parse(mutant.applied(sources[mutant.file])))
            != trees[mutant.file]
        ), mutant.key


def test_the_tests_named_beside_a_file_exist() -> None:
    named = {name for names in mutation.TESTS.values() for name in names}
    assert [
        name for name in sorted(named) if not (FOLDER.parent / "tests" / name).exists()
    ] == []


@pytest.mark.slow
def test_what_is_called_equivalent_names_mistakes_that_exist_and_a_reason() -> None:
    known = {mutant.key for mutant in mutation.all_mutants()}
    reasons = mutation.equivalent()
    assert [key for key in reasons if key not in known] == []
    assert all(len(reason) > 20 for reason in reasons.values())


@pytest.mark.slow
def test_a_mistake_is_caught_by_the_tests_beside_its_file_and_the_source_itself_is_not() -> (
    None
):
    program = """
import json, mutation
source = (mutation.ROOT / "leverplus" / "learn/maths/signal.py").read_text(encoding="utf-8")
wrong = source.replace("accuracy > 0.0", "accuracy < 0.0")
endless = source + "\\nwhile True:\\n    pass\\n"
said = [mutation.try_source("learn/maths/signal.py", own, limit) for own, limit in ((source, 60), (wrong, 60), (endless, 1))]
print(json.dumps(said))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=True,
    )
    as_it_is, wrong, endless = json.loads(done.stdout)
    assert as_it_is == ["survived", ""]
    assert wrong[0] == "caught"
    assert wrong[1].startswith("tests/learn/test_signal.py::")
    assert endless == ["slow", ""]
    with pytest.raises(SystemExit, match="already imported"):
        mutation.try_source("learn/maths/signal.py", "", 1.0)


def test_outcomes_are_read_back_without_a_line_that_was_cut_short(tmp_path) -> None:
    kept = tmp_path / "seed.jsonl"
    row = {"key": "k", "line": 1, "verdict": "survived", "by": "", "seconds": 1.0}
    kept.write_text(
        f"{json.dumps(row)}\n{json.dumps({**row, 'verdict': 'caught'})}\n"
        + '{"key": "half',
        encoding="utf-8",
    )
    (outcome,) = mutation.read(kept)
    assert outcome.verdict == "caught"
    assert mutation.summary([outcome]).startswith(
        "1 of 1 caught: 100.0% (95 % interval 20.7% to 100.0%)"
    )


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(190, 200, 0.9104, 0.9726), (0, 10, 0.0, 0.2775)]
)
def test_the_interval_of_a_share_is_wilsons(
    hits: int, n: int, low: float, high: float
) -> None:
    assert mutation.wilson(hits, n) == pytest.approx((low, high), abs=1e-4)
