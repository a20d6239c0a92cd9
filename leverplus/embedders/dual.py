"""CLIP and SigLIP: encoders that put pictures and texts into one space, so that their mean is a vector of it too.

Pictures are prepared by Pillow: torchvision is not needed, and its presence does not change a vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from leverplus.recipe.sections import EmbedSection

if TYPE_CHECKING:
    from PIL import Image

DEFAULTS = {"clip": "openai/clip-vit-base-patch32", "siglip": "google/siglip-base-patch16-224"}


def clip(section: EmbedSection) -> PictureTextEncoder:
    """A CLIP: each batch of texts is padded to its longest."""
    return PictureTextEncoder(section, ("clip",), pad="longest")


def siglip(section: EmbedSection) -> PictureTextEncoder:
    """A SigLIP: it was trained on texts padded to one length, without an attention mask, and is called the same way."""
    return PictureTextEncoder(section, ("siglip", "siglip2"), pad="max_length")


class PictureTextEncoder:
    """Unit vectors of pictures and texts, of one width."""

    sees = True

    def __init__(self, section: EmbedSection, kinds: Sequence[str], *, pad: str) -> None:
        transformers = require_transformers()
        source = locate(section.model or DEFAULTS[section.name])
        found = load_pretrained(transformers.AutoConfig.from_pretrained, source).model_type
        if found not in kinds:
            raise LeverError(
                f"embed.model: {source} is a {found}, but embed.name = {section.name} reads {' or '.join(kinds)}"
            )
        self.name, self.pad = section.name, pad
        self.network: Any = load_pretrained(transformers.AutoModel.from_pretrained, source, dtype=torch.float32)
        self.network.eval().requires_grad_(False).to(device_named(section.device))
        self.tokenizer = load_pretrained(transformers.AutoTokenizer.from_pretrained, source)
        self.tokenizer_text = tokenizer_text(self.tokenizer)
        self.processor = load_pretrained(transformers.AutoImageProcessor.from_pretrained, source, backend="pil")
        self.longest = int(self.network.config.text_config.max_position_embeddings)

    def fingerprint(self) -> Mapping[str, str]:
        preparation = json.dumps(self.processor.to_dict(), sort_keys=True, default=str)
        revision = weights_digest(self.network, self.tokenizer_text, preparation, str(self.longest))
        return {"embedder": self.name, "revision": revision, "pictures": "pillow"}

    def texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(
            list(texts), padding=self.pad, truncation=True, max_length=self.longest, return_tensors="pt"
        )
        inputs = {"input_ids": tokens["input_ids"].to(self.network.device)}  # (N, tokens)
        if self.pad != "max_length":
            inputs["attention_mask"] = tokens["attention_mask"].to(self.network.device)
        features = self.network.get_text_features(**inputs).pooler_output  # (N, D)
        return F.normalize(features, dim=-1)

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        inputs = self.processor([picture.convert("RGB") for picture in pictures], return_tensors="pt")
        inputs = inputs.to(self.network.device)  # pixel_values (N, 3, side, side)
        features = self.network.get_image_features(**inputs).pooler_output  # (N, D)
        return F.normalize(features, dim=-1)
