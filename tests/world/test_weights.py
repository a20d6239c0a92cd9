"""Weights: small enough to ship, with a card, and a file that is missing or damaged is named in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from leverplus.errors import CheckpointError, MissingFile
from leverplus_lab.world.weights import (
    ENCODER,
    FOLDER,
    MODEL,
    digest,
    load_encoder,
    load_lvlm,
    read_card,
)

FILES = [(MODEL, load_lvlm), (ENCODER, load_encoder)]


def test_both_files_together_stay_under_8_megabytes_and_the_model_under_4_million_parameters() -> (
    None
):
    assert sum((FOLDER / name).stat().st_size for name in (MODEL, ENCODER)) <= 8_000_000
    assert sum(parameter.numel() for parameter in load_lvlm().parameters()) <= 4_000_000


@pytest.mark.parametrize(("name", "load"), FILES)
def test_weights_ship_in_half_precision_and_work_in_single(
    name: str, load: object
) -> None:
    assert {tensor.dtype for tensor in load_file(FOLDER / name).values()} == {
        torch.float16
    }
    module = load()
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert not module.training


@pytest.mark.parametrize("name", [MODEL, ENCODER])
def test_a_card_says_how_the_weights_were_made(name: str) -> None:
    card = read_card(FOLDER / name)
    assert {"seed", "steps", "batch", "learning_rate", "encoder_steps"} <= set(
        card["settings"]
    )
    assert card["torch"]


@pytest.mark.parametrize(("name", "load"), FILES)
def test_a_missing_file_is_named_with_what_to_type(
    name: str, load: object, tmp_path: Path
) -> None:
    with pytest.raises(MissingFile) as caught:
        load(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "type `git checkout leverplus_lab`" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "load"), FILES)
@pytest.mark.parametrize(
    "damage", ["empty", "cut in half", "no card", "other tensors", "text"]
)
def test_a_damaged_file_is_named_in_one_sentence(
    name: str, load: object, damage: str, tmp_path: Path
) -> None:
    path, content = tmp_path / name, (FOLDER / name).read_bytes()
    if damage == "no card":
        save_file(load_file(FOLDER / name), path)
    elif damage == "other tensors":
        shutil.copy(FOLDER / name, path)
        card = {"format": "pt", "card": '{"settings": {"layers": 3}}'}
        save_file({"stranger": torch.zeros(2)}, path, metadata=card)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "cut in half": content[: len(content) // 2],
                "text": b"hello" * 99,
            }[damage]
        )
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"the world's weight file {path} is damaged (")
    assert "\n" not in str(caught.value)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    assert digest(MODEL) != digest(ENCODER) != digest("other", tmp_path)
    assert digest(MODEL, FOLDER) == digest(MODEL)
