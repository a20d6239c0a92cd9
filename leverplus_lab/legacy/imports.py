"""What kind of file something is, what it holds, and bringing it into a folder of this package."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leverplus.data.rundir import CHECKPOINTS
from leverplus.data.types import Group, ItemId
from leverplus.errors import DataError, MissingFile
from leverplus.evaluate.record import EvaluationRecord
from leverplus_doctor.logs.names import finite
from leverplus_doctor.quality import GroupMeter, Sample
from leverplus_doctor.records import GroupStats
from leverplus_lab.legacy.groups import (
    BORROWED,
    FILE,
    GUESSED,
    MEASURED,
    GroupFile,
    group_kind,
    is_query,
    raise_problems,
    read_group_file,
    read_groups,
    read_json_value,
    write_json_value,
)

METRICS_FILE = "metrics.json"
WEIGHTS = (".pt", ".pth", ".ckpt")
KEY = re.compile(r"(?P<when>.+?)-test_data_num=(?P<n>-?\d+)-(?P<retriever>.+)")
SHOTS = re.compile(r"shot_num=(\d+)")
_BROKEN = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)
"""What values of other types than expected raise."""

ByShots = dict[str, float]
Metrics = dict[str, ByShots]
"""Accuracies by `shot_num=N`, under a key of time, number of items and retriever."""


@dataclass
class Imported:
    """What an import found: its kind, one line that says so, what to know about it, and the files written."""

    kind: str
    found: str
    notes: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


def import_file(
    path: Path,
    into: Path | None = None,
    names: Mapping[str, ItemId] | None = None,
) -> Imported:
    """Read a file of the earlier code; with `into` also write it there. `names` gives items their ids in a task."""
    if path.is_dir():
        raise MissingFile(f"{path} is a folder; give a file")
    if not path.is_file():
        raise MissingFile(f"there is no file {path}")
    if path.suffix in WEIGHTS:
        return _checkpoint(path, into)
    value = read_json_value(path)
    try:
        kind = kind_of(value)
        if kind == "metrics":
            return _metrics(read_metrics(value, str(path)), into)
        if kind in ("rl", "beam"):
            return _groups(read_groups(value, str(path), names), into)
    except _BROKEN as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} looks like a file of the earlier code, but is incomplete or changed ({said})"
        ) from error
    raise DataError(
        f"{path} is {kind}; beam data, RL data, metrics and checkpoints of the earlier code can be imported"
    )


def kind_of(value: Any) -> str:
    """What a JSON value is: rl, beam, metrics, or words for something that cannot be imported."""
    if isinstance(value, list):
        return "a list (the earlier code's cache of anchors is one; it needs no import)"
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    if value and all(map(KEY.fullmatch, value)):
        return "metrics"
    for key, entry in value.items():
        if is_query(key, entry):
            return group_kind(entry) or "a JSON object with queries of no known form"
    if value and all(key.isdecimal() for key in value):
        return "a cache of candidates by anchor, which needs no import"
    return "a JSON object without queries"


def open_groups(path: Path) -> list[Group] | None:
    """The groups of an imported folder, or of RL data of the earlier code; None where a file is something else."""
    if path.is_dir():
        return read_group_file(path).groups()
    value = read_json_value(path)
    if kind_of(value) != "rl":
        return None
    return read_groups(value, str(path)).groups()


def _groups(file: GroupFile, into: Path | None) -> Imported:
    sequences = file.sequences()
    size = f"{len(file.queries):,} queries, {sequences:,} sequences"
    if file.kind == "beam":
        out = Imported("beam", f"beam data: {size}")
        out.notes.append(
            "scores are gains of the information score; no accuracy was measured, so none is invented"
        )
    else:
        pointers = "global"
        for _, row in file.rows():
            if row.pointer_global is not None:
                pointers = "local"
        groups = file.groups()
        builders = set()
        usable = 0
        for group in groups:
            builders.add(group.pool.builder)
            usable += len(group.members)
        pools = "given"
        if "imported:union" in builders:
            pools = "the items each query's sequences show"
        out = Imported("rl", f"RL data: {size}, {pointers} pointers, pools: {pools}")
        out.notes.append(
            f"training can learn from {usable:,} sequences of {len(groups):,} queries"
        )
        for why, count in file.set_aside().most_common():
            out.notes.append(f"{count:,} sequences are set aside: {why}")
        known = file.measured()
        for name in MEASURED:
            if known[name] < sequences:
                missing = sequences - known[name]
                out.notes.append(f"{name} was not measured in {missing:,} sequences")
    if into is not None:
        path = write_json_value(into / FILE, file.as_json())
        out.written.append(str(path))
    return out


def read_metrics(value: Mapping[str, Any], source: str) -> Metrics:
    """The evaluations of a file, checked as a whole."""
    problems: list[str] = []
    for key, row in value.items():
        if not isinstance(row, Mapping):
            problems.append(f"'{key}': expected accuracies by shot_num")
            continue
        for name, number in row.items():
            if finite(number) is None or SHOTS.fullmatch(name) is None:
                problems.append(
                    f"'{key}': '{name}' = {number!r} is no finite accuracy by shot_num"
                )
    raise_problems(source, problems)
    return {key: dict(row) for key, row in value.items()}


def metrics_of(record: EvaluationRecord, when: str) -> Metrics:
    """The arms of an evaluation as the earlier code writes them."""
    found = {}
    for arm, row in record.arms.items():
        by_shots = {f"shot_num={shots}": value for shots, value in row.shots.items()}
        found[f"{when}-test_data_num={record.n}-{arm}"] = by_shots
    return found


def published_tables(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Tables for `lever compare --from-summary`, one for every number of items and shots that two arms share."""
    alike: dict[tuple[int, tuple[str, ...]], list[tuple[str, str, ByShots]]] = {}
    for key, row in metrics.items():
        found = KEY.fullmatch(key)
        assert found is not None
        counts = [name.partition("=")[2] for name in row]
        shots = tuple(sorted(counts))
        own = (found["retriever"], found["when"], row)
        n = int(found["n"])
        alike.setdefault((n, shots), []).append(own)
    tables: dict[str, dict[str, Any]] = {}
    for (n, shots), rows in alike.items():
        if len(rows) < 2 or n < 2:
            continue
        often = Counter(retriever for retriever, _, _ in rows)
        arms = {}
        for retriever, when, row in rows:
            name = retriever
            if often[retriever] > 1:
                name = f"{retriever} {when}"
            arms[name] = {count: row[f"shot_num={count}"] for count in shots}
        tables[f"n{n}-shots{'_'.join(shots)}"] = {"n": n, "arms": arms}
    return tables


def _metrics(metrics: Metrics, into: Path | None) -> Imported:
    sizes = set()
    for key in metrics:
        match = KEY.fullmatch(key)
        assert match is not None
        sizes.add(int(match["n"]))
    listed = ", ".join(map(str, sorted(sizes)))
    found = f"metrics: {len(metrics):,} evaluations on {listed} items"
    out = Imported("metrics", found)
    if into is None:
        return out
    out.written.append(str(write_json_value(into / METRICS_FILE, metrics)))
    for name, table in published_tables(metrics).items():
        path = write_json_value(into / f"table-{name}.json", table)
        out.written.append(str(path))
        out.notes.append(
            f"see what its differences can show: lever compare --from-summary {path}"
        )
    return out


def _checkpoint(path: Path, into: Path | None) -> Imported:
    from torch import Tensor

    from leverplus.learn.checkpoint import save_checkpoint
    from leverplus_lab.legacy.checkpoints import read_legacy

    legacy = read_legacy(path)
    config = legacy.policy.config
    count = sum(map(Tensor.numel, legacy.policy.parameters()))
    layers = "attention"
    if config.model == "lstm":
        layers = "LSTM"
    found = (
        f"checkpoint ({legacy.facts['layout']} layout): {legacy.preset}, {config.layers} {layers} layers, "
        f"vectors of {max(legacy.policy.dims.values())}, width {config.hidden}, {count:,} weights"
    )
    out = Imported("checkpoint", found, list(legacy.notes))
    if into is not None:
        extra = {"legacy": dict(legacy.facts), "preset": legacy.preset}
        folder = into / CHECKPOINTS / path.stem
        save_checkpoint(folder, legacy.policy, extra=extra)
        out.written.append(str(folder))
    return out


def group_stats(values: Mapping[str, Any], source: str) -> GroupStats:
    """What the doctor counts in RL data of either form, faulty ones too; other keys than query ids are passed over."""
    meter = GroupMeter()
    kinds = set()
    for key, entry in values.items():
        if not key.lstrip("-").isdigit() or not isinstance(entry, Mapping):
            continue
        kind = group_kind(entry)
        kinds.add(kind)
        if kind == "rl":
            samples = []
            shown: set[Hashable] = set()
            for row in entry["pointer_candidates"]:
                sample = _sample(row, source, key)
                samples.append(sample)
                shown.update(sample.demos)
            pool = entry.get("candidate_pool_ids")
            meter.add(samples, len(pool or shown))
        elif kind == "beam":
            meter.add(_beam_samples(entry, source, key))
        else:
            raise DataError(
                f"{source}: query {key} has neither pointer_candidates nor id_list and score_list"
            )
    if not kinds:
        raise DataError(
            f"{source}: no key is a query id; expected RL data of the earlier code"
        )
    if "rl" not in kinds:
        return meter.finish("gain")
    return meter.finish()


def _sample(row: Mapping[str, Any], source: str, key: str) -> Sample:
    demos = row.get("pointer_global") or row.get("pointer")
    if not isinstance(demos, list):
        raise DataError(f"{source}: a candidate of query {key} has no pointer")
    method = str(row.get("gen_method") or "")
    mode = row.get("vqa_eval_mode")
    failed = bool(row.get("eval_failed")) or mode == "error"
    borrowed = method.startswith((*BORROWED, "mined_from_old"))
    accuracy = None
    if not failed:
        accuracy = _unit(row.get("vqa_acc_score"))
    return Sample(
        demos=tuple(demos),
        accuracy=accuracy,
        gt_prob=_unit(row.get("vqa_gt_prob")),
        source=re.split("_[LB]", method, maxsplit=1)[0],
        rank=row.get("beam_rank"),
        density=row.get("logprob_score") is not None,
        estimated=failed or mode in GUESSED,
        borrowed=borrowed or "source_query" in row or "source_queries" in row,
    )


def _beam_samples(entry: Mapping[str, Any], source: str, key: str) -> list[Sample]:
    """Lists end with the query; their score is a gain of the information score, not an accuracy."""
    lists = entry["id_list"]
    scores = entry["score_list"]
    if len(lists) != len(scores):
        raise DataError(
            f"{source}: query {key} has {len(lists)} sequences and {len(scores)} scores"
        )
    found = []
    for place, (ids, score) in enumerate(zip(lists, scores, strict=True)):
        demos = tuple(ids)
        if demos[-1:] == (int(key),):
            demos = demos[:-1]
        gain = finite(score)
        if gain is not None:
            found.append(Sample(demos, gain, source="beam", rank=place))
    return found


def _unit(value: Any) -> float | None:
    known = finite(value)
    if known is None:
        return None
    return min(max(known, 0.0), 1.0)
