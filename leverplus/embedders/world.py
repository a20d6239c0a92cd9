"""The world's tiny dual encoder as an embedder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from leverplus.embedders.base import Vectors
from leverplus.tasks.base import Task
from leverplus.tasks.world import WorldTask
from leverplus.types import Item
from leverplus.world.model import normalise_pictures
from leverplus.world.weights import ENCODER, digest, load_encoder
from leverplus.world.words import END, PAD, answer_tokens, question_tokens

BATCH = 512


class WorldEmbedder:
    """Unit vectors of 64 numbers for pictures, questions and answers."""

    def __init__(self) -> None:
        self.encoder = load_encoder()

    def fingerprint(self) -> Mapping[str, str]:
        return {"embedder": "world-dual-encoder", "revision": digest(ENCODER)}

    @torch.inference_mode()
    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        assert isinstance(task, WorldTask)
        pictures = task.pictures(items)
        image = [
            self.encoder.embed_pictures(normalise_pictures(pictures[start : start + BATCH]))
            for start in range(0, len(items), BATCH)
        ]
        question = torch.tensor([question_tokens(item.question) for item in items])
        answer = torch.tensor([answer_tokens(item.answer if item.answers else "") for item in items])
        answers = self.encoder.embed_words(answer.masked_fill(answer == END, PAD)).numpy()
        answers = answers * np.array([[bool(item.answers)] for item in items], dtype=np.float32)
        return Vectors(torch.cat(image).numpy(), self.encoder.embed_words(question).numpy(), answers)
