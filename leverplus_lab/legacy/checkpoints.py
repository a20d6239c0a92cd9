"""Selector checkpoints of the earlier code: `.pt`, Lightning and "v2 format" files, read strictly and written back.

Files are opened with `weights_only=True`: nothing in them is executed. Attention is named `cross_attn_layers.0.` or, in
code before November 2025 and in files of its converters, `cross_attn.`; both are read. The earlier loader ignored names
it did not know, so a converted file was evaluated with random attention; the report of an import says so.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus.data.rundir import disk_sentence, write_atomically
from leverplus.errors import CheckpointError, MissingFile, first_line
from leverplus.learn.checkpoint import (
    empty_policy,
    fill_policy,
    tensors_of,
)
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.settings import PolicyConfig
from leverplus_lab.legacy import ids, presets
from leverplus_lab.selectors.adapters import UNKNOWN_REVISION, Adapters

PREFIX = "lever_lm.pointer_selector."
PREFIXES = (PREFIX, "pointer_selector.", "")
Tensors = Mapping[str, Tensor]

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
    "slot_emb.weight": "slots.vectors",
    "slot_self_attn_layers.": "slots.attention.",
    "slot_norms.": "slots.norms.",
    "slot_cand_attn.": "slots.pool_attention.",
    "slot_cand_norm.": "slots.pool_norm.",
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
"""Tensors that the earlier code made and never used."""
SINGLE = {"cross_attn.": "cross_attn_layers.0.", "attn_norm.": "attn_norms.0."}
SINGLE_BACK = {theirs: ours for ours, theirs in SINGLE.items()}
"""Names of files with a single layer, as code before November 2025 and its converters wrote them, and back."""
MOST_LAYERS = 64
"""More are not looked for, whatever a file says of itself."""

FORMS = {
    "query_update_weight": "bi_encoder_gate_faithful",
    "slot_emb.weight": "parallel_slots_faithful",
    "stop_token": "stopping_faithful",
    "refine_attn.in_proj_weight": "two_stage_faithful",
    "refine_mlp.0.weight": "two_stage_faithful",
    "topic_prototypes": "topic_coverage_faithful",
    "dpp_proj.weight": "volume_faithful",
    "bilinear.weight": "bilinear_head_faithful",
    "cand_encoder.layers.0.norm1.weight": "pool_aware_faithful",
    "div_lambda": "diverse_faithful",
    "attn_Wq.weight": "additive_head_faithful",
    "decoder_gru.weight_ih": "recurrent_faithful",
    "query_update_gate.weight": "vector_gate_faithful",
}
"""A tensor that tells a variant, and the preset it is; the first that fits."""
LENGTHS = {
    "div_lambda": "max_shots",
    "step_emb.weight": "max_shots",
    "topic_prototypes": "topics",
    "dpp_proj.weight": "dpp_rank",
}
"""Tensors whose length is a setting of the selector; of two for one setting the last."""


@dataclass(frozen=True)
class LegacyCheckpoint:
    """A selector of the earlier code: the policy, what the file said beside the weights, and what to know about it."""

    policy: Policy
    preset: str
    facts: Mapping[str, Any]
    notes: tuple[str, ...]


def read_legacy(path: Path) -> LegacyCheckpoint:
    """The selector of a file; every tensor that is missing or unknown is named."""
    value = _open(path)
    layout, state = _state(value, path)
    facts: dict[str, Any] = {"layout": layout, "meta": _plain_meta(value)}
    if ids.holds_ids(state):
        return _read_ids(facts, state, path)
    prefix = ""
    for start in reversed(PREFIXES):
        if _starting(state, start):
            prefix = start
    facts["prefix"] = prefix
    own = {}
    others = {}
    for name, tensor in state.items():
        short = name.removeprefix(prefix)
        if not name.startswith(prefix):
            others[name] = tensor
        elif not short.startswith(NEVER_USED):
            own[short] = tensor
    facts["single"] = bool(_starting(own, *SINGLE))
    tensors = {}
    for name, tensor in _plain_tensors(own, path).items():
        tensors[_renamed(name, SINGLE)] = tensor
    hyper = value.get("hyper_parameters")
    if not isinstance(hyper, Mapping):
        hyper = {}
    try:
        preset, config, dims = _form(tensors, hyper, path)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise CheckpointError(
            f"{path} describes a selector with sizes that make no sense ({error})"
        ) from error
    policy = _filled(config, dims, tensors, path)
    notes = []
    if facts["single"] and layout != "pt":
        lost = _starting(tensors, "cross_attn_layers.", "attn_norms.")
        notes.append(
            f"{len(lost)} attention and norm tensors carry the names of a faulty converter (cross_attn., attn_norm.): the "
            f"earlier code ignored them and evaluated this file with {_share(lost, tensors)} random. Here they are read; "
            "results published with this file do not belong to it"
        )
    left = len(others)
    policy.adapters, facts["lora"] = read_lora(others, path)
    if policy.adapters is not None:
        adapters = policy.adapters
        left -= 2 * len(adapters.shapes)
        notes.append(
            f"adapters (LoRA) of rank {adapters.rank} on {len(adapters.shapes)} projections of CLIP were read; "
            f"the file does not keep alpha, which the configuration set to {adapters.alpha:g}"
        )
    if left:
        notes.append(f"{left} tensors of other parts (frozen encoders) were left out")
    return LegacyCheckpoint(policy.eval(), preset, facts, tuple(notes))


def _starting(names: Iterable[str], *starts: str) -> list[str]:
    """The names that begin in one of these ways."""
    return [name for name in names if name.startswith(starts)]


def _open(path: Path) -> Any:
    """What `torch.load` finds in a file, tensors and plain values only."""
    if not path.is_file():
        raise MissingFile(f"there is no file {path}")
    try:
        with warnings.catch_warnings():
            # torch's remarks on strange files; what cannot be read is said below
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds objects beside tensors and plain values, which are not loaded because they can run code; "
            "in the earlier environment save torch.load(path)['state_dict'] alone and import that"
        ) from error
    except Exception as error:  # whatever the unpickler raises over foreign bytes
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({first_line(error)}); save it again"
        ) from error


def _plain_tensors(tensors: Tensors, path: Path) -> dict[str, Tensor]:
    """The tensors as float32; one that is no array of real numbers, or shows one number many times, is refused."""
    plain = {}
    for name, tensor in tensors.items():
        dense = tensor.layout == torch.strided and not tensor.is_complex()
        if not dense or tensor.untyped_storage().nbytes() < tensor.nbytes:
            raise CheckpointError(
                f"{path}: {name} is no whole array of numbers; save it as one and import that"
            )
        plain[name] = tensor.float()
    return plain


def _plain_meta(value: Any) -> dict[str, Any]:
    """What a file says beside its weights, as far as it is short and JSON can hold it."""
    kept: dict[str, Any] = {}
    if not isinstance(value, Mapping):
        return kept
    for key, part in value.items():
        if key not in ("state_dict", "model_state_dict") and _is_plain(part):
            kept[str(key)] = json.loads(json.dumps(part))
    return kept


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Whether a value is a number, a text, or a list or dictionary of them three deep: no tensor, no optimiser."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(part, depth - 1) for part in value)
    return value is None or isinstance(value, (str, int, float))


def _read_ids(facts: dict[str, Any], state: Tensors, path: Path) -> LegacyCheckpoint:
    """The language model over ids (v0) of a file."""
    facts["prefix"] = ""
    if _starting(state, ids.PREFIX):
        facts["prefix"] = ids.PREFIX
    own = {}
    for name, tensor in state.items():
        own[name.removeprefix(facts["prefix"])] = tensor
    preset, config, dims, items = ids.id_form(own, path)
    tensors = _plain_tensors(ids.id_weights(own, path), path)
    empty = empty_policy(config, dims, str(path), items=items)
    policy = fill_policy(empty, tensors, str(path))
    encoders = len(_starting(own, "img_model.", "sen_model."))
    notes = tuple(ids.id_notes(config, encoders))
    return LegacyCheckpoint(policy.eval(), preset, facts, notes)


def _state(value: Any, path: Path) -> tuple[str, dict[str, Tensor]]:
    """The layout of a file and its tensors by name."""
    if isinstance(value, Mapping):
        layouts = {
            "pt": value.get("model_state_dict"),
            "v2": value.get("state_dict"),
            "bare": value,
        }
        for layout, state in layouts.items():
            if not isinstance(state, Mapping):
                continue
            tensors = {}
            for name, tensor in state.items():
                if isinstance(tensor, Tensor):
                    tensors[str(name)] = tensor
            if tensors:
                return layout, tensors
    raise CheckpointError(
        f"{path} holds no selector: neither model_state_dict nor state_dict with tensors"
    )


def _renamed(name: str, table: Mapping[str, str]) -> str:
    for start, other in table.items():
        if name.startswith(start):
            return other + name.removeprefix(start)
    return name


def _form(
    tensors: Tensors, hyper: Mapping[str, Any], path: Path
) -> tuple[str, PolicyConfig, dict[str, int]]:
    """Which variant a file holds, with its sizes."""
    head = tensors.get("query_proj.weight", tensors.get("query_proj.0.weight"))
    if head is None:
        raise CheckpointError(
            f"{path} holds no pointer selector: query_proj.weight is missing; it has {', '.join(sorted(tensors)[:8])}"
        )
    hidden = width = int(head.shape[0])
    if "query_update_weight" in tensors:
        width = int(head.shape[1])
    elif "input_proj.weight" in tensors:
        width = int(tensors["input_proj.weight"].shape[1])
    elif hyper.get("d_model") != hidden:
        raise CheckpointError(
            f"{path} does not fit; missing: input_proj.weight (only a selector of vectors {hidden} wide has none)"
        )
    preset = "cross_attention_faithful"
    for name, variant in reversed(FORMS.items()):
        if name in tensors:
            preset = variant
    form: PolicyConfig = getattr(presets, preset.upper())
    said = min(int(hyper.get("num_layers") or 1), MOST_LAYERS)
    sizes: dict[str, Any] = {
        "hidden": hidden,
        "layers": max(_layers(tensors, "cross_attn_layers."), said),
        "heads": int(hyper.get("num_heads") or 1),
        "step_embedding": "step_emb.weight" in tensors,
        "pool_layers": _layers(tensors, "cand_encoder.layers.", at=2),
        "slot_layers": _layers(tensors, "slot_self_attn_layers."),
        "refine_top": int(hyper.get("top_m") or form.refine_top),
    }
    if "refine_mlp.0.weight" in tensors:
        sizes["refine"] = "mlp"
    if form.state == "gru" and "decoder_gru.weight_ih" not in tensors:
        sizes["state"] = "none"
    if form.decoder == "slots":
        sizes["slot_attends"] = "slot_cand_norm.weight" in tensors
    for part, name in LENGTHS.items():
        if part in tensors:
            sizes[name] = len(tensors[part])
    known = {name: size for name, size in sizes.items() if size != 0}
    return preset, replace(form, **known), {"image": width, "text": width}


def _layers(tensors: Tensors, start: str, at: int = 1) -> int:
    """How many layers a file holds under names such as `start0.weight`; their number stands at part `at` of a name."""
    return len({name.split(".")[at] for name in _starting(tensors, start)})


def _filled(
    config: PolicyConfig, dims: Mapping[str, int], tensors: Tensors, path: Path
) -> Policy:
    """A policy with these tensors; what a faulty converter lost is named as the earlier code names it."""
    empty = empty_policy(config, dims, str(path))
    own = empty.state_dict()
    back = _names_back(config)
    wanted = {}
    sizes = {}
    for name, tensor in own.items():
        if name != "head.log_scale":
            there = _renamed(name, back)
            wanted[there] = name
            sizes[there] = tensor
    missing = sorted(wanted.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - wanted.keys())
    parts = []
    if missing:
        parts.append(
            f"missing: {', '.join(missing)} ({_share(missing, sizes)} of the network); a converter lost them, so import "
            "the file it was made from"
        )
    if unknown:
        parts.append(
            f"not understood: {', '.join(unknown)}; this variant cannot be imported"
        )
    if parts:
        raise CheckpointError(f"{path} does not fit; {'; '.join(parts)}")
    filled = {}
    for name, tensor in tensors.items():
        if name in ROW_IN_FRONT:
            tensor = tensor[0]  # noqa: PLW2901
        filled[wanted[name]] = tensor
    if "head.log_scale" in own:  # the temperature was never saved; it was fixed
        filled["head.log_scale"] = torch.tensor(-math.log(config.temperature))
    if empty.stops and "step_vectors" in filled:
        # a policy that stops has one step more, for the STOP behind a full list; the earlier code took the last vector
        steps = filled["step_vectors"]
        filled["step_vectors"] = torch.cat([steps, steps[-1:]])
    return fill_policy(empty, filled, str(path))


def _names_back(config: PolicyConfig) -> dict[str, str]:
    """How names begin here and there, for a selector of this form."""
    table = NAMES
    if config.trunk == "bi_encoder":
        table = BI_ENCODER_NAMES
    return {ours: theirs for theirs, ours in table.items()}


def _share(names: list[str], tensors: Tensors) -> str:
    """How many of all weights these are."""
    part = total = 0
    for name, tensor in tensors.items():
        total += tensor.numel()
        if name in names:
            part += tensor.numel()
    return f"{part:,} of {total:,} weights ({part / total:.2%})"


def legacy_state(policy: Policy, *, single: bool = False) -> dict[str, Tensor]:
    """The tensors of a policy under the names of the earlier code; one that it cannot hold is refused."""
    config = policy.config
    back = _names_back(policy.config)
    own = tensors_of(policy)
    scale = float(own.pop("head.log_scale", torch.tensor(math.nan)))
    for name in _starting(list(own), "adapters."):
        del own[name]
    # the temperature was a constant of each version
    temperature = 0.1
    if config.trunk == "bi_encoder":
        temperature = 0.5
    fixed = -math.log(temperature)
    foreign = own.keys() - set(_starting(own, *back))
    why = ""
    if foreign:
        why = f"it has {', '.join(sorted(foreign))}"
    elif config.fuse != "mean" or "answer" in config.demo_fields:
        why = "it sees other fields"
    elif not abs(scale - fixed) <= 1e-6:
        why = "it has another temperature"
    elif single and config.layers > 1:
        why = f"names of one layer (cross_attn.) cannot hold {config.layers} layers"
    if why:
        raise CheckpointError(
            f"this selector cannot be written for the earlier code: {why}; a *_faithful preset can (`lever recipes`)"
        )
    if policy.stops and "step_vectors" in own:
        own["step_vectors"] = own["step_vectors"][:-1]
    state = {}
    for name, tensor in own.items():
        there = _renamed(name, back)
        if there in ROW_IN_FRONT:
            tensor = tensor.unsqueeze(0)  # noqa: PLW2901
        if single:
            there = _renamed(there, SINGLE_BACK)
        state[there] = tensor
    return state


_FRESH: Mapping[str, Mapping[str, Any]] = {
    "pt": {"epoch": 0, "phase": "grpo", "metrics": {}},
    "v2": {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": "2.0.0",
        "hyper_parameters": {},
    },
}
"""What stands beside the weights of a selector that was not imported."""


def write_legacy(
    policy: Policy,
    path: Path,
    layout: str,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of the earlier code: layout "pt", "v2" (which Lightning reads) or "bare"."""
    known = dict(facts or {})
    if policy.config.model != "pointer":
        start = ids.PREFIX
        state = ids.ids_there(policy)
    else:
        start = PREFIX
        state = legacy_state(policy, single=bool(known.get("single")))
    if layout != "v2":
        start = ""
    prefix = known.get("prefix", start)
    named = {prefix + name: tensor for name, tensor in state.items()}
    if policy.adapters is not None:
        named |= lora_there(policy.adapters, known.get("lora") or {})
    value: dict[str, Any] = named
    if layout in _FRESH:
        key = {"pt": "model_state_dict", "v2": "state_dict"}[layout]
        value = {**known.get("meta", _FRESH[layout]), key: named}
    with disk_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(value, content)
    with write_atomically(path) as part:
        part.write_bytes(content.getbuffer())
    return path


LORA = re.compile(
    r"(?P<start>.*?)(sen_model|img_model)\.base_model\.model\.(?P<part>.+)\.lora_(?P<side>[AB])\.(?P<end>.+)"
)
"""How v2_lora names PEFT's matrices on both CLIP encoders."""
ENCODERS = {"text_model": "sen_model", "vision_model": "img_model"}
"""How names begin inside CLIP, and the encoder they belonged to."""
SIDES = {"A": "down", "B": "up"}


def read_lora(state: Tensors, path: Path) -> tuple[Adapters | None, dict[str, Any]]:
    """The adapters of a file and how its names were written; None where it has none."""
    found: dict[str, dict[str, Tensor]] = {"down": {}, "up": {}}
    written: dict[str, Any] = {}
    for name, tensor in state.items():
        match = LORA.fullmatch(name)
        if match:
            matrix = _plain_tensors({name: tensor}, path)[name]
            found[SIDES[match["side"]]][match["part"]] = matrix
            written = {"start": match["start"], "end": match["end"]}
    down = found["down"]
    up = found["up"]
    if not written:
        return None, {}
    ranks: set[int] = set()
    fits = down.keys() == up.keys()
    for matrix in (*down.values(), *up.values()):
        ranks.add(min(matrix.shape, default=0))
        fits = fits and matrix.ndim == 2
    if not fits or len(ranks) != 1:
        raise CheckpointError(
            f"{path} holds adapters (LoRA) whose two halves do not fit; save the whole state_dict again"
        )
    rank = ranks.pop()
    shapes = {}
    for name, matrix in down.items():
        width = int(matrix.shape[1])
        shapes[name] = (width, len(up[name]))
    # the file does not keep alpha; the configuration had 32 at rank 16
    adapters = Adapters(
        shapes, UNKNOWN_REVISION, rank=rank, alpha=2.0 * rank, dropout=0.1
    )
    with torch.no_grad():
        for side, own in found.items():
            for name, matrix in own.items():
                adapters.of(name, side).copy_(matrix)
    return adapters, written


def lora_there(adapters: Adapters, written: Mapping[str, Any]) -> dict[str, Tensor]:
    """Adapters under the names of the earlier code; those of another network than CLIP are refused."""
    start = written.get("start", "lever_lm.")
    end = written.get("end", "default.weight")
    state = {}
    for name in adapters.shapes:
        encoder = ENCODERS.get(name.partition(".")[0])
        if encoder is None:
            raise CheckpointError(
                f"adapters of {name} cannot be written for the earlier code, which had CLIP's alone"
            )
        for side, part in SIDES.items():
            full = f"{start}{encoder}.base_model.model.{name}.lora_{side}.{end}"
            state[full] = adapters.of(name, part).detach().clone()
    return state
