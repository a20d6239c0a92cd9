"""The tiny dual encoder of the world: embeds pictures and words in one space of unit vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from leverplus.world.model import picture_tower
from leverplus.world.words import PAD, VOCABULARY

DIMENSIONS = 64
CHANNELS = (24, 48, 64, 96)


class DualEncoder(nn.Module):
    """A convolutional picture tower and a bag-of-words text tower, trained contrastively; 0.2 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = picture_tower(CHANNELS)
        self.project = nn.Linear(CHANNELS[-1] * 4, DIMENSIONS)
        self.words = nn.Embedding(len(VOCABULARY), 128)
        self.text = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, DIMENSIONS))
        self.scale = nn.Parameter(torch.tensor(2.3))  # log of the contrastive loss's scale: starts at exp(2.3) = 10

    def embed_pictures(self, pictures: Tensor) -> Tensor:
        """Unit vectors (N, 64) of normalised pictures."""
        return functional.normalize(self.project(self.tower(pictures)), dim=-1)

    def embed_words(self, ids: Tensor) -> Tensor:
        """Unit vectors (N, 64) of texts given as token ids (N, T), padding left out of the mean."""
        keep = (ids != PAD).float()[:, :, None]  # (N, T, 1)
        mean = (self.words(ids) * keep).sum(1) / keep.sum(1).clamp(min=1)  # (N, 128)
        return functional.normalize(self.text(mean), dim=-1)
