"""Checkpoints: weights in safetensors beside a config that says what they belong to; loading is strict.

A checkpoint folder holds `model.safetensors` and `config.json` (class, selector config, widths of the feature blocks,
recipe hash). Nothing is pickled. Folders are written beside their place and moved there whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from leverplus.errors import CheckpointError
from leverplus.parsing import parse_json
from leverplus.policies.adapters import Adapters
from leverplus.policies.base import Policy
from leverplus.policies.build import build_policy
from leverplus.recipe.schema import read_section
from leverplus.recipe.selection import PolicyConfig
from leverplus.rundir import CONFIG, WEIGHTS, staged_folder

FORMAT = 1
"""Of `config.json`; another number is another program's, or a later version's."""


def describe_policy(policy: Policy, recipe_hash: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.json` says of a policy."""
    return {
        "format": FORMAT,
        "class": type(policy).__name__,
        "config": dataclasses.asdict(policy.config),
        "dims": policy.dims,
        "items": getattr(policy, "items", None),
        "adapters": None if policy.adapters is None else policy.adapters.spec(),
        "recipe_hash": recipe_hash,
        "extra": dict(extra),
    }


def save_checkpoint(
    folder: Path, policy: Policy, recipe_hash: str = "", extra: Mapping[str, Any] | None = None
) -> Path:
    """Write a policy to a folder, replacing what was there at once."""
    with staged_folder(folder) as place:
        (place / WEIGHTS).write_bytes(save(tensors_of(policy)))
        write_checkpoint_json(place / CONFIG, describe_policy(policy, recipe_hash, extra or {}))
    return folder


def load_checkpoint(folder: Path) -> tuple[Policy, dict[str, Any]]:
    """The policy of a folder, ready to use, and its `config.json`; any mismatch raises `CheckpointError`."""
    description = read_checkpoint_json(folder / CONFIG)
    problems: list[str] = []
    config = read_section(PolicyConfig, description.get("config", {}), "config.", problems)
    if config is None or description.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: config.json is not understood ({'; '.join(problems) or 'other format'}); train it again"
        )
    dims, items = _widths(folder, description)
    tensors = read_tensors(folder / WEIGHTS)
    check_sizes(config, dims, items, {name: tensor.numel() for name, tensor in tensors.items()}, str(folder))
    policy = build_policy(config, dims, items=items)
    if type(policy).__name__ != description.get("class"):
        raise CheckpointError(
            f"{folder}: holds a {description.get('class')}, but its config builds {type(policy).__name__}"
        )
    if description.get("adapters") is not None:
        policy.adapters = Adapters(**description["adapters"])
    load_weights(policy, tensors, str(folder))
    return policy.eval(), description


def _widths(folder: Path, description: Mapping[str, Any]) -> tuple[dict[str, int], int | None]:
    """The widths of the feature blocks and the size of the index, as `config.json` gives them."""
    dims, items = description.get("dims"), description.get("items")
    known = isinstance(dims, dict) and all(type(width) is int and width > 0 for width in dims.values())
    if not isinstance(dims, dict) or not known or not (items is None or (type(items) is int and items >= 0)):
        raise CheckpointError(f"{folder}: config.json gives widths {dims} and {items} items; train it again")
    return dims, items


def check_sizes(
    config: PolicyConfig, dims: Mapping[str, int], items: int | None, held: Mapping[str, int], source: str
) -> None:
    """Refuse a description of a selector far larger than its weights, before anything of that size is made.

    `held` gives the number of weights by tensor. The selector is built without memory (torch's meta device) to count.
    """
    # layers are counted first: even without memory, building millions of modules would take hours
    layers = {"layers": config.layers, "pool_layers": config.pool_layers, "slot_layers": config.slot_layers}
    for name, count in layers.items():
        if count > max(64, len(held)):
            raise CheckpointError(f"{source} describes a selector of {count:,} {name} with {len(held)} tensors")
    try:
        wanted = _count_weights(config, tuple(dims.items()), items)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # numbers that no tensor can count
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(f"{source} describes a selector that cannot be built ({reason})") from error
    # a description that fits is equal in size; the slack is for selectors whose tensors come from elsewhere
    if wanted > 10 * sum(held.values()) + 10_000_000:
        raise CheckpointError(
            f"{source} describes a selector of {wanted:,} weights and holds {sum(held.values()):,}, so it is not loaded"
        )


@lru_cache(maxsize=64)
def _count_weights(config: PolicyConfig, dims: tuple[tuple[str, int], ...], items: int | None) -> int:
    """Kept, because the checkpoints of a run are of one size, and torch takes longer without memory than with."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in build_policy(config, dict(dims), items=items).state_dict().values())


def load_weights(policy: Policy, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a policy; every missing, unexpected or misshapen tensor is named."""
    own = policy.state_dict()
    missing = sorted(set(own) - set(tensors))
    unexpected = sorted(set(tensors) - set(own))
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(own[name].shape)}"
        for name in sorted(set(own) & set(tensors))
        if tensors[name].shape != own[name].shape
    ]
    if missing or unexpected or shapes:
        parts = [
            f"missing: {', '.join(missing)}" if missing else "",
            f"unexpected: {', '.join(unexpected)}" if unexpected else "",
            f"of another shape: {'; '.join(shapes)}" if shapes else "",
        ]
        raise CheckpointError(f"{source} does not fit this selector; " + "; ".join(part for part in parts if part))
    policy.load_state_dict(dict(tensors), strict=True)


def tensors_of(policy: Policy) -> dict[str, Tensor]:
    """The policy's tensors, detached and laid out for writing."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in policy.state_dict().items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there; is this a checkpoint folder?")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); train it again") from error


def read_checkpoint_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there; is this a checkpoint folder?")
    try:
        value = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); train it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; train it again")
    return value


def write_checkpoint_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors, `optimizer.<parameter>.<name>`."""
    state = optimizer.state_dict()["state"]
    flat = {}
    for index, values in state.items():
        for name, value in values.items():
            tensor = value if isinstance(value, Tensor) else torch.tensor(value)
            flat[f"optimizer.{index}.{name}"] = tensor.detach().cpu().contiguous().clone()
    return flat


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a flattened state back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def save_state(folder: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Everything needed to go on with a stage: tensors and a few numbers, replaced at once."""
    with staged_folder(folder) as place:
        (place / "state.safetensors").write_bytes(save(dict(tensors)))
        write_checkpoint_json(place / "state.json", numbers)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and numbers of `save_state`."""
    return read_tensors(folder / "state.safetensors"), read_checkpoint_json(folder / "state.json")
