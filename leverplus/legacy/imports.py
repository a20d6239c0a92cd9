"""What kind of file something is, what it holds, and bringing it into a folder of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leverplus.errors import DataError, MissingFile
from leverplus.legacy.beam import read_beam
from leverplus.legacy.metrics import Measurement, is_metrics, published_tables, read_metrics
from leverplus.legacy.rl import is_query, read_rl
from leverplus.rundir import CHECKPOINTS
from leverplus.scoring.group_file import GroupFile, read_json_value, rename_items, save_group_file, write_json_value
from leverplus.types import Group, ItemId

METRICS_FILE = "metrics.json"
METRICS_FORMAT = "leverplus-metrics"
WEIGHTS = (".pt", ".pth", ".ckpt")


@dataclass
class Imported:
    """What an import found: its kind, one line that says so, what to know about it, and the files written."""

    kind: str
    found: str
    notes: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


def import_file(path: Path, into: Path | None = None, names: Mapping[ItemId, ItemId] | None = None) -> Imported:
    """Read a file of the earlier code; with `into` also write it there. `names` gives items their ids in a task."""
    if not path.is_file():
        raise MissingFile(f"{path} is a folder; give a file" if path.is_dir() else f"there is no file {path}")
    if path.suffix in WEIGHTS:
        return _checkpoint(path, into)
    value = read_json_value(path)
    try:
        return _import_value(value, path, into, names)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} looks like a file of the earlier code, but is incomplete or changed ({said})"
        ) from error


def _import_value(value: Any, path: Path, into: Path | None, names: Mapping[ItemId, ItemId] | None) -> Imported:
    kind = kind_of(value)
    if kind == "metrics":
        return _metrics(read_metrics(value, str(path)), into)
    if kind not in ("rl", "beam"):
        raise DataError(
            f"{path} is {kind}; beam data, RL data, metrics and checkpoints of the earlier code can be imported"
        )
    file = (read_rl if kind == "rl" else read_beam)(value, str(path))
    if names is not None:
        used = dict.fromkeys(item for entry in file.entries for item in (entry.query, *entry.pool))
        file = replace(rename_items(file, names), numbers={names[item]: item for item in used})
    return _groups(file, into)


def kind_of(value: Any) -> str:
    """What a JSON value is: rl, beam, metrics, or words for something that cannot be imported."""
    if isinstance(value, list):
        return "a list (the earlier code's cache of anchors is one; it needs no import)"
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    if is_metrics(value):
        return "metrics"
    first = next((entry for key, entry in value.items() if is_query(key, entry)), None)
    if first is None:
        if value and all(key.isdecimal() and isinstance(row, list) for key, row in value.items()):
            return "a cache of candidates by anchor, which needs no import"
        return "a JSON object without queries"
    if first.get("pointer_candidates"):
        return "rl"
    return "beam" if "id_list" in first and "score_list" in first else "a JSON object with queries of no known form"


def rl_groups(value: Any, source: str) -> list[Group] | None:
    """The groups of a JSON value that is RL data of the earlier code; None where it is something else."""
    return read_rl(value, source).groups() if kind_of(value) == "rl" else None


def _groups(file: GroupFile, into: Path | None) -> Imported:
    candidates = sum(len(entry.candidates) for entry in file.entries)
    groups = file.groups()
    usable = sum(len(group.members) for group in groups)
    what = "RL data" if file.kind == "rl" else "beam data"
    found = f"{what}: {len(file.entries):,} queries, {candidates:,} sequences"
    out = Imported(file.kind, found)
    if file.kind == "beam":
        out.notes.append("scores are gains of the information score; no accuracy was measured, so none is invented")
    else:
        pools = "given" if all(entry.pool_given for entry in file.entries) else "the items each query's sequences show"
        local = any(entry.local for entry in file.entries)
        out.found += f", {'local' if local else 'global'} pointers, pools: {pools}"
        out.notes.append(f"training can learn from {usable:,} sequences of {len(groups):,} queries")
        out.notes += [f"{count:,} sequences are set aside: {why}" for why, count in file.set_aside().most_common()]
        known = file.measured()
        out.notes += [
            f"{name} was not measured in {candidates - known[name]:,} sequences"
            for name in ("accuracy", "correct", "raw", "answer", "gt_prob", "token_f1", "edit_similarity")
            if known[name] < candidates
        ]
    if into is not None:
        out.written.append(str(save_group_file(file, into)))
    return out


def _metrics(measurements: list[Measurement], into: Path | None) -> Imported:
    sizes = sorted({one.n for one in measurements})
    out = Imported("metrics", f"metrics: {len(measurements):,} evaluations on {', '.join(map(str, sizes))} items")
    tables = published_tables(measurements)
    if into is not None:
        value = {"format": METRICS_FORMAT, "measurements": [asdict(one) for one in measurements]}
        out.written.append(str(write_json_value(into / METRICS_FILE, value)))
        for name, table in tables.items():
            path = write_json_value(into / f"table-{name}.json", table)
            out.written.append(str(path))
            out.notes.append(f"see what its differences can show: lever compare --from-summary {path}")
    return out


def read_metrics_folder(folder: Path) -> list[Measurement]:
    """The measurements that an import wrote into a folder."""
    value = read_json_value(folder / METRICS_FILE)
    if not isinstance(value, Mapping) or value.get("format") != METRICS_FORMAT:
        raise DataError(f"{folder / METRICS_FILE} was not written by `lever import`")
    return [
        Measurement(row["when"], row["n"], row["retriever"], {int(k): v for k, v in row["accuracy"].items()})
        for row in value["measurements"]
    ]


def _checkpoint(path: Path, into: Path | None) -> Imported:
    from leverplus.legacy.checkpoints import read_legacy
    from leverplus.training.checkpoint import save_checkpoint

    legacy = read_legacy(path)
    config, count = legacy.policy.config, sum(tensor.numel() for tensor in legacy.policy.parameters())
    found = (
        f"checkpoint ({legacy.facts['layout']} layout): {legacy.preset}, "
        f"{config.layers} {'LSTM' if config.model == 'lstm' else 'attention'} layers, "
        f"vectors of {max(legacy.policy.dims.values())}, width {config.hidden}, {count:,} weights"
    )
    out = Imported("checkpoint", found, list(legacy.notes))
    if into is not None:
        extra = {"legacy": dict(legacy.facts), "preset": legacy.preset}
        folder = into / CHECKPOINTS / path.stem
        out.written.append(str(save_checkpoint(folder, legacy.policy, extra=extra)))
    return out
