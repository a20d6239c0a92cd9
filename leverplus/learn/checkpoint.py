"""Checkpoints: weights in safetensors beside a config that says what they belong to; loading is strict.

A checkpoint folder holds `model.safetensors` and `config.json` (class, selector config, widths of the feature blocks,
recipe hash). Nothing is pickled. Folders are written beside their place and moved there whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from leverplus.catalog import ADAPTERS, load
from leverplus.data.parsing import parse_json
from leverplus.data.rundir import CONFIG, WEIGHTS, staged_folder
from leverplus.data.settings import read_section
from leverplus.errors import CheckpointError, first_line
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig

FORMAT = 1
"""Of `config.json`; another number is another program's, or a later version's."""


def save_checkpoint(
    folder: Path,
    policy: Policy,
    recipe_hash: str = "",
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy to a folder, replacing what was there at once."""
    description = {
        "format": FORMAT,
        "class": type(policy).__name__,
        "config": dataclasses.asdict(policy.config),
        "dims": policy.dims,
        "items": getattr(policy, "items", None),
        "adapters": None if policy.adapters is None else policy.adapters.spec(),
        "recipe_hash": recipe_hash,
        "extra": dict(extra or {}),
    }
    with staged_folder(folder) as place:
        (place / WEIGHTS).write_bytes(save(tensors_of(policy)))
        write_checkpoint_json(place / CONFIG, description)
    return folder


def load_checkpoint(folder: Path) -> tuple[Policy, dict[str, Any]]:
    """The policy of a folder, ready to use, and its `config.json`; any mismatch raises `CheckpointError`."""
    description = read_checkpoint_json(folder / CONFIG)
    problems: list[str] = []
    config = read_section(
        PolicyConfig, description.get("config", {}), "config.", problems
    )
    if config is None or description.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: config.json is not understood ({'; '.join(problems) or 'other format'}); train it again"
        )
    empty = empty_policy(
        config,
        description.get("dims") or {},
        str(folder),
        items=description.get("items"),
        adapters=description.get("adapters"),
    )
    policy = fill_policy(empty, read_tensors(folder / WEIGHTS), str(folder))
    if type(policy).__name__ != description.get("class"):
        raise CheckpointError(
            f"{folder}: holds a {description.get('class')}, but its config builds {type(policy).__name__}"
        )
    return policy.eval(), description


_IMPOSSIBLE = (RuntimeError, OverflowError, ValueError, TypeError, AttributeError)
"""What torch raises over sizes that no tensor can have, and Python over what is no size."""


def empty_policy(
    config: PolicyConfig,
    dims: Mapping[str, int],
    source: str,
    *,
    items: int | None = None,
    adapters: Mapping[str, Any] | None = None,
) -> Policy:
    """A policy without memory (on torch's meta device), so that whatever a file describes costs nothing."""
    try:
        with torch.device("meta"):
            policy = build_policy(config, dims, items=items)
            if adapters is not None:
                policy.adapters = load(ADAPTERS, "lora", "adapters")(**adapters)
    except _IMPOSSIBLE as error:
        raise CheckpointError(
            f"{source} describes a selector that cannot be built ({first_line(error)})"
        ) from error
    return policy


def fill_policy(
    policy: Policy,
    tensors: Mapping[str, Tensor],
    source: str,
) -> Policy:
    """Put tensors into a policy, which gets memory if it has none; what is missing, unexpected or misshapen is named."""
    own = policy.state_dict()
    found: dict[str, list[str]] = {
        "missing": sorted(own.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - own.keys()),
        "of another shape": [],
    }
    for name in sorted(own.keys() & tensors.keys()):
        given = tuple(tensors[name].shape)
        wanted = tuple(own[name].shape)
        if given != wanted:
            found["of another shape"].append(f"{name} is {given}, not {wanted}")
    parts = [f"{what}: {', '.join(names)}" for what, names in found.items() if names]
    if parts:
        said = "; ".join(parts)
        raise CheckpointError(f"{source} does not fit this selector; {said}")
    if next(policy.parameters()).is_meta:
        policy = policy.to_empty(device="cpu")
    policy.load_state_dict(dict(tensors))
    return policy


def tensors_of(policy: Policy) -> dict[str, Tensor]:
    """The policy's tensors, detached and laid out for writing."""
    found = {}
    for name, tensor in policy.state_dict().items():
        found[name] = tensor.detach().cpu().contiguous().clone()
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there; is this a checkpoint folder?")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); train it again"
        ) from error


def read_checkpoint_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is not there; is this a checkpoint folder?")
    try:
        value = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); train it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; train it again")
    return value


def write_checkpoint_json(
    path: Path,
    value: Mapping[str, Any],
) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors, `<parameter>.<name>`."""
    flat = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensor = torch.as_tensor(value).detach().cpu()
            flat[f"{index}.{name}"] = tensor.contiguous().clone()
    return flat


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
) -> None:
    """Put a flattened state back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def save_state(
    folder: Path,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Everything needed to go on with a stage: tensors and a few numbers, replaced at once."""
    with staged_folder(folder) as place:
        (place / "state.safetensors").write_bytes(save(dict(tensors)))
        write_checkpoint_json(place / "state.json", numbers)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and numbers of `save_state`."""
    numbers = read_checkpoint_json(folder / "state.json")
    return read_tensors(folder / "state.safetensors"), numbers
