"""Adding a part from inside: done in a copy of the package, in at most three files, and then used by its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

REWARD = '''

def cautious(evidence: Evidence, weights: Weights) -> float:
    """w_s (s - (1 - p) / 2)."""
    return weights.soft * (evidence.score.accuracy - 0.5 * (1.0 - evidence.score.gt_prob))
'''
POOL = '''

def farthest(search: Search) -> list[Positions]:
    """The nearest, turned round."""
    return [own[::-1] for own in search.nearest(1.0, search.section.size)]
'''
METRIC = '''

def first_letter(answer: str, references: Sequence[str]) -> float:
    """Whether the first letter is right."""
    return float(any(answer[:1] == reference[:1] for reference in references))
'''
BACKEND = '''"""An echo."""

from leverplus.models.base import Reply


class Echo:
    def __init__(self, task, model):
        self.model = model

    def fingerprint(self):
        return {"model": self.model.name}

    def answer(self, requests):
        return [Reply(request.query.question, None, 1) for request in requests]


def echo(task, model):
    return Echo(task, model)
'''
CHECK = '''

@check
def no_source(record: Record) -> Said:
    """This record does not say what it was read from

    Info: The record was put together by hand.
    Looks at: the name of the target
    Try: Read a target.
    """
    return not record.source and Seen(sources=0)
'''


@dataclass(frozen=True)
class Added:
    """A part: its table in the catalog, its name, what is written behind which file, and a proof that it is used."""

    table: str
    name: str
    written: dict[str, str]
    settings: str
    used: str
    row: tuple[str, str, str] | None = None
    """A row that the part needs in another table: file, the table's first line, the row."""


CASES = {
    "reward": Added(
        "REWARDS",
        "cautious",
        {"leverplus/learn/maths/rewards.py": REWARD},
        "reward.mode=cautious reward.soft_weight=2",
        "from leverplus.run.rules import idle_settings; from leverplus.run.recipe import load_recipe; "
        "assert 'reward.soft_weight' not in idle_settings(load_recipe('world', ['reward.mode=cautious'])); "
        "assert 'reward.alpha' in idle_settings(load_recipe('world', ['reward.mode=cautious']))",
        ("learn/settings.py", "BOTH = (\n", '    "cautious",\n'),
    ),
    "pool": Added(
        "SAMPLERS",
        "farthest",
        {"leverplus/arms/pools.py": POOL},
        "pool.kind=farthest",
        "from leverplus.run.recipe import load_recipe; "
        "assert load_recipe('world', ['pool.kind=farthest']).pool.kind == 'farthest'",
    ),
    "metric": Added(
        "METRICS",
        "first_letter",
        {"leverplus/data/metrics/text.py": METRIC},
        "task.metric=first_letter",
        "from leverplus.data.metrics import metric_named; assert metric_named('first_letter')('red', ['rot']) == 1.0",
    ),
    "backend": Added(
        "BACKENDS",
        "echo",
        {"leverplus/models/echo.py": BACKEND},
        "score.backend=echo model.name=x",
        "from leverplus.models.open import build_backend; from leverplus.models.settings import ModelSection; "
        "from leverplus.models.base import Request; from leverplus.data.types import Item; "
        "asked = Request(Item('a', 'why?', (), 'test'), (), ()); "
        "assert build_backend('echo', None, ModelSection(name='x')).answer([asked])[0].raw == 'why?'",
    ),
    "check": Added(
        "CHECKS",
        "no_source",
        {"leverplus_doctor/checks/groups.py": CHECK},
        "train.imitate=1",
        "from leverplus_doctor.check import examine; from leverplus_doctor.records import Record; "
        "assert 'no_source' in [finding.code for finding in examine(Record())]",
    ),
}


def add(part: Added, home: Path) -> None:
    """Write the part's code, its row in the catalog and what else it needs."""
    for file, text in part.written.items():
        path = home / file
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        path.write_text(before + text, encoding="utf-8")
    module = next(iter(part.written)).removesuffix(".py").replace("/", ".")
    row = f'    "{part.name}": "{module}:{part.name}",\n'
    insert(home / "leverplus" / "catalog.py", f"{part.table}: Table = {{\n", row)
    if part.row is not None:
        file, opening, own = part.row
        insert(home / "leverplus" / file, opening, own)


def insert(path: Path, opening: str, row: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(opening) == 1
    path.write_text(text.replace(opening, opening + row), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_part_is_at_most_three_files(kind: str, tmp_path: Path) -> None:
    part = CASES[kind]
    left_out = shutil.ignore_patterns(
        "__pycache__", "tables", "assets", "weights", "view"
    )
    for name in ("leverplus", "leverplus_doctor"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    add(part, tmp_path)
    changed = [
        own
        for own in tmp_path.rglob("*")
        if own.is_file() and differs(own, ROOT / own.relative_to(tmp_path))
    ]
    assert 2 <= len(changed) <= 3
    ask = (
        "import sys; from leverplus import catalog; from leverplus.cli.main import main; "
        f"part = catalog.load(catalog.{part.table}, '{part.name}', '{kind}'); assert part.__name__ == '{part.name}'; "
        f"{part.used}; sys.exit(main(['check', 'world', '--set', *{part.settings.split()!r}]))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no problems" in done.stdout


def differs(own: Path, theirs: Path) -> bool:
    return not theirs.is_file() or own.read_bytes() != theirs.read_bytes()
