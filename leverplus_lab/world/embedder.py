"""The world's tiny dual encoder as an embedder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.encode.base import Vectors
from leverplus.encode.settings import EmbedSection
from leverplus.errors import DataError
from leverplus_lab.world.model import normalise_pictures
from leverplus_lab.world.task import WorldTask, picture_tensor
from leverplus_lab.world.weights import ENCODER, digest, load_encoder
from leverplus_lab.world.words import END, PAD, answer_tokens, question_tokens

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
        if isinstance(task, WorldTask):
            pictures = task.pictures(items)
        else:
            pictures = scaled_pictures(items, task)
        blocks = []
        for start in range(0, len(items), BATCH):
            batch = normalise_pictures(pictures[start : start + BATCH])
            blocks.append(self.encoder.embed_pictures(batch))  # (batch, 64)
        image = torch.cat(blocks).numpy()  # (N, 64)
        questions = []
        shown = []
        for item in items:
            questions.append(question_tokens(item.question))
            shown.append(answer_tokens(item.answer if item.answers else ""))
        text = self.encoder.embed_words(torch.tensor(questions)).numpy()  # (N, 64)
        answer = torch.tensor(shown)
        # the encoder knows words only, not the end of an answer
        words = self.encoder.embed_words(answer.masked_fill(answer == END, PAD))
        known = [[bool(item.answers)] for item in items]
        has_answer = np.array(known, np.float32)  # (N, 1)
        return Vectors(image, text, words.numpy() * has_answer)


def scaled_pictures(items: Sequence[Item], task: Task) -> Tensor:
    """Pictures (N, 3, 32, 32) uint8 of a task other than the world's own."""
    pictures = []
    for item in items:
        picture = task.image(item)
        if picture is None:
            raise DataError(
                f"item {item.id} has no picture, and the world's model needs one; pass --image FILE"
            )
        pictures.append(picture_tensor(picture))  # (3, 32, 32)
    return torch.stack(pictures)
