"""A selector that somebody names: a checkpoint of any run, an imported one, or a file of the earlier code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.catalog import LEGACY, load
from leverplus.data import rundir
from leverplus.data.parsing import parse_toml
from leverplus.data.settings import show_value
from leverplus.errors import CheckpointError, MissingFile

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy

FILES = (".pt", ".pth", ".ckpt")
FREE_TO_DIFFER = ("preset", "dropout", "attention_dropout", "max_shots")
"""Settings of a selector that change no weight and no score; the shapes below say whether max_shots does."""


def names_elsewhere(text: str) -> bool:
    """Whether a name is a path or RUN:NAME, and not a checkpoint of the run at hand."""
    return (
        "/" in text
        or "\\" in text
        or ":" in text
        or text.endswith(FILES)
        or Path(text).is_dir()
    )


def find_given(text: str) -> Path:
    """The checkpoint folder or file that `text` names; one that is missing is refused with what could be meant.

    `text` is a checkpoint folder; a run folder (its last checkpoint); RUN:NAME; an import with one checkpoint; or a
    .pt or .ckpt file of the earlier code.
    """
    path = Path(text).expanduser()
    if path.is_file():
        if path.suffix not in FILES:
            raise CheckpointError(
                f"{path} is no checkpoint; give a checkpoint folder, or a .pt or .ckpt file"
            )
        return path
    if (path / rundir.WEIGHTS).is_file():
        return path
    if path.is_dir():
        return _of_run(path, _last_stage(path))
    folder, colon, name = text.rpartition(":")
    if colon and Path(folder).expanduser().is_dir():
        return _of_run(Path(folder).expanduser(), name)
    raise MissingFile(
        f"there is no checkpoint {text}; give train.start or --checkpoint a checkpoint folder, a run folder, RUN:NAME, "
        "or a .pt or .ckpt file"
    )


def _last_stage(run: Path) -> str | None:
    """The name of a run's last stage; None where the folder is no run (an import)."""
    resolved = run / rundir.RESOLVED
    if not resolved.is_file():
        return None
    stages: list[str] = (
        parse_toml(resolved.read_bytes()).get("train", {}).get("stages", ["sft"])
    )
    return stages[-1]


def _of_run(
    run: Path,
    name: str | None,
) -> Path:
    """The checkpoint of that name in a run or an import; without a name the only one there."""
    inside = run / rundir.CHECKPOINTS
    known = sorted(path.parent.name for path in inside.glob(f"*/{rundir.WEIGHTS}"))
    wanted = f"no checkpoint '{name}'"
    if name is None:
        wanted = "more than one checkpoint, or none"
        if len(known) == 1:
            name = known[0]
    if name is not None and name in known:
        return inside / name
    said = f"type `lever train {run}`"
    if known:
        said = f"known: {', '.join(known)} (write {run}:{known[-1]})"
    raise MissingFile(f"{run} has {wanted}; {said}")


def read_given(text: str) -> Policy:
    """The selector that `text` names, ready to use."""
    from leverplus.learn.checkpoint import load_checkpoint

    path = find_given(text)
    if path.is_dir():
        return load_checkpoint(path)[0]
    policy: Policy = load(LEGACY, "checkpoint", "reader")(path).policy
    return policy


def require_widths(
    policy: Policy,
    dims: Mapping[str, int],
    items: int,
    source: str,
) -> None:
    """Refuse a selector that reads other vectors than a task has; `items` is the size of the task's index."""
    other = []
    for name, theirs in policy.dims.items():
        ours = dims.get(name)
        if ours != theirs:
            other.append(f"{name} {theirs} (here {ours or 'none'})")
    if other:
        said = ", ".join(other)
        raise CheckpointError(
            f"{source} reads vectors of other widths than [embed] gives: {said}; use the embedder it was trained with"
        )
    counted = getattr(policy, "items", None)
    if counted is not None and counted != items:
        raise CheckpointError(
            f"{source} chooses among {counted:,} numbered items, and this task has {items:,}; a selector over ids "
            "only serves the index that it was trained on"
        )


def fill_from(
    policy: Policy,
    given: Policy,
    source: str,
) -> None:
    """Put the weights of a given selector into a fresh one of the same form; settings that differ are named."""
    from leverplus.learn.checkpoint import fill_policy, tensors_of

    own = dataclasses.asdict(policy.config)
    theirs = dataclasses.asdict(given.config)
    odd = []
    for key, value in own.items():
        if value != theirs[key] and key not in FREE_TO_DIFFER:
            odd.append(key)
    if not odd and own["max_shots"] != theirs["max_shots"]:
        weights = given.state_dict()
        for name, tensor in policy.state_dict().items():
            if name not in weights or weights[name].shape != tensor.shape:
                odd = ["max_shots"]
    if odd:
        said = " ".join(f"select.{key}={_value(theirs[key])}" for key in odd)
        raise CheckpointError(
            f"{source} holds a selector of another form than [select] describes; add --set {said}"
        )
    fill_policy(policy, tensors_of(given), source)


def _value(value: Any) -> str:
    """A value as `--set` takes it in a shell."""
    if isinstance(value, (list, tuple)):
        return "'[" + ", ".join(show_value(part) for part in value) + "]'"
    if isinstance(value, str):
        return str(value)
    return show_value(value)
