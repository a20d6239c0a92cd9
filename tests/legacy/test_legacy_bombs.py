"""Checkpoints made to hurt: each is one sentence, at once, and takes no memory to speak of."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from legacy_files import OldSelector

from leverplus.cli.main import main
from leverplus.errors import CheckpointError, LeverError
from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.presets import CROSS_ATTENTION
from leverplus_lab.legacy.checkpoints import read_legacy

ROOT = Path(__file__).parents[2]


def state() -> dict[str, torch.Tensor]:
    return dict(OldSelector(layers=1, variant="").state_dict())


def laughs() -> list[Any]:
    """Lists that hold the list before ten times over: 10^12 values in a few hundred bytes."""
    value: list[Any] = ["ha"] * 10
    for _ in range(11):
        value = [value] * 10
    return value


BOMBS: dict[str, Any] = {
    "480 GB": lambda: {
        "model_state_dict": {
            **state(),
            "query_proj.weight": torch.zeros(1).expand(10**6, 120_000),
        }
    },
    "10^9 layers": lambda: {
        "state_dict": state(),
        "hyper_parameters": {"num_layers": 10**9},
    },
    "layers in words": lambda: {
        "state_dict": state(),
        "hyper_parameters": {"num_layers": "many"},
    },
    "a width without numbers": lambda: {
        "model_state_dict": {**state(), "query_proj.weight": torch.zeros(10**9, 0)}
    },
    "steps without numbers": lambda: {
        "model_state_dict": {**state(), "step_emb.weight": torch.zeros(10**9, 0)}
    },
    "one number for a matrix": lambda: {
        "model_state_dict": {**state(), "query_proj.weight": torch.tensor(1.0)}
    },
    "a sparse matrix": lambda: {
        "model_state_dict": {**state(), "query_proj.weight": torch.eye(4).to_sparse()}
    },
    "complex numbers": lambda: {
        "model_state_dict": {**state(), "query_proj.weight": torch.ones(4, 4) * 1j}
    },
    "a tensor alone": lambda: torch.zeros(3),
    "a list": lambda: [1, 2, 3],
    "nothing": lambda: None,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_checkpoint_that_claims_what_it_does_not_hold_is_one_sentence(
    tmp_path, name, capsys
) -> None:
    path = tmp_path / "bomb.pt"
    torch.save(BOMBS[name](), path)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(CheckpointError, match=r"bomb\.pt"):
        read_legacy(path)
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    assert main(["import", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_values_beside_the_weights_that_multiply_are_left_out(tmp_path) -> None:
    torch.save(
        {"model_state_dict": state(), "metrics": laughs(), "epoch": 3},
        tmp_path / "laughs.pt",
    )
    legacy = read_legacy(tmp_path / "laughs.pt")
    assert legacy.facts["meta"] == {"epoch": 3}


@pytest.mark.slow
def test_strange_files_are_one_sentence(tmp_path, capsys) -> None:
    torch.save({"model_state_dict": state()}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    rng = random.Random(0)
    strange = {
        "empty": b"",
        "text": b"not a checkpoint\n" * 50,
        "null": b"\0" * 500,
        "noise": rng.randbytes(2_000),
    }
    strange |= {
        f"cut{at}": whole[:at] for at in (10, 300, len(whole) // 2, len(whole) - 30)
    }
    strange |= {f"pickle{n}": b"\x80\x02" + rng.randbytes(60) for n in range(30)}
    for n in range(40):
        hurt = bytearray(whole)
        hurt[rng.randrange(len(hurt))] ^= 1 << rng.randrange(8)
        strange[f"flip{n}"] = bytes(hurt)
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    strange["zip"] = (tmp_path / "zip.pt").read_bytes()
    for name, content in strange.items():
        (tmp_path / "it.pt").write_bytes(content)
        code = main(["import", str(tmp_path / "it.pt")])
        said = capsys.readouterr()
        assert code == 1 or name.startswith("flip")
        assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": 10**9},
        {"layers": 10**9},
        {"slot_layers": 10**9},
        {"hidden": 2**62},
        {"hidden": "wide"},
    ],
    ids=str,
)
def test_a_config_far_larger_than_its_weights_is_one_sentence(tmp_path, change) -> None:
    folder = save_checkpoint(
        tmp_path / "sft",
        build_policy(CROSS_ATTENTION, {"image": 8, "text": 8, "answer": 8}),
    )
    described = json.loads((folder / "config.json").read_text())
    described["config"] |= change
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(LeverError):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "dims",
    [
        None,
        [],
        {"image": 10**12, "text": 8, "answer": 8},
        {"image": "8"},
        {"image": -1},
    ],
)
def test_widths_that_make_no_sense_are_one_sentence(tmp_path, dims) -> None:
    folder = save_checkpoint(
        tmp_path / "sft",
        build_policy(CROSS_ATTENTION, {"image": 8, "text": 8, "answer": 8}),
    )
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "dims": dims}))
    with pytest.raises(LeverError):
        load_checkpoint(folder)


@pytest.mark.slow
def test_an_import_that_is_interrupted_says_so(tmp_path) -> None:
    torch.save({"model_state_dict": state()}, tmp_path / "whole.pt")
    command = [
        sys.executable,
        "-m",
        "leverplus.cli.main",
        "import",
        str(tmp_path / "whole.pt"),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    working = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    maps, deadline = Path(f"/proc/{working.pid}/maps"), time.monotonic() + 30
    while (
        working.poll() is None
        and "libtorch" not in maps.read_text()
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    working.send_signal(signal.SIGINT)  # while torch is being loaded
    _, said = working.communicate(timeout=60)
    assert working.returncode == 130
    assert "stopped by SIGINT" in said
    assert "Traceback" not in said
