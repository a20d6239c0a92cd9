"""The shipped weights of the world's two models, and where they come from."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from leverplus.errors import CheckpointError, MissingFile
from leverplus.world.encoder import DualEncoder
from leverplus.world.model import ModelConfig, TinyLVLM

FOLDER = Path(__file__).parent / "weights"
MODEL, ENCODER = "model.safetensors", "encoder.safetensors"


def load_model(folder: Path = FOLDER) -> TinyLVLM:
    """The tiny vision-language model, ready to answer, in float32."""
    path = _present(folder / MODEL)
    with _opened(path) as file:
        card = json.loads(file.metadata()["card"])
        model = TinyLVLM(ModelConfig(layers=int(card["settings"]["layers"])))
        model.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118
    return model.eval()


def load_encoder(folder: Path = FOLDER) -> DualEncoder:
    """The tiny dual encoder, ready to embed, in float32."""
    encoder = DualEncoder()
    with _opened(_present(folder / ENCODER)) as file:
        encoder.load_state_dict({name: file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118
    return encoder.eval()


@cache
def digest(name: str, folder: Path = FOLDER) -> str:
    """The first 16 hex digits of a weight file's SHA-256: the revision of that model."""
    with _present(folder / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _present(path: Path) -> Path:
    if not path.is_file():
        raise MissingFile(
            f"the world's weight file {path} is not there; reinstall with `pip install --force-reinstall leverplus`, "
            "or make it again with `python -m leverplus.world.pretrain --out DIR`"
        )
    return path


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(f"the world's weight file {path} is damaged ({error}); reinstall the package") from error
