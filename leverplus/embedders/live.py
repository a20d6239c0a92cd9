"""Items embedded as training goes on: the vectors of a network with the adapters of a selector.

With gradients nothing is kept. Without, every text and picture is embedded once for the same adapter weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from leverplus.embedders.cache import content_key
from leverplus.embedders.cached import CachedEmbedder
from leverplus.policies.adapters import Adapters
from leverplus.tasks.base import Task
from leverplus.types import Item

Pieces = dict[bytes, Tensor]


class LiveEmbedder:
    """The network of an embedder, asked with adapters; `items` makes the view of one table."""

    def __init__(self, embedder: CachedEmbedder, task: Task) -> None:
        self.embedder, self.task = embedder, task
        self.network = embedder.encoder.network
        self.revision = embedder.fingerprint()["revision"]
        self._kept: Pieces = {}
        self._kept_for = ""

    def items(self, items: Sequence[Item]) -> LiveItems:
        return LiveItems(self, items)

    def pieces(self, wanted: Mapping[bytes, str | Item], adapters: Adapters) -> Pieces:
        """Unit vectors of texts, or of the pictures of items, by their key."""
        if torch.is_grad_enabled():
            return self._encode(wanted, adapters)
        digest = adapters.digest()
        if digest != self._kept_for:
            self._kept, self._kept_for = {}, digest
        self._kept |= self._encode({key: piece for key, piece in wanted.items() if key not in self._kept}, adapters)
        return {key: self._kept[key] for key in wanted}

    def _encode(self, wanted: Mapping[bytes, str | Item], adapters: Adapters) -> Pieces:
        keys, found = list(wanted), Pieces()
        with adapters.active(self.network, self.revision):
            for start in range(0, len(keys), self.embedder.batch):
                part = keys[start : start + self.embedder.batch]
                found.update(zip(part, self._rows([wanted[key] for key in part]), strict=True))
        return found

    def _rows(self, pieces: Sequence[str | Item]) -> Tensor:
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if texts:
            return self.embedder.encoder.texts(texts)
        items = [piece for piece in pieces if isinstance(piece, Item)]
        return self.embedder.encoder.pictures([image for item in items if (image := self.task.image(item)) is not None])


class LiveItems:
    """The items of one table, by row."""

    def __init__(self, live: LiveEmbedder, items: Sequence[Item]) -> None:
        self.live, self.rows = live, items

    def encode(self, rows: Tensor, fields: Sequence[str], adapters: Adapters) -> dict[str, Tensor]:
        """Blocks (N, D) of items by row; an item without an answer has a zero row, as everywhere."""
        items = [self.rows[row] for row in rows.tolist()]
        blocks = {}
        if "text" in fields:
            blocks["text"] = self._texts([item.question for item in items], adapters)
        if "answer" in fields:
            shown = [item.answer if item.answers else "" for item in items]
            has = torch.tensor([[float(bool(item.answers))] for item in items])
            vectors = self._texts(shown, adapters)
            blocks["answer"] = vectors * has.to(vectors.device)
        if "image" in fields or (self.live.embedder.mean and "text" in fields):
            pictures = self._pictures(items, adapters)
            if self.live.embedder.mean:
                blocks["text"] = F.normalize(blocks["text"] + pictures, dim=-1)
            else:
                blocks["image"] = pictures
        return blocks

    def _texts(self, texts: Sequence[str], adapters: Adapters) -> Tensor:
        keys = [content_key("text", text) for text in texts]
        found = self.live.pieces(dict(zip(keys, texts, strict=True)), adapters)
        return torch.stack([found[key] for key in keys])

    def _pictures(self, items: Sequence[Item], adapters: Adapters) -> Tensor:
        keys = [content_key("image", self.live.task.image_digest(item)) for item in items]
        found = self.live.pieces(dict(zip(keys, items, strict=True)), adapters)
        return torch.stack([found[key] for key in keys])
