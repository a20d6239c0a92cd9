"""Checkpoints: saved and loaded policies are identical; anything that does not fit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from leverplus import catalog
from leverplus.errors import CheckpointError
from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint
from leverplus.learn.policies.base import Features, Policy
from leverplus.learn.policies.build import build_policy

DIMS = {"image": 6, "text": 6, "answer": 6}


def policy_of(name: str, seed: int = 3) -> Policy:
    config = catalog.load(catalog.POLICIES, name, "preset")
    small = replace(config, hidden=8, heads=2 if config.heads > 1 else 1)
    return build_policy(small, DIMS, items=9, seed=seed).eval()


def features() -> Features:
    generator = torch.Generator().manual_seed(0)
    items = {name: torch.randn(9, 6, generator=generator) for name in DIMS}
    query = {name: torch.randn(2, 6, generator=generator) for name in ("image", "text")}
    return Features(
        query, items, torch.tensor([[0, 2, 4, 6, 8], [1, 3, 5, 7, 8]]), torch.arange(9)
    )


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "c", policy_of("recurrent"))
    tensors = load_file(folder / "model.safetensors")
    gone = tensors.pop("state.cell.weight_ih")
    tensors["state.cell.weight"] = gone
    tensors["step_vectors"] = tensors["step_vectors"][:1].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    for part in (
        "missing: state.cell.weight_ih",
        "unexpected: state.cell.weight",
        "step_vectors is (1, 8)",
    ):
        assert part in str(caught.value)


def test_a_folder_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(tmp_path)
    folder = save_checkpoint(tmp_path / "c", policy_of("recurrent"))
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(folder)
    description = json.loads((folder / "config.json").read_text())
    description["config"]["trunk"] = "unknown"
    (folder / "config.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="trunk"):
        load_checkpoint(folder)


def test_writing_again_replaces_the_whole_folder_and_leaves_nothing_beside(
    tmp_path: Path,
) -> None:
    save_checkpoint(tmp_path / "c", policy_of("recurrent"))
    save_checkpoint(tmp_path / "c", policy_of("cross_attention"))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert load_checkpoint(tmp_path / "c")[0].config.state == "none"
