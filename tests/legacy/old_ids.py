"""The earlier code's language models over ids (v0) and its v2 with adapters (LoRA), with small sizes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leverplus_lab.selectors.adapters import TARGETS


class OldIds(nn.Module):
    """[BOS, QUERY, icd ...] as ids; vectors of a query are added at place 1, those of the examples from place 2 on."""

    def __init__(
        self, model: str, items: int, width: int, vectors: int, *, adapter: bool
    ) -> None:
        super().__init__()
        self.items, self.adapter = items, adapter
        if model == "gpt2":
            from transformers import GPT2Config, GPT2LMHeadModel

            self.lm_model = GPT2LMHeadModel(
                GPT2Config(vocab_size=items + 3, n_embd=width, n_head=8, n_layer=2)
            )
        else:
            self.vocab_embedding = nn.Embedding(items + 3, width)
            self.lm_model = nn.LSTM(width, width, 2, dropout=0.1, batch_first=True)
            self.proj = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, items + 3)
            )
        between = 4 * width if model == "gpt2" else width
        if adapter:
            self.img_adapter = nn.Sequential(
                nn.Linear(vectors, between), nn.ReLU(), nn.Linear(between, width)
            )
            self.sen_adapter = nn.Sequential(
                nn.Linear(vectors, between), nn.ReLU(), nn.Linear(between, width)
            )

    def forward(
        self, query: Mapping[str, Tensor], shown: Mapping[str, Tensor], picks: Tensor
    ) -> Tensor:
        """Scores (B, vocabulary) of what follows `picks` (B, S); vectors are (B, D) of queries, (B, S, D) of picks."""
        start = torch.tensor([self.items + 1, self.items + 2]).expand(len(picks), 2)
        ids = torch.cat([start, picks], dim=1)
        gpt2 = not hasattr(self, "vocab_embedding")
        embeds = (self.lm_model.transformer.wte if gpt2 else self.vocab_embedding)(
            ids
        ).clone()
        for name, start_of in (("image", "img"), ("text", "sen")):
            change = (
                getattr(self, f"{start_of}_adapter") if self.adapter else nn.Identity()
            )
            embeds[:, 1] += change(query[name])
            embeds[:, 2:] += change(shown[name])
        if gpt2:
            return self.lm_model(inputs_embeds=embeds).logits[:, -1]
        return self.proj(self.lm_model(embeds)[0])[:, -1]


def lora_state(network: nn.Module, rank: int, seed: int = 0) -> dict[str, Tensor]:
    """PEFT's matrices for every attention projection of CLIP, as a Lightning file of v2_lora names them."""
    noise = torch.Generator().manual_seed(seed)
    state = {}
    for name, part in network.named_modules():
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] in TARGETS:
            encoder = "sen_model" if name.startswith("text_model.") else "img_model"
            start = f"lever_lm.{encoder}.base_model.model.{name}"
            state[f"{start}.lora_A.default.weight"] = torch.randn(
                rank, part.in_features, generator=noise
            )
            state[f"{start}.lora_B.default.weight"] = 0.1 * torch.randn(
                part.out_features, rank, generator=noise
            )
            state[f"{start}.base_layer.weight"] = part.weight.detach().clone()
    return state
