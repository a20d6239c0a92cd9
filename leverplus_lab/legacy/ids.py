"""Language models over item ids (v0): a GPT-2 or an LSTM reads (query, picks so far) and names the next id; their files.

The vocabulary is every item of the index plus EOS, BOS and QUERY. Scores are taken at the ids of the pool, so that a
pool which holds the whole index gives back the choice over all ids. Parts have the names that files of the earlier code
give them, and the GPT-2 is that of transformers.

`select.id_form` says how features join the ids, each field by itself: added as it is, or through a small network. A file
says neither how many attention heads there were (8 in every configuration) nor which fields were read; those are taken
from the encoders that stand beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.errors import CheckpointError, TrainingError, needs_extra
from leverplus.learn.checkpoint import tensors_of
from leverplus.learn.policies.base import Encoded, Features, Memory, Policy, State
from leverplus.learn.policies.setterms import chosen_rows
from leverplus.learn.policies.settings import PolicyConfig
from leverplus_lab.legacy.presets import ID_GPT2_FAITHFUL, ID_LSTM_FAITHFUL

SPECIALS = 3
"""Ids behind those of the items: EOS, BOS and QUERY."""

FIELDS = {"image": "img", "text": "sen"}
"""Fields here, and how the names of their parts begin there (`img_model.`, `sen_adapter.`)."""


def _adapter(field: str) -> str:
    """The name of a field's network; the earlier code had none for answers."""
    return f"{FIELDS.get(field, field)}_adapter"


class IdPolicy(Policy):
    """Ids in, ids out: `model = "gpt2"` with tied output, or `"lstm"` with a two-layer output network."""

    GROUPS = {  # noqa: RUF012 read only
        "embedding": (
            "lm_model.transformer.wte",
            "lm_model.transformer.wpe",
            "vocab_embedding.",
            "img_adapter.",
            "sen_adapter.",
            "answer_adapter.",
        ),
        "body": ("lm_model.",),
        "output": ("proj.",),
    }

    def __init__(
        self,
        config: PolicyConfig,
        dims: Mapping[str, int],
        items: int,
    ) -> None:
        super().__init__(config, dims)
        self.items = items
        width = config.hidden
        words = items + SPECIALS
        if config.model == "gpt2":
            self.lm_model: nn.Module = nn.ModuleDict(
                {"transformer": _gpt2(config, words)}
            )
        else:
            between = config.dropout if config.layers > 1 else 0.0
            self.vocab_embedding = nn.Embedding(words, width)
            nn.init.normal_(self.vocab_embedding.weight, std=0.02)
            self.lm_model = nn.LSTM(
                width,
                width,
                config.layers,
                batch_first=True,
                dropout=between,
            )
            self.proj = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, words)
            )
        if config.id_form == "adapter":
            between_width = width * (4 if config.model == "gpt2" else 1)
            for name, size in dims.items():
                network = nn.Sequential(
                    nn.Linear(size, between_width),
                    nn.ReLU(),
                    nn.Linear(between_width, width),
                )
                self.add_module(_adapter(name), network)

    @property
    def _embedding(self) -> nn.Embedding:
        if self.config.model == "lstm":
            return self.vocab_embedding
        return cast(nn.Embedding, self.get_submodule("lm_model.transformer.wte"))

    def _added(self, blocks: Mapping[str, Tensor], fields: tuple[str, ...]) -> Tensor:
        """What is added to ids, (N, H): the unit vectors (N, D) of the fields, each through its network."""
        parts = []
        for name in fields:
            unit = F.normalize(blocks[name], dim=-1)
            if self.config.id_form == "adapter":
                unit = self.get_submodule(_adapter(name))(unit)
            parts.append(unit)
        return torch.stack(parts).sum(0)

    def prepare(self, features: Features) -> Encoded:
        numbers = features.rows
        if numbers is None:
            raise TrainingError(
                f'select.model = "{self.config.model}" needs the row of every item in the index'
            )
        features = self.embedded(features)
        query = self._added(features.query, self.config.query_fields)  # (B, H)
        items = self._added(features.items, self.config.demo_fields)  # (U, H)
        rows = features.gather(numbers)  # (B, K)
        special = torch.arange(self.items, self.items + SPECIALS, device=rows.device)
        end, begin, ask = self._embedding(special)
        asked = ask + query
        start = torch.stack([begin.expand_as(asked), asked], dim=1)  # (B, 2, H)
        tokens = self._embedding(rows)
        seen = tokens + features.gather(items)  # (B, K, H)
        if self.stops:
            last = end.expand(len(rows), 1, -1)
            stop = torch.full_like(rows[:, :1], self.items)
            rows = torch.cat([rows, stop], dim=1)
            tokens = torch.cat([tokens, last], dim=1)
            seen = torch.cat([seen, last], dim=1)
        blocks = {"start": start, "tokens": tokens, "seen": seen, "rows": rows}
        return Encoded(features.mask, blocks)

    def begin(
        self,
        encoded: Encoded,
        members: int,
        steps: int,  # noqa: ARG002
    ) -> Memory:
        start = encoded["start"].unsqueeze(1)
        return {"prefix": start.expand(-1, members, -1, -1)}

    def scores(self, encoded: Encoded, state: State) -> Tensor:
        prefix = state.memory["prefix"]  # (B, G, steps so far, H)
        flat = prefix.flatten(0, 1)
        shape = prefix.shape[:2]
        if self.config.model == "gpt2":
            gpt2 = self.get_submodule("lm_model.transformer")
            read = gpt2(inputs_embeds=flat, use_cache=False).last_hidden_state
            last: Tensor = read[:, -1].reshape(*shape, -1)
            return last @ encoded["tokens"].mT
        states, _ = self.lm_model(flat)
        read = self.proj[:2](states[:, -1])
        read = read.reshape(*shape, -1)
        words = cast(nn.Linear, self.proj[2])
        rows = encoded["rows"]
        weight, bias = words.weight[rows], words.bias[rows]  # (B, A, H), (B, A)
        scores: Tensor = read @ weight.mT + bias.unsqueeze(1)
        return scores

    def remember(
        self,
        encoded: Encoded,
        state: State,
        action: Tensor,
    ) -> Memory:
        seen = chosen_rows(encoded["seen"], action).unsqueeze(2)
        return {"prefix": torch.cat([state.memory["prefix"], seen], dim=2)}


def _gpt2(config: PolicyConfig, words: int) -> nn.Module:
    """The GPT-2 of transformers in the size of a config."""
    with needs_extra('select.model = "gpt2"', "hf"):
        from transformers import GPT2Config, GPT2Model
    sizes = GPT2Config(
        vocab_size=words,
        n_embd=config.hidden,
        n_head=config.heads,
        n_layer=config.layers,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        resid_pdrop=config.dropout,
    )
    return GPT2Model(sizes)


PREFIX = "lever_lm."
MOST_SHOTS = 8

WORDS = {"gpt2": "lm_model.transformer.wte.weight", "lstm": "vocab_embedding.weight"}
LAYERS = {"gpt2": "lm_model.transformer.h.", "lstm": "lm_model.weight_ih_l"}

TIED = "lm_model.lm_head.weight"
"""The second name of GPT-2's embedding."""

MASKS = (".attn.bias", ".attn.masked_bias")
"""The causal mask and its value, which older versions of transformers saved beside the weights."""


def holds_ids(state: Mapping[str, Tensor]) -> bool:
    """Whether a file holds a language model over ids."""
    return any(name.removeprefix(PREFIX).startswith("lm_model.") for name in state)


def id_form(
    state: Mapping[str, Tensor], path: Path
) -> tuple[str, PolicyConfig, dict[str, int], int]:
    """The preset, the config, the widths of its fields, and the size of the index; `state` without its prefix."""
    model = "gpt2"
    if WORDS["lstm"] in state:
        model = "lstm"
    words = state.get(WORDS[model])
    if words is None or words.ndim != 2 or len(words) <= SPECIALS:
        raise CheckpointError(
            f"{path} holds no embedding of ids, so that no selector over ids can be read from it"
        )
    hidden = int(words.shape[1])
    dims: dict[str, int] = {}
    adapted = False
    for field, start in FIELDS.items():
        matrix = state.get(f"{start}_adapter.0.weight")
        if matrix is not None:
            adapted = True
            dims[field] = int(matrix.shape[1])
        elif any(name.startswith(f"{start}_") for name in state):
            dims[field] = hidden
    if not dims:  # the encoders were left out of this file
        dims = dict.fromkeys(FIELDS, hidden)
    layers = set()
    for name in state:
        if name.startswith(LAYERS[model]):
            rest = name.removeprefix(LAYERS[model])
            layers.add(rest.partition(".")[0])
    faithful = {"gpt2": ID_GPT2_FAITHFUL, "lstm": ID_LSTM_FAITHFUL}
    config = replace(
        faithful[model],
        id_form="adapter" if adapted else "added",
        hidden=hidden,
        layers=max(1, len(layers)),
        query_fields=tuple(dims),
        demo_fields=tuple(dims),
        max_shots=MOST_SHOTS,
    )
    return f"id_{model}_faithful", config, dims, len(words) - SPECIALS


def id_notes(config: PolicyConfig, encoders: int) -> list[str]:
    """What a file does not say, and what was taken for it."""
    notes = [
        f"read as seeing {' and '.join(config.query_fields)} of queries and demonstrations; the file does not say, so "
        "change query_fields and demo_fields in the config.json of the import where it was trained otherwise"
    ]
    if encoders:
        notes.append(
            f"{encoders} tensors of its encoders were left out; v0 trained them unless freeze_prefix_list said "
            "otherwise, and here vectors come from the embedder of the run"
        )
    if config.id_form == "adapter":
        notes.append(
            "its adapters read vectors as CLIP gives them unless norm=true was set; here they have length 1"
        )
    return notes


def id_weights(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of a file, without encoders, causal masks and the embedding's second name."""
    kept = {}
    for name, tensor in state.items():
        if not name.startswith(("img_model.", "sen_model.")) and not name.endswith(
            MASKS
        ):
            kept[name] = tensor
    tied = kept.pop(TIED, None)
    words = kept.get(WORDS["gpt2"])
    if tied is not None and words is not None and not torch.equal(tied, words):
        raise CheckpointError(
            f"{path}: {TIED} differs from the embedding, which this selector shares with its output"
        )
    return kept


def ids_there(policy: Policy) -> dict[str, Tensor]:
    """The tensors of a selector over ids as the earlier code names them; another form than its is refused."""
    if policy.stops or "answer" in policy.config.demo_fields:
        raise CheckpointError(
            "this selector cannot be written for the earlier code: it may stop, or sees answers; train "
            "id_gpt2_faithful or id_lstm_faithful instead"
        )
    state = tensors_of(policy)
    if policy.config.model == "gpt2":
        state[TIED] = state[WORDS["gpt2"]]
    return state
