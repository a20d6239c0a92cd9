"""Adding a part from inside: done in a copy of the package, in at most three files, and then known to the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "leverplus"

REWARD = '''

def cautious(evidence: Evidence, weights: Weights) -> float:
    """w_s (s - (1 - p) / 2)."""
    return weights.soft * (evidence.score.accuracy - 0.5 * (1.0 - evidence.score.gt_prob))
'''
POOL = '''

def farthest(search: Search, section: PoolSection) -> Positions:
    """The nearest, turned round."""
    return search.nearest(1.0, section.size)[0][:, ::-1]
'''
METRIC = '''

def first_letter(answer: str, references: Sequence[str]) -> float:
    """Whether the first letter is right."""
    return float(any(answer[:1] == reference[:1] for reference in references))
'''
BACKEND = '''"""An echo."""

from leverplus.backends.world import WorldBackend


def echo(task, model):
    return WorldBackend(task)
'''
CHECK = '''

def always(record: Record) -> list[Finding]:
    """Speaks of every record."""
    return [Finding("always", "info", "Looked at.", {}, "None.", "Nothing.")]
'''

CASES = {
    "reward": ("REWARDS", "cautious", "maths/rewards.py", REWARD, "reward.mode=cautious"),
    "pool": ("SAMPLERS", "farthest", "pools/samplers.py", POOL, "pool.kind=farthest"),
    "metric": ("METRICS", "first_letter", "metrics/text.py", METRIC, "task.metric=first_letter"),
    "backend": ("BACKENDS", "echo", "backends/echo.py", BACKEND, "score.backend=echo model.name=x"),
    "check": ("CHECKS", "always", "doctor/exploration.py", CHECK, "train.imitate=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_part_is_its_code_and_one_row(kind: str, tmp_path: Path) -> None:
    table, name, file, code, key = CASES[kind]
    copy = tmp_path / "leverplus"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "tables", "assets", "weights", "view"))
    path = copy / file
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    path.write_text(before + code, encoding="utf-8")
    row = f'    "{name}": "leverplus.{file[:-3].replace("/", ".")}:{name}",\n'
    catalog = (copy / "catalog.py").read_text(encoding="utf-8")
    opening = f"{table}: Table = {{\n"
    assert opening in catalog
    (copy / "catalog.py").write_text(catalog.replace(opening, opening + row), encoding="utf-8")
    changed = [own for own in copy.rglob("*.py") if _differs(own, PACKAGE / own.relative_to(copy))]
    assert len(changed) <= 3
    ask = (
        "import sys; from leverplus import catalog; from leverplus.cli.main import main; "
        f"part = catalog.load(catalog.{table}, '{name}', '{kind}'); assert part.__name__ == '{name}'; "
        f"sys.exit(main(['check', 'world', '--set', *{key.split()!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no problems" in done.stdout


def _differs(own: Path, theirs: Path) -> bool:
    return not theirs.is_file() or own.read_bytes() != theirs.read_bytes()
