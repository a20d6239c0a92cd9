"""Reads a run folder: recipe, log, evaluation, predictions; whatever of it is there."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leverplus import rundir
from leverplus.doctor.records import Epoch, GroupStats, PickCounts, Probe, Record, Series, SourceStats
from leverplus.errors import DataError, MissingFile
from leverplus.parsing import parse_own_json, parse_toml
from leverplus.renamed import values_today
from leverplus.rundir import read_log
from leverplus.training.runlog import CONTEXT


def read_run(folder: Path) -> Record:
    """The record of a run, finished or under way."""
    resolved, log = folder / rundir.RESOLVED, folder / rundir.LOG
    if not resolved.is_file() and not log.is_file():
        raise MissingFile(f"{folder} is not a run folder (no resolved.toml, no log.jsonl); `lever run` makes one")
    settings = flat_settings(values_today(parse_toml(resolved.read_bytes()), [], [])) if resolved.is_file() else {}
    manifest = _json(folder / rundir.MANIFEST)
    probe, groups = read_probe(folder)
    return Record(
        source=str(folder),
        settings=settings,
        series=series_of(read_log_lines(log), settings) if log.is_file() else (),
        groups=groups,
        probe=probe,
        report=_json(folder / rundir.EVAL),
        picks=tuple(read_picks(folder / rundir.PREDICTIONS)),
        seed=None if manifest is None else manifest.get("seed"),
        manifest=manifest is not None,
        effects=read_effects(folder),
    )


def read_effects(folder: Path) -> Mapping[str, Any] | None:
    """Effects of demonstrations, of the stage that saw the most answers; None where no stage wrote them."""
    wanted = ("answers", "demonstrations", "effect_sd", "reliability", "is_noise")
    found = []
    for path in sorted(folder.glob("groups-*.json")):
        own = (_json(path) or {}).get("effects")
        if isinstance(own, Mapping) and all(isinstance(own.get(name), int | float) for name in wanted):
            found.append(own)
    return max(found, key=lambda own: own["answers"], default=None)


def probe_json(probe: Probe, groups: GroupStats | None) -> dict[str, Any]:
    """What was measured before and between stages, as probe.json holds it."""
    return {"probe": asdict(probe), "groups": None if groups is None else asdict(groups)}


def read_probe(folder: Path) -> tuple[Probe | None, GroupStats | None]:
    """What probe.json holds; None where it, or a part of it, is absent."""
    path = folder / rundir.PROBE
    values = _json(path)
    if values is None:
        return None, None
    try:
        probe, stats = Probe(**values["probe"]), values["groups"]
        if stats is None:
            return probe, None
        stats["sources"] = {name: SourceStats(**own) for name, own in stats["sources"].items()}
        for key in ("lengths", "sizes", "positives"):
            stats[key] = {int(number): count for number, count in stats[key].items()}
        stats["calibration"] = {int(tenth): tuple(pair) for tenth, pair in stats["calibration"].items()}
        for key in ("size_quartiles", "positive_quartiles"):
            stats[key] = tuple(stats[key])
        return probe, GroupStats(**stats)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is not of a form this version knows ({error}); delete it") from error


def flat_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as `section.key`."""
    found = {}
    for section, table in values.items():
        if isinstance(table, Mapping):
            for key, value in table.items():
                found[f"{section}.{key}"] = value
    return found


def read_log_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a run log; a half-written last line is left out, a damaged one before it is refused."""
    lines, damaged = read_log(path)
    inside = [number for number in damaged if number <= len(lines) or not lines]
    if inside:
        raise DataError(f"{path}, line {inside[0]} is not JSON or is no JSON object; is this the log of a training?")
    return lines


def series_of(lines: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> tuple[Series, ...]:
    """The lines of a run log by stage, in the order the stages ran."""
    stages: dict[str, list[Epoch]] = {}
    for line in lines:
        values = {}
        for name, value in line.items():
            if name not in (*CONTEXT, "time"):
                values[name.removeprefix("train/")] = _number(value)
        stages.setdefault(str(line.get("stage", "train")), []).append(Epoch(line.get("epoch"), values))
    found = []
    for stage, epochs in stages.items():
        own = {}  # the settings of this stage without its name
        for key, value in settings.items():
            section, _, name = key.partition(".")
            if section == stage:
                own[name] = value
        found.append(Series(stage, tuple(epochs), settings=own, exact=True))
    return tuple(found)


def _number(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


def read_picks(path: Path) -> list[PickCounts]:
    """What every arm chose, by number of shots."""
    if not path.is_file():
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["arm", "shots", "demos"]).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({str(error)[:200]}); `lever eval` makes it again") from error
    chosen: dict[tuple[str, int], list[Sequence[str]]] = {}
    for arm, shots, demos in zip(table["arm"], table["shots"], table["demos"], strict=True):
        chosen.setdefault((arm, shots), []).append(demos)
    return [picks_of(arm, shots, lists) for (arm, shots), lists in chosen.items() if shots > 0]


def picks_of(arm: str, shots: int, lists: Sequence[Sequence[str]]) -> PickCounts:
    """How varied the choices of an arm are."""
    counts = Counter(demo for demos in lists for demo in demos)
    total = max(sum(counts.values()), 1)
    common = [count for _, count in counts.most_common(10)]
    return PickCounts(
        arm=arm,
        shots=shots,
        items=len(lists),
        distinct=len(counts),
        top1=(common[0] if common else 0) / total,
        top10=sum(common) / total,
        length=sum(len(demos) for demos in lists) / max(len(lists), 1),
        same=max(Counter(map(len, lists)).values(), default=0) / max(len(lists), 1),
    )


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value: dict[str, Any] = parse_own_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is damaged ({error}); make it again, or delete it") from error
    return value
