"""Selector checkpoints of the earlier code: `.pt`, Lightning and "v2 format" files, read strictly and written back.

Files are opened with `weights_only=True`: nothing in them is executed. Attention is named `cross_attn_layers.0.` or, in
code before November 2025 and in files of its converters, `cross_attn.`; both are read. The earlier loader ignored names
it did not know, so a converted file was evaluated with random attention; the report of an import says so.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus.errors import CheckpointError
from leverplus.legacy import id_checkpoints as ids
from leverplus.legacy import presets
from leverplus.legacy.lora import lora_there, read_lora
from leverplus.legacy.weights import check_tensors, is_small, open_file
from leverplus.policies.base import Policy
from leverplus.policies.build import build_policy
from leverplus.recipe.selection import PolicyConfig
from leverplus.rundir import disk_sentence, write_atomically
from leverplus.training.checkpoint import check_sizes, load_weights, tensors_of

PREFIX = "lever_lm.pointer_selector."
PREFIXES = (PREFIX, "pointer_selector.", "")

NAMES = {
    "input_proj.": "trunk.input_item.",
    "cross_attn_layers.": "trunk.attention.",
    "attn_norms.": "trunk.norms.",
    "query_proj.": "trunk.project_query.",
    "cand_proj.": "trunk.project_item.",
    "query_update_gate.": "state.gate.",
    "decoder_gru.": "state.cell.",
    "step_emb.weight": "step_vectors",
    "div_lambda": "terms.mmr.strength",
    "attn_Wq.": "head.query.",
    "attn_Wc.": "head.item.",
    "attn_v.": "head.vector.",
    "bilinear.weight": "head.weight",
    "cand_encoder.layers.": "trunk.pool_encoder.",
    "topic_prototypes": "terms.coverage.prototypes",
    "query_topic_head.": "terms.coverage.need.",
    "cover_lambda": "terms.coverage.strength",
    "dpp_proj.": "terms.dpp.project.",
    "dpp_lambda": "terms.dpp.strength",
    "slot_emb.weight": "asked_slots.vectors",
    "slot_self_attn_layers.": "asked_slots.attention.",
    "slot_norms.": "asked_slots.norms.",
    "slot_cand_attn.": "asked_slots.pool_attention.",
    "slot_cand_norm.": "asked_slots.pool_norm.",
    "refine_attn.": "refine.attention.",
    "refine_norm.": "refine.norm.",
    "refine_mlp.0.": "refine.mlp.0.",
    "refine_mlp.3.": "refine.mlp.2.",  # a dropout stood between
    "stop_token": "stop_vector",
}
"""How names begin there and here."""

BI_ENCODER_NAMES = {
    "query_proj.": "trunk.query_mlp.",
    "cand_proj.": "trunk.item_mlp.",
    "query_update_weight": "state.weight",
}
"""The same for v1, which gives two of the names above to other parts."""

ROW_IN_FRONT = ("bilinear.weight", "stop_token")
"""Tensors that have one row more in front there: (1, ...) instead of (...)."""

NEVER_USED = ("refine_score.",)
"""Tensors that the earlier code made and never used; kept beside the weights, so that a file comes back whole."""

SINGLE = {"cross_attn.": "cross_attn_layers.0.", "attn_norm.": "attn_norms.0."}

FORMS: tuple[tuple[str, str, PolicyConfig], ...] = (
    ("query_update_weight", "bi_encoder_gate_faithful", presets.BI_ENCODER_GATE_FAITHFUL),
    ("slot_emb.weight", "parallel_slots_faithful", presets.PARALLEL_SLOTS_FAITHFUL),
    ("stop_token", "stopping_faithful", presets.STOPPING_FAITHFUL),
    ("refine_attn.in_proj_weight", "two_stage_faithful", presets.TWO_STAGE_FAITHFUL),
    ("refine_mlp.0.weight", "two_stage_faithful", replace(presets.TWO_STAGE_FAITHFUL, refine="mlp")),
    ("topic_prototypes", "topic_coverage_faithful", presets.TOPIC_COVERAGE_FAITHFUL),
    ("dpp_proj.weight", "volume_faithful", presets.VOLUME_FAITHFUL),
    ("bilinear.weight", "bilinear_head_faithful", presets.BILINEAR_HEAD_FAITHFUL),
    ("cand_encoder.layers.0.norm1.weight", "pool_aware_faithful", presets.POOL_AWARE_FAITHFUL),
    ("div_lambda", "diverse_faithful", presets.DIVERSE_FAITHFUL),
    ("attn_Wq.weight", "additive_head_faithful", presets.ADDITIVE_HEAD_FAITHFUL),
    ("decoder_gru.weight_ih", "recurrent_faithful", presets.RECURRENT_FAITHFUL),
    ("query_update_gate.weight", "vector_gate_faithful", presets.VECTOR_GATE_FAITHFUL),
    ("", "cross_attention_faithful", presets.CROSS_ATTENTION_FAITHFUL),
)
"""A tensor that tells a variant, the preset it is, and its config; the first that fits."""


@dataclass(frozen=True)
class LegacyCheckpoint:
    """A selector of the earlier code: the policy, what the file said beside the weights, and what to know about it."""

    policy: Policy
    preset: str
    facts: Mapping[str, Any]
    notes: tuple[str, ...]


def read_legacy(path: Path) -> LegacyCheckpoint:
    """The selector of a file; every tensor that is missing or unknown is named."""
    value = open_file(path)
    layout, state = _state(value, path)
    if ids.holds_ids(state):
        return _read_ids(value, layout, state, path)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in state)), "")
    own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    check_tensors(own, path)
    single = any(name.startswith(tuple(SINGLE)) for name in own)
    tensors = {_renamed(name, SINGLE): tensor.float() for name, tensor in own.items()}
    hyper = value.get("hyper_parameters") if isinstance(value.get("hyper_parameters"), Mapping) else {}
    unused = {name: tensors.pop(name) for name in list(tensors) if name.startswith(NEVER_USED)}
    try:
        preset, config, dims = _form(tensors, hyper or {}, path)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{path} describes a selector with sizes that make no sense ({error})") from error
    check_sizes(config, dims, None, {name: tensor.numel() for name, tensor in tensors.items()}, str(path))
    policy = build_policy(config, dims)
    _fill(policy, tensors, path)
    facts = {"layout": layout, "prefix": prefix, "single": single, "meta": _plain_meta(value)}
    if unused:
        facts["unused"] = {name: tensor.tolist() for name, tensor in unused.items()}
    notes = []
    if single and layout != "pt":
        notes.append(_lost_note(tensors))
    others = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
    check_tensors(others, path)
    policy.adapters, facts["lora"] = read_lora(others, path)
    left = len(others)
    if (adapters := policy.adapters) is not None:
        left -= 2 * len(adapters.shapes)
        notes.append(
            f"adapters (LoRA) of rank {adapters.rank} on {len(adapters.shapes)} projections of CLIP were read; "
            f"the file does not keep alpha, which the configuration set to {adapters.alpha:g}"
        )
    if left:
        notes.append(f"{left} tensors of other parts (frozen encoders) were left out")
    return LegacyCheckpoint(policy.eval(), preset, facts, tuple(notes))


def _read_ids(value: Any, layout: str, state: Mapping[str, Tensor], path: Path) -> LegacyCheckpoint:
    """The language model over ids (v0) of a file."""
    prefix = ids.PREFIX if any(name.startswith(ids.PREFIX) for name in state) else ""
    own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    check_tensors(own, path)
    preset, config, dims, items = ids.id_form(own, path)
    tensors, masks = ids.split_masks(own, path)
    here = ids.ids_here({name: tensor.float() for name, tensor in tensors.items()}, config.model)
    check_sizes(config, dims, items, {name: tensor.numel() for name, tensor in here.items()}, str(path))
    policy = build_policy(config, dims, items=items)
    load_weights(policy, here, str(path))
    facts = {"layout": layout, "prefix": prefix, "masks": masks, "meta": _plain_meta(value)}
    encoders = sum(name.startswith(("img_model.", "sen_model.")) for name in own)
    return LegacyCheckpoint(policy.eval(), preset, facts, tuple(ids.id_notes(config, encoders)))


def _state(value: Any, path: Path) -> tuple[str, dict[str, Tensor]]:
    """The layout of a file and its tensors by name."""
    for layout, key in (("pt", "model_state_dict"), ("v2", "state_dict"), ("bare", "")):
        state = value if not key else value.get(key) if isinstance(value, Mapping) else None
        if isinstance(state, Mapping) and any(isinstance(tensor, Tensor) for tensor in state.values()):
            return layout, {str(name): tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
    raise CheckpointError(f"{path} holds no selector: neither model_state_dict nor state_dict with tensors")


def _renamed(name: str, table: Mapping[str, str]) -> str:
    start = next((start for start in table if name.startswith(start)), None)
    return name if start is None else table[start] + name[len(start) :]


def _form(
    tensors: Mapping[str, Tensor], hyper: Mapping[str, Any], path: Path
) -> tuple[str, PolicyConfig, dict[str, int]]:
    """Which variant a file holds, with its sizes."""
    head = tensors.get("query_proj.weight", tensors.get("query_proj.0.weight"))
    if head is None:
        raise CheckpointError(
            f"{path} holds no pointer selector: query_proj.weight is missing; it has {', '.join(sorted(tensors)[:8])}"
        )
    hidden = int(head.shape[0])
    width = int(tensors["input_proj.weight"].shape[1]) if "input_proj.weight" in tensors else hidden
    bi_encoder = "query_update_weight" in tensors
    if bi_encoder:
        width = int(head.shape[1])
    if not bi_encoder and "input_proj.weight" not in tensors and hyper.get("d_model") != hidden:
        raise CheckpointError(
            f"{path} does not fit; missing: input_proj.weight (only a selector of vectors {hidden} wide has none)"
        )
    steps = tensors.get("step_emb.weight")
    _, preset, config = next(form for form in FORMS if not form[0] or form[0] in tensors)
    config = replace(
        config,
        hidden=hidden,
        layers=max(_layers(tensors, "cross_attn_layers."), int(hyper.get("num_layers") or 1)),
        heads=int(hyper.get("num_heads") or 1),
        max_shots=config.max_shots if steps is None else len(steps),
        step_embedding=steps is not None,
        state=config.state if config.state != "gru" or "decoder_gru.weight_ih" in tensors else "none",
        pool_layers=_layers(tensors, "cand_encoder.layers.", at=2) or config.pool_layers,
        slot_layers=_layers(tensors, "slot_self_attn_layers.") or config.slot_layers,
        slot_attends="slot_cand_norm.weight" in tensors if config.decoder == "slots" else config.slot_attends,
        topics=len(tensors["topic_prototypes"]) if "topic_prototypes" in tensors else config.topics,
        dpp_rank=len(tensors["dpp_proj.weight"]) if "dpp_proj.weight" in tensors else config.dpp_rank,
        refine_top=int(hyper.get("top_m") or config.refine_top),
    )
    return preset, config, {"image": width, "text": width}


def _layers(tensors: Mapping[str, Tensor], start: str, at: int = 1) -> int:
    """How many layers a file holds under names such as `start0.weight`; their number stands at part `at` of a name."""
    return len({name.split(".")[at] for name in tensors if name.startswith(start)})


def _fill(policy: Policy, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put tensors into the policy; what a faulty converter lost is named as the earlier code names it."""
    own, back = tensors_of(policy), _names_back(policy.config)
    wanted = {_renamed(name, back): name for name in own if name != "head.log_scale"}
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        total = sum(own[name].numel() for name in wanted.values())
        lost = sum(own[wanted[name]].numel() for name in missing)
        share = f" ({lost:,} of {total:,} weights, {lost / total:.2%} of the network)" if lost else ""
        parts = [
            f"missing: {', '.join(missing)}{share}; a converter lost them, so import the file it was made from"
            if missing
            else "",
            f"not understood: {', '.join(unknown)}; this variant cannot be imported" if unknown else "",
        ]
        raise CheckpointError(f"{path} does not fit; " + "; ".join(part for part in parts if part))
    scale = {"head.log_scale": own["head.log_scale"]}  # the temperature was never saved; it was fixed
    filled = {wanted[name]: tensor[0] if name in ROW_IN_FRONT else tensor for name, tensor in tensors.items()}
    if policy.stops and "step_vectors" in filled:
        # a policy that stops has one step more, for the STOP behind a full list; the earlier code took the last vector
        filled["step_vectors"] = torch.cat([filled["step_vectors"], filled["step_vectors"][-1:]])
    load_weights(policy, {**scale, **filled}, str(path))


def _names_back(config: PolicyConfig) -> dict[str, str]:
    """How names begin here and there, for a selector of this form."""
    table = BI_ENCODER_NAMES if config.trunk == "bi_encoder" else NAMES
    return {ours: theirs for theirs, ours in table.items()}


def _lost_note(tensors: Mapping[str, Tensor]) -> str:
    names = [name for name in tensors if name.startswith(("cross_attn_layers.", "attn_norms."))]
    lost, total = sum(tensors[name].numel() for name in names), sum(tensor.numel() for tensor in tensors.values())
    return (
        f"{len(names)} attention and norm tensors carry the names of a faulty converter (cross_attn., attn_norm.): the "
        f"earlier code ignored them and evaluated this file with {lost:,} of {total:,} weights ({lost / total:.2%}) "
        "random. Here they are read; results published with this file do not belong to it"
    )


def _plain_meta(value: Any) -> dict[str, Any]:
    """What a file says beside its weights, as far as JSON can hold it."""
    if not isinstance(value, Mapping):
        return {}
    kept = {}
    for key, part in value.items():
        try:
            if is_small(part):
                kept[str(key)] = json.loads(json.dumps(part))
        except (TypeError, ValueError, RecursionError):
            continue  # tensors, and the states of optimisers and loops
    return {key: part for key, part in kept.items() if key not in ("state_dict", "model_state_dict")}


def legacy_state(policy: Policy, *, single: bool = False) -> dict[str, Tensor]:
    """The tensors of a policy under the names of the earlier code; one that it cannot hold is refused."""
    config, back = policy.config, _names_back(policy.config)
    own = {
        name: tensor
        for name, tensor in tensors_of(policy).items()
        if name != "head.log_scale" and not name.startswith("adapters.")
    }
    foreign = [name for name in own if not name.startswith(tuple(back))]
    scale = float(tensors_of(policy).get("head.log_scale", torch.tensor(math.nan)))
    fixed = -math.log(0.5 if config.trunk == "bi_encoder" else 0.1)  # the temperature was a constant of each version
    if foreign or config.fuse != "mean" or "answer" in config.demo_fields or abs(scale - fixed) > 1e-6:
        what = f"it has {', '.join(foreign)}" if foreign else "it sees other fields or has another temperature"
        raise CheckpointError(
            f"this selector cannot be written for the earlier code: {what}; a *_faithful preset can (`lever recipes`)"
        )
    if policy.stops and "step_vectors" in own:
        own["step_vectors"] = own["step_vectors"][:-1]
    state = {_renamed(name, back): tensor for name, tensor in own.items()}
    state = {name: tensor.unsqueeze(0) if name in ROW_IN_FRONT else tensor for name, tensor in state.items()}
    if single and config.layers > 1:
        raise CheckpointError(f"names of one layer (cross_attn.) cannot hold {config.layers} layers")
    return {_renamed(name, {v: k for k, v in SINGLE.items()}): t for name, t in state.items()} if single else state


_FRESH: Mapping[str, Mapping[str, Any]] = {
    "pt": {"epoch": 0, "phase": "grpo", "metrics": {}},
    "v2": {"epoch": 0, "global_step": 0, "pytorch-lightning_version": "2.0.0", "hyper_parameters": {}},
}
"""What stands beside the weights of a selector that was not imported."""


def write_legacy(policy: Policy, path: Path, layout: str, facts: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint of the earlier code: layout "pt", "v2" (which Lightning reads) or "bare"."""
    numbered = policy.config.model != "pointer"
    start = ids.PREFIX if numbered else PREFIX
    known = {"prefix": start if layout == "v2" else "", "meta": _FRESH.get(layout, {})} | dict(facts or {})
    if numbered:
        state = ids.ids_there(policy, known.get("masks"))
    else:
        state = legacy_state(policy, single=bool(known.get("single")))
    state |= {name: torch.tensor(values) for name, values in known.get("unused", {}).items()}
    named = {known["prefix"] + name: tensor for name, tensor in state.items()}
    if policy.adapters is not None:
        named |= lora_there(policy.adapters, known.get("lora") or {})
    key = {"pt": "model_state_dict", "v2": "state_dict"}.get(layout)
    value: dict[str, Any] = named if key is None else {**known["meta"], key: named}
    with disk_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(value, content)
    with write_atomically(path) as part:
        part.write_bytes(content.getbuffer())
    return path
