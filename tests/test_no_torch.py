"""The bare install: choosing, serving and fitting against a server work without torch, transformers and pyarrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tiny_world import TinyRun

from leverplus.cli.main import main
from leverplus.errors import EXTRAS, PART_EXTRAS
from leverplus.scores.store import ScoreStore

sys.path += [str(Path(__file__).parent / room) for room in ("models", "web")]
from served import serving
from speaking_server import CAPITALS, speaking

HERE = Path(__file__).parent
BLOCKED = """
import os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ImportError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
QUESTION = {"question": "the capital of japan?", "shots": 2}
OKVQA = "tables:okvqa-sample"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to type commands in; no Python process started from here can import what the extras bring."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(BLOCKED)
    monkeypatch.setenv("BLOCKED", " ".join(EXTRAS))
    monkeypatch.setenv("PYTHONPATH", f"{blocked}{os.pathsep}{HERE.parent}")
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "kept.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    return said


def lever(*words: str, code: int = 0) -> str:
    return python("-m", "leverplus", *words, code=code)


def test_torch_is_blocked_here(bare: Path) -> None:
    assert "torch is blocked" in python(
        "-c", "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    )


def test_fit_on_a_csv_then_select_and_serve(bare: Path) -> None:
    lines = ["question,answer"]
    for number in range(10):
        for land, city in CAPITALS.items():
            lines.append(f'"what is the capital of {land}, number {number}?",{city}')
    Path("capitals.csv").write_text("\n".join(lines))
    with speaking() as server:
        options = ("--calls", "1500", "--shots", "1,2", "--store", "scores.db")
        said = lever("fit", "capitals.csv", "--model", server.url, *options)
    assert "texts are compared by their words" in said
    assert 'pip install -e ".[hf]"' in said
    assert "no selector is trained, because torch is not installed" in said
    assert 'pip install -e ".[train]"' in said
    fitted = json.loads(Path("bundles/capitals/fit.json").read_text())
    assert {"nearest_text", "mmr", "zero_shot"} <= set(fitted["arms"])
    assert "learned" not in fitted["arms"]
    nearest = fitted["arms"]["nearest_text"]
    (row,) = [
        line for line in said.splitlines() if line.startswith("│ nearest by text ")
    ]
    for split in ("dev", "test"):
        assert f" {100 * nearest[split]:.1f} " in row, "every way stands in a table"
    assert fitted["calls"]["training"] > 0, "the pilot is asked without torch too"

    lever(
        "pack",
        "bundles/capitals.run",
        "--arm",
        "nearest_text",
        "--out",
        "near",
        "--store",
        "scores.db",
    )
    chosen = json.loads(
        lever("select", "near", "--question", QUESTION["question"], "-k", "2", "--json")
    )
    program = f"""
import sys
from leverplus import Selector
demos = Selector.load("near").select(**{QUESTION!r})
assert "torch" not in sys.modules
print(*(demo.id for demo in demos))
"""
    in_python = python("-c", program).split()
    with serving(
        Path("near"), Path("log"), PYTHONPATH=os.environ["PYTHONPATH"]
    ) as service:
        served = httpx.post(f"{service.address}/select", json=QUESTION).json()["demos"]
    assert [demo["answer"] for demo in served] == ["tokyo", "tokyo"]
    assert (
        [demo["id"] for demo in served]
        == [demo["id"] for demo in chosen["demos"]]
        == in_python
    )


def test_a_recorded_table_replays_without_torch_and_names_the_extra_that_reads_it(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lever(
        "fit",
        f"{OKVQA}.jsonl",
        "--model",
        OKVQA,
        "--embed",
        "tables:okvqa-vectors.npz",
        code=1,
    )
    assert 'pip install -e ".[tables]"' in said
    monkeypatch.setenv("BLOCKED", "torch transformers")
    lever(
        "fit",
        f"{OKVQA}.jsonl",
        "--model",
        OKVQA,
        "--embed",
        "tables:okvqa-vectors.npz",
        "--out",
        "okvqa",
    )
    assert json.loads(Path("okvqa/fit.json").read_text())["recommended"]["arm"]


REFUSED = {
    "run world --out w": "train",
    "fit d.jsonl --model some/model": "hf",
    "fit d.jsonl --model m:ask --embed clip": "hf",
    "fit d.parquet --model m:ask": "tables",
    "store export scores.parquet --store scores.db": "tables",
    "import old.pt": "train",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_needs_torch_is_refused_with_the_extra_that_brings_it(
    command: str, bare: Path
) -> None:
    rows = [
        {"question": f"what is {number}?", "answer": str(number % 7)}
        for number in range(60)
    ]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("m.py").write_text("def ask(prompt):\n    return '1'\n")
    Path("old.pt").write_bytes(b"PK")
    Path("d.parquet").write_bytes(b"PAR1")
    ScoreStore(Path("scores.db")).close()
    said = lever(*command.split(), code=1)
    assert f'pip install -e ".[{REFUSED[command]}]"' in said


def test_a_trained_selector_is_refused_with_the_extra_that_brings_it(
    tiny_run: TinyRun, bare: Path
) -> None:
    packed = [
        "pack",
        str(tiny_run.folder),
        "--arm",
        "learned",
        "--out",
        "trained",
        "--store",
        str(tiny_run.store),
    ]
    assert main(packed) == 0
    said = lever("select", "trained", "--question", "what is it?", code=1)
    assert (
        'this bundle\'s trained selector needs torch, which is not installed; type `pip install -e ".[train]"`'
        in said
    )


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS.values(), *PART_EXTRAS.values()} <= set(
        project["optional-dependencies"]
    )
    brought = {line.partition(">")[0] for line in project["dependencies"]}
    assert not brought & set(EXTRAS)
