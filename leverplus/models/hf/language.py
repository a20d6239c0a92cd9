"""Runs the text side of a transformers model: embeddings in; hidden states, next-token logits, keys and values out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leverplus.errors import ScoringError
from leverplus.models.hf.quick import quick_attention
from leverplus.models.hf.tree import Codes

KeysValues = list[tuple[Tensor, Tensor]]
"""Keys and values (B, heads, T, head_dim) of every layer."""

Insert = Callable[[Codes, Tensor], tuple[Tensor, dict[str, Any]]]
"""Puts pictures into embeddings (B, L, D) at the negative codes (B, L); also returns the decoder's further inputs."""

# Kinds of layers whose state is keys and values alone; recurrent ones cannot be shared between prompts.
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class Language:
    """The decoder and the head of a causal or image-text model, called directly: we keep positions, masks and cache."""

    def __init__(self, model: Any, insert: Insert | None = None) -> None:
        self.model = model
        self.decoder: Any = model.get_decoder()
        self.output: Any = model.get_output_embeddings()
        self.embed_table: Any = model.get_input_embeddings()
        self.insert = insert
        self.config = model.config.get_text_config(decoder=True)
        self.device: torch.device = next(self.decoder.parameters()).device
        layers = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        if not layers <= KNOWN_LAYERS:
            raise ScoringError(
                f"the model has layers of kind {', '.join(sorted(layers - KNOWN_LAYERS))}, whose state prompts cannot "
                "share; use a model with attention layers only"
            )
        self.mixed = len(layers) > 1  # some layers with a sliding window, some without
        window = getattr(self.config, "sliding_window", None)
        # A config without `layer_types` (Mistral) has the window in all layers where it names one.
        slides = "sliding_attention" in layers or (
            not getattr(self.config, "layer_types", None) and window
        )
        self.window: int | None = int(window) if slides and window else None

    def embed_tokens(self, ids: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Embeddings (B, L, D) of token ids (B, L), and the decoder's further inputs, of which text has none."""
        embedded: Tensor = self.embed_table(ids)
        return embedded, {}

    def embed(self, codes: Codes) -> tuple[Tensor, dict[str, Any]]:
        """Embeddings (B, L, D) of tokens and pictures, and the decoder's further inputs."""
        ids = torch.from_numpy(np.maximum(codes, 0)).to(
            self.device
        )  # (B, L), token 0 in the places of pictures
        embedded, extras = self.embed_tokens(ids)
        if self.insert is not None and (codes < 0).any():
            return self.insert(codes, embedded)
        return embedded, extras

    def run(
        self,
        embedded: tuple[Tensor, dict[str, Any]],
        positions: Tensor,
        mask: Tensor | None,
        distance: Tensor | None,
        past: KeysValues | None,
    ) -> tuple[Tensor, KeysValues]:
        """Hidden states (B, L, D) of new places, and the keys and values of all T + L.

        `positions` (P, B, L), `mask` and `distance` (B, 1, L, T + L). Without `mask` a place attends to all before it.
        """
        cache = cache_of(past or [])
        if positions.shape[0] == 1:
            positions = positions[
                0
            ]  # (B, L), as models without three dimensions take them
        with quick_attention(self.decoder):
            out = self.decoder(
                inputs_embeds=embedded[0],
                attention_mask=self._masks(mask, distance),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **embedded[1],
            )
        return out.last_hidden_state, [
            (layer.keys, layer.values) for layer in cache.layers
        ]

    def _masks(self, mask: Tensor | None, distance: Tensor | None) -> Any:
        """What the decoder takes as `attention_mask`: one mask, or one per kind of layer."""
        if self.window is None or distance is None:
            return self._as_model_takes(mask)
        if mask is None:
            new, before = (
                distance.shape[2],
                distance.shape[3] - distance.shape[2],
            )  # L and T
            mask = torch.ones(
                new, before + new, dtype=torch.bool, device=self.device
            ).tril(before)[None, None]
            mask = mask.expand_as(distance)  # (B, 1, L, T + L)
        near = mask & (distance < self.window)
        if not self.mixed:
            return self._as_model_takes(near)
        return {
            "full_attention": self._as_model_takes(mask),
            "sliding_attention": self._as_model_takes(near),
        }

    def _as_model_takes(self, mask: Tensor | None) -> Tensor | None:
        """A mask of booleans for torch's attention; of numbers to add to the attention weights for "eager"."""
        if mask is None or self.decoder.config._attn_implementation != "eager":
            return mask
        dtype = self.output.weight.dtype
        added = torch.zeros(mask.shape, dtype=dtype, device=self.device)
        return added.masked_fill(~mask, torch.finfo(dtype).min)

    def head(self, hidden: Tensor) -> Tensor:
        """Next-token logits (N, V) of hidden states (N, D)."""
        logits: Tensor = self.output(hidden)  # (N, V)
        # Some models change their logits after the head: Cohere, Granite and Gemma 2, in this order.
        scale = getattr(self.config, "logit_scale", None)
        if scale is not None:
            logits = logits * scale
        divisor = getattr(self.config, "logits_scaling", None)
        if divisor is not None:
            logits = logits / divisor
        cap = getattr(self.config, "final_logit_softcapping", None)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def cache_of(past: KeysValues) -> Any:
    """What transformers keeps keys and values in, holding these as they are: its own way of filling it copies them."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache: Any = DynamicCache()
    for keys, values in past:
        layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.lazy_initialization(keys, values)
        layer.keys = keys
        layer.values = values
        cache.layers.append(layer)
    return cache
