"""The language models over item ids of the earlier code (v0): their tensors under the names of this package and back.

A file says neither how many attention heads there were (8 in every configuration) nor which fields were read; those are
taken from the encoders that stand beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus.errors import CheckpointError
from leverplus.legacy import presets
from leverplus.legacy.id_models import EARLIER_PLACES
from leverplus.policies.base import Policy
from leverplus.recipe.selection import PolicyConfig
from leverplus.training.checkpoint import tensors_of

PREFIX = "lever_lm."
MOST_SHOTS = 8
FIELDS = {"image": "img", "text": "sen"}
"""Fields here, and how the names of their parts begin there (`img_model.`, `sen_adapter.`)."""

NAMES = {
    "gpt2": {
        "lm_model.transformer.wte.weight": "embedding.weight",
        "lm_model.transformer.wpe.weight": "places",
        "lm_model.transformer.ln_f.": "norm.",
        "img_adapter.": "field_networks.networks.image.",
        "sen_adapter.": "field_networks.networks.text.",
    },
    "lstm": {
        "vocab_embedding.weight": "embedding.weight",
        "lm_model.": "lstm.",
        "proj.": "output.",
        "img_adapter.": "field_networks.networks.image.",
        "sen_adapter.": "field_networks.networks.text.",
    },
}
"""How names begin there and here, layers of GPT-2 apart."""

LAYER = {
    "ln_1.": "norm1.",
    "attn.c_attn.": "self_attn.in_proj_",
    "attn.c_proj.": "self_attn.out_proj.",
    "ln_2.": "norm2.",
    "mlp.c_fc.": "linear1.",
    "mlp.c_proj.": "linear2.",
}
"""Parts of a layer of GPT-2, `lm_model.transformer.h.N.` there and `blocks.N.` here."""

TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""Matrices that GPT-2 keeps as (in, out), torch's layers as (out, in)."""

TIED = "lm_model.lm_head.weight"
"""The second name of GPT-2's embedding."""

MASKS = (".attn.bias", ".attn.masked_bias")
"""The causal mask and its value, which older versions of transformers saved beside the weights."""


def holds_ids(state: Mapping[str, Tensor]) -> bool:
    """Whether a file holds a language model over ids."""
    return any(name.removeprefix(PREFIX).startswith("lm_model.") for name in state)


def id_form(state: Mapping[str, Tensor], path: Path) -> tuple[str, PolicyConfig, dict[str, int], int]:
    """The preset, the config, the widths of its fields, and the size of the index; `state` without its prefix."""
    model = "lstm" if "vocab_embedding.weight" in state else "gpt2"
    words = state.get("vocab_embedding.weight" if model == "lstm" else "lm_model.transformer.wte.weight")
    if words is None or words.ndim != 2 or len(words) < 4:
        raise CheckpointError(f"{path} holds no embedding of ids, so that no selector over ids can be read from it")
    hidden = int(words.shape[1])
    maps = {field: state.get(f"{start}_adapter.0.weight") for field, start in FIELDS.items()}
    fields = tuple(field for field, start in FIELDS.items() if any(name.startswith(f"{start}_") for name in state))
    fields = fields or tuple(FIELDS)  # the encoders were left out of this file
    dims = {field: hidden if (matrix := maps[field]) is None else int(matrix.shape[1]) for field in fields}
    start = "lm_model.weight_ih_l" if model == "lstm" else "lm_model.transformer.h."
    config = replace(
        presets.ID_LSTM_FAITHFUL if model == "lstm" else presets.ID_GPT2_FAITHFUL,
        id_form="adapter" if any(matrix is not None for matrix in maps.values()) else "added",
        hidden=hidden,
        layers=max(1, len({name[len(start) :].split(".")[0] for name in state if name.startswith(start)})),
        query_fields=fields,
        demo_fields=fields,
        max_shots=MOST_SHOTS,
    )
    return f"id_{model}_faithful", config, dims, len(words) - 3


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
        notes.append("its adapters read vectors as CLIP gives them unless norm=true was set; here they have length 1")
    return notes


def split_masks(state: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors without encoders, causal masks and the tied output; the masks by name and kind, for an export."""
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(("img_model.", "sen_model."))}
    masks: dict[str, Any] = {}
    for name in [name for name in kept if name.endswith(MASKS)]:
        tensor = kept.pop(name)
        kind, size = str(tensor.dtype).removeprefix("torch."), tensor.shape[-1] if tensor.ndim else 0
        masks[name] = {"kind": kind, "size": size} if tensor.ndim else {"value": float(tensor)}
    tied = kept.pop(TIED, None)
    if tied is not None and not torch.equal(tied, kept.get("lm_model.transformer.wte.weight", tied)):
        raise CheckpointError(f"{path}: {TIED} differs from the embedding, which this selector shares with its output")
    return kept, masks


def ids_here(tensors: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """Tensors of the earlier code under the names of this package; a name it does not know stays as it is."""
    renamed = {}
    for name, tensor in tensors.items():
        turned = model == "gpt2" and name.endswith(TURNED)
        renamed[_name_here(name, model)] = tensor.T.contiguous() if turned else tensor
    return renamed


def _name_here(name: str, model: str) -> str:
    layers = "lm_model.transformer.h."
    if model == "gpt2" and name.startswith(layers):
        number, _, part = name[len(layers) :].partition(".")
        return f"blocks.{number}.{_swapped(part, LAYER)}"
    return _swapped(name, NAMES[model])


def _swapped(name: str, table: Mapping[str, str]) -> str:
    start = next((start for start in table if name.startswith(start)), None)
    return name if start is None else table[start] + name[len(start) :]


def ids_there(policy: Policy, masks: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """The tensors of a selector over ids under the names of the earlier code; another form than its is refused."""
    config, own = policy.config, tensors_of(policy)
    if config.id_form == "linear" or policy.stops or "answer" in config.demo_fields:
        raise CheckpointError(
            f'this selector cannot be written for the earlier code: it has select.id_form = "{config.id_form}", may '
            "stop, or sees answers; train id_gpt2_faithful or id_lstm_faithful instead"
        )
    back = {here: there for there, here in NAMES[config.model].items()}
    layer = {here: there for there, here in LAYER.items()}
    state = {}
    for name, tensor in own.items():
        there = _swapped(name, back)
        if name.startswith("blocks."):
            _, number, part = name.split(".", 2)
            there = f"lm_model.transformer.h.{number}.{_swapped(part, layer)}"
        state[there] = tensor.T.contiguous() if config.model == "gpt2" and there.endswith(TURNED) else tensor
    if config.model == "gpt2":
        state[TIED] = state["lm_model.transformer.wte.weight"]
    for name, mask in (masks or {}).items():
        state[name] = torch.tensor(mask["value"]) if "value" in mask else _causal(mask["size"], mask["kind"])
    return state


def _causal(size: int, kind: str) -> Tensor:
    """The mask of a causal model, (1, 1, size, size): 1 where a token may look."""
    size = min(size, EARLIER_PLACES)
    return torch.ones(size, size).tril().to(getattr(torch, kind)).view(1, 1, size, size)
