"""The world's tiny dual encoder as an embedder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from leverplus.embedders.base import Vectors
from leverplus.errors import DataError
from leverplus.recipe.sections import EmbedSection
from leverplus.tasks.base import Task
from leverplus.tasks.world import WorldTask, picture_tensor
from leverplus.types import Item
from leverplus.world.model import normalise_pictures
from leverplus.world.weights import ENCODER, digest, load_encoder
from leverplus.world.words import END, PAD, answer_tokens, question_tokens

BATCH = 512  # pictures at a time, which bounds the memory of the activations

_EMBEDDED: list[tuple[Sequence[Item], Vectors]] = []
"""The demonstrations of the world used last and their vectors: every run of a process reads the same 8,000."""


def world_embedder(_section: EmbedSection) -> WorldEmbedder:
    """The embedder `world` of a recipe; it brings its own weights and reads no setting."""
    return WorldEmbedder()


class WorldEmbedder:
    """Unit vectors of 64 numbers for pictures, questions and answers."""

    def __init__(self) -> None:
        self.encoder = load_encoder()

    def fingerprint(self) -> Mapping[str, str]:
        return {"embedder": "world-dual-encoder", "revision": digest(ENCODER)}

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        if not isinstance(task, WorldTask) or items is not task.items("train"):
            return self._embed(items, task)
        for known, vectors in _EMBEDDED:
            if known is items:
                return vectors
        own = self._embed(items, task)
        _EMBEDDED[:] = [(items, own)]
        return own

    @torch.inference_mode()
    def _embed(self, items: Sequence[Item], task: Task) -> Vectors:
        pictures = task.pictures(items) if isinstance(task, WorldTask) else scaled_pictures(items, task)
        blocks = []
        for start in range(0, len(items), BATCH):
            batch = normalise_pictures(pictures[start : start + BATCH])
            blocks.append(self.encoder.embed_pictures(batch))  # (batch, 64)
        image = torch.cat(blocks).numpy()  # (N, 64)
        question = torch.tensor([question_tokens(item.question) for item in items])  # (N, question tokens)
        text = self.encoder.embed_words(question).numpy()  # (N, 64)
        answer = torch.tensor([answer_tokens(item.answer if item.answers else "") for item in items])
        answer = answer.masked_fill(answer == END, PAD)  # the encoder knows words only, not the end of an answer
        has_answer = np.array([[bool(item.answers)] for item in items], dtype=np.float32)  # (N, 1)
        answers = self.encoder.embed_words(answer).numpy() * has_answer  # (N, 64)
        return Vectors(image, text, answers)


def scaled_pictures(items: Sequence[Item], task: Task) -> Tensor:
    """Pictures (N, 3, 32, 32) uint8 of a task other than the world's own."""
    pictures = []
    for item in items:
        picture = task.image(item)
        if picture is None:
            raise DataError(f"item {item.id} has no picture, and the world's model needs one; pass --image FILE")
        pictures.append(picture_tensor(picture))  # (3, 32, 32)
    return torch.stack(pictures)
