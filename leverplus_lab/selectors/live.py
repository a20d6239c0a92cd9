"""Embeds items while a selector trains: the vectors of a network with the selector's adapters.

With gradients nothing is kept. Without, every text and picture is embedded once per state of the adapter weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.encode.base import content_key
from leverplus.encode.cached import CachedEmbedder, pictures_of
from leverplus_lab.selectors.adapters import Adapters

Pieces = dict[bytes, Tensor]
"""Unit vectors (D,) of texts or pictures by their content key."""


class LiveEmbedder:
    """The network of an embedder, run with a selector's adapters; `items` gives the view of one table of items."""

    def __init__(self, embedder: CachedEmbedder, task: Task) -> None:
        self.embedder = embedder
        self.task = task
        self.encoder = embedder.encoder
        self.network = self.encoder.network
        self.revision = embedder.fingerprint()["revision"]
        self._kept: Pieces = {}
        self._kept_for = ""

    def items(self, items: Sequence[Item]) -> LiveItems:
        return LiveItems(self, items)

    def pieces(self, wanted: Mapping[bytes, str | Item], adapters: Adapters) -> Pieces:
        """Unit vectors of texts, or of the pictures of items, by their key."""
        if (
            torch.is_grad_enabled()
        ):  # a kept vector would carry the graph of an earlier step
            return self._encode(wanted, adapters)
        digest = adapters.digest()
        if digest != self._kept_for:  # the adapters have learned since
            self._kept = {}
            self._kept_for = digest
        missing = {key: piece for key, piece in wanted.items() if key not in self._kept}
        self._kept |= self._encode(missing, adapters)
        return {key: self._kept[key] for key in wanted}

    def _encode(self, wanted: Mapping[bytes, str | Item], adapters: Adapters) -> Pieces:
        keys = list(wanted)
        found = Pieces()
        with adapters.active(self.network, self.revision):
            for start in range(0, len(keys), self.embedder.batch):
                part = keys[start : start + self.embedder.batch]
                vectors = self._encode_batch(
                    [wanted[key] for key in part]
                )  # (batch, D)
                found.update(zip(part, vectors, strict=True))
        return found

    def _encode_batch(self, pieces: Sequence[str | Item]) -> Tensor:
        """Unit vectors (N, D) of a batch, which holds either texts or items with pictures."""
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if texts:
            vectors: Tensor = self.encoder.texts(texts)
        else:
            items = [piece for piece in pieces if isinstance(piece, Item)]
            vectors = self.encoder.pictures(pictures_of(items, self.task))
        return vectors


class LiveItems:
    """Embeds the items of one table, which are named by their row."""

    def __init__(self, live: LiveEmbedder, items: Sequence[Item]) -> None:
        self.live = live
        self.rows = items

    def encode(
        self, rows: Tensor, fields: Sequence[str], adapters: Adapters
    ) -> dict[str, Tensor]:
        """Blocks (N, D) of the items in these rows (N,); an item without an answer has a zero row, as in `Vectors`."""
        items = [self.rows[row] for row in rows.tolist()]
        blocks = {}
        if "text" in fields:
            blocks["text"] = self._texts([item.question for item in items], adapters)
        if "answer" in fields:
            shown = [item.answer if item.answers else "" for item in items]
            has_answer = torch.tensor(
                [[float(bool(item.answers))] for item in items]
            )  # (N, 1)
            vectors = self._texts(shown, adapters)  # (N, D)
            blocks["answer"] = vectors * has_answer.to(vectors.device)
        if "image" in fields:
            blocks["image"] = self._pictures(items, adapters)
        return blocks

    def _texts(self, texts: Sequence[str], adapters: Adapters) -> Tensor:
        keys = [content_key("text", text) for text in texts]
        found = self.live.pieces(dict(zip(keys, texts, strict=True)), adapters)
        return torch.stack([found[key] for key in keys])

    def _pictures(self, items: Sequence[Item], adapters: Adapters) -> Tensor:
        keys = [
            content_key("image", self.live.task.image_digest(item)) for item in items
        ]
        found = self.live.pieces(dict(zip(keys, items, strict=True)), adapters)
        return torch.stack([found[key] for key in keys])
