"""Loads the shipped weights of the world's two models, and tells how they were made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import nn

from leverplus.errors import CheckpointError, MissingFile
from leverplus_lab.world.model import DualEncoder, ModelConfig, TinyLVLM

FOLDER = Path(__file__).parent / "weights"
MODEL = "model.safetensors"
ENCODER = "encoder.safetensors"
AGAIN = "type `git checkout leverplus_lab` in the clone of leverplus, or install its wheel again with --force-reinstall"

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def load_lvlm(folder: Path = FOLDER) -> TinyLVLM:
    """The tiny vision-language model, ready to answer, in float32."""
    return _load(
        folder / MODEL,
        lambda card: TinyLVLM(ModelConfig(layers=int(card["settings"]["layers"]))),
    )


def load_encoder(folder: Path = FOLDER) -> DualEncoder:
    """The tiny dual encoder, ready to embed, in float32."""
    return _load(folder / ENCODER, lambda _: DualEncoder())


def read_card(path: Path) -> dict[str, Any]:
    """How a weight file was made: the settings of the pretraining, the version of torch, the seconds it took."""
    with safe_open(_present(path), framework="pt") as file:
        card: dict[str, Any] = json.loads(file.metadata()["card"])
        return card


@cache
def digest(name: str, folder: Path = FOLDER) -> str:
    """The first 16 hex digits of a weight file's SHA-256: the revision of that model."""
    with _present(folder / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _present(path: Path) -> Path:
    if not path.is_file():
        raise MissingFile(f"the world's weight file {path} is not there; {AGAIN}")
    return path


def _load(path: Path, build: Callable[[dict[str, Any]], ModuleT]) -> ModuleT:
    """The module that a weight file's card describes, with its weights; a damaged file is answered with a sentence."""
    try:
        module = build(read_card(path))
        with safe_open(path, framework="pt") as file:
            # shipped in half precision, computed in float32
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
            module.load_state_dict(weights)
    except (
        SafetensorError,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"the world's weight file {path} is damaged ({reason}); {AGAIN}"
        ) from error
    return module.eval()
