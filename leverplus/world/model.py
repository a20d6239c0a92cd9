"""The tiny vision-language model of the world: a decoder that reads pictures, questions and shown answers.

An item is nine tokens: two for the picture, four question words, `<ask>`, two answer words. A prompt is up to eight
such items and then the query's first seven tokens. `extend` runs any number of new tokens on top of remembered keys and
values, so that demonstrations shared by many prompts are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from leverplus.world.words import ANSWER_WORDS, ASK, QUESTION_WORDS, VOCABULARY

IMAGE_TOKENS = 2
PROMPT_TOKENS = IMAGE_TOKENS + QUESTION_WORDS + 1  # 7: <ask> ends the question
ITEM_TOKENS = PROMPT_TOKENS + ANSWER_WORDS  # 9
MAX_DEMOS = 8

KeyValues = list[tuple[Tensor, Tensor]]
"""Per layer the keys and values (N, heads, tokens, width / heads)."""


@dataclass(frozen=True)
class ModelConfig:
    width: int = 192
    layers: int = 3
    heads: int = 6
    channels: tuple[int, ...] = (32, 64, 96, 128)


def picture_tower(channels: tuple[int, ...]) -> nn.Sequential:
    """Four stride-2 convolutions: (N, 3, 32, 32) -> (N, last channels * 4)."""
    layers: list[nn.Module] = []
    for before, after in zip((3, *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GELU()]
    return nn.Sequential(*layers, nn.Flatten())


def normalise_pictures(pictures: Tensor) -> Tensor:
    """Bytes 0..255 to floats around zero."""
    return pictures.float() / 127.5 - 1.0


class DecoderBlock(nn.Module):
    """A pre-norm transformer block whose attention can look back at remembered keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        n, tokens, width = x.shape
        parts = self.into(self.norm_attention(x)).view(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (N, heads, T, d) each
        keys, values = key, value
        if past is not None:
            keys = torch.cat([past[0], key], 2)  # (N, heads, P + T, d)
            values = torch.cat([past[1], value], 2)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, tokens, width))
        x = x + self.down(functional.gelu(self.up(self.norm_mlp(x))))
        return x, (key, value)


class TinyLVLM(nn.Module):
    """Answers questions about pictures, using demonstrations in its context; 1.8 M parameters."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.tower = picture_tower(config.channels)
        self.project = nn.Linear(config.channels[-1] * 4, IMAGE_TOKENS * config.width)
        self.words = nn.Embedding(len(VOCABULARY), config.width)
        self.positions = nn.Embedding(ITEM_TOKENS * (MAX_DEMOS + 1), config.width)
        self.blocks = nn.ModuleList(DecoderBlock(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)  # as in GPT-2
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def see(self, pictures: Tensor) -> Tensor:
        """Picture tokens (N, 2, width) of normalised pictures (N, 3, 32, 32)."""
        tokens: Tensor = self.project(self.tower(pictures)).unflatten(1, (IMAGE_TOKENS, -1))
        return tokens

    def item_inputs(self, seen: Tensor, question: Tensor, answer: Tensor | None) -> Tensor:
        """Token inputs (N, 9 or 7, width) from picture tokens, question ids (N, 4) and answer ids (N, 2) or None."""
        ask = torch.full_like(question[:, :1], ASK)
        parts = [question, ask] if answer is None else [question, ask, answer]
        words = self.words(torch.cat(parts, 1))  # (N, 7 or 5, width)
        return torch.cat([seen, words], 1)

    def extend(
        self, inputs: Tensor, start: int, past: KeyValues | None, mask: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        """Runs new tokens (N, T, width) that begin at position `start`, after the P tokens of `past`.

        `mask` (T, P + T) is True where a new token may attend to a token.

        Returns the hidden states (N, T, width) and the new tokens' own keys and values.
        """
        place = torch.arange(start, start + inputs.shape[1], device=inputs.device)  # (T,)
        return self.run(inputs + self.positions(place), past, mask)

    def run(self, x: Tensor, past: KeyValues | None, mask: Tensor | None) -> tuple[Tensor, KeyValues]:
        """The same for inputs (N, T, width) that already hold their positions."""
        remembered: KeyValues = []
        for index, block in enumerate(self.blocks):
            own_past = None if past is None else past[index]
            x, own = block(x, own_past, mask)
            remembered.append(own)
        return self.norm(x), remembered

    def word_logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary (N, ..., V); the output shares its weights with the word embedding."""
        return functional.linear(hidden, self.words.weight)
