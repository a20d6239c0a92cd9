"""Reads a run folder back; a file that is missing or damaged becomes a sentence for the page, never a stack trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus import rundir
from leverplus.errors import DataError, LeverError
from leverplus.evaluation.predictions import Results, read_predictions
from leverplus.parsing import parse_own_json
from leverplus.renamed import stage_today
from leverplus.report.form import is_number, is_results
from leverplus.rundir import read_log
from leverplus.version import __version__

FINDING_DEFAULTS = {"code": "", "severity": "info", "title": "", "cause": "", "try": ""}
"""Fields that a finding may leave out, and what stands for them."""


@dataclass
class RunFiles:
    """The readable parts of a run folder; None or empty where there is nothing, with a sentence in `missing`."""

    manifest: dict[str, Any]
    resolved: str
    results: dict[str, Any] | None
    predictions: Results | None
    log: list[dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    """What each stage learnt from, in the order of the log."""
    findings: list[dict[str, Any]] | None
    missing: dict[str, str]


def read_run_files(folder: Path, *, with_predictions: bool = True) -> RunFiles:
    """Read what is there; see `RunFiles.missing` for what is not. Predictions may be large and can be left out."""
    missing: dict[str, str] = {}
    results = _read_results(folder / rundir.EVAL, missing)
    predictions = _read_predictions(folder / rundir.PREDICTIONS, missing) if with_predictions else None
    if results is not None and predictions is not None and len(predictions.items) != results["n"]:
        missing[rundir.PREDICTIONS] = (
            f"predictions.parquet holds {len(predictions.items)} items and eval.json {results['n']}, so they are of "
            "different evaluations; `lever eval` makes both again."
        )
        predictions = None
    resolved = folder / rundir.RESOLVED
    log = _read_log(folder / rundir.LOG, missing)
    stages = list(dict.fromkeys(str(line.get("stage", "")) for line in log))  # each once, in the order of the log
    return RunFiles(
        manifest=_read_json(folder / rundir.MANIFEST, missing, "`lever run` makes it") or {},
        resolved=resolved.read_text(encoding="utf-8") if resolved.is_file() else "",
        results=results,
        predictions=predictions,
        log=log,
        groups=_read_groups(folder, stages, missing),
        findings=_read_findings(folder / rundir.FINDINGS, missing),
        missing=missing,
    )


def _read_findings(path: Path, missing: dict[str, str]) -> list[dict[str, Any]] | None:
    """The doctor's findings, with every field that a page shows."""
    value = _read_json(path, missing, "`lever doctor` makes it")
    if value is None:
        return None
    listed = value.get("findings")
    if not isinstance(listed, list):
        missing[path.name] = "findings.json is not of a form this version knows; `lever doctor` makes it again."
        return None
    return [{**FINDING_DEFAULTS, **entry} for entry in listed if isinstance(entry, dict)]


def _read_json(path: Path, missing: dict[str, str], maker: str) -> dict[str, Any] | None:
    """The JSON object in a file; None, with a sentence in `missing`, where there is none that can be read."""
    if not path.is_file():
        missing[path.name] = f"There is no {path.name} in this run folder; {maker}."
        return None
    try:
        value = parse_own_json(path.read_bytes())
    except (ValueError, OSError) as error:
        missing[path.name] = f"{path.name} cannot be read ({error}); {maker} again."
        return None
    if not isinstance(value, dict):
        missing[path.name] = f"{path.name} holds no JSON object; {maker} again."
        return None
    return value


def _read_results(path: Path, missing: dict[str, str]) -> dict[str, Any] | None:
    """eval.json, if it holds what the report shows."""
    results = _read_json(path, missing, "`lever eval` makes it")
    if results is not None and not is_results(results):
        missing[path.name] = f"{path.name} is not of a form this version knows; `lever eval` makes it again."
        return None
    return results


def _read_log(path: Path, missing: dict[str, str]) -> list[dict[str, Any]]:
    """The lines of the run log; a last line cut short by an interruption is left out."""
    if not path.is_file():
        missing[path.name] = f"There is no {path.name} in this run folder; `lever train` makes it."
        return []
    lines, damaged = read_log(path)
    if damaged:
        missing[path.name] = f"{len(damaged)} damaged line(s) of {path.name} were left out."
    return lines


def _read_groups(folder: Path, stages: Sequence[str], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The counts every stage made of its groups; a run of an earlier version has none."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("groups-*.json")):
        value = _read_json(path, missing, "`lever train` makes it")
        if value is not None and not all(_is_histogram(value.get(key)) for key in ("rewards", "spread")):
            missing[path.name] = f"{path.name} is not of a form this version knows."
        elif value is not None:
            found[stage_today(path.stem.removeprefix("groups-"))] = value

    def order(stage: str) -> int:
        return stages.index(stage) if stage in stages else -1  # a stage that the log lacks comes first

    return {stage: found[stage] for stage in sorted(found, key=order)}


def _is_histogram(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    edges, counts = value.get("edges"), value.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list) or not counts:
        return False
    return len(edges) == len(counts) + 1


def _read_predictions(path: Path, missing: dict[str, str]) -> Results | None:
    if not path.is_file():
        missing[path.name] = f"There is no {path.name} in this run folder; `lever eval` makes it."
        return None
    try:
        return read_predictions(path)
    except (LeverError, OSError) as error:
        missing[path.name] = f"{path.name} cannot be used: {error}."
        return None


def newer_version_note(manifest: Mapping[str, Any]) -> str:
    """A sentence for a run that a newer version made; "" otherwise."""
    versions = manifest.get("versions")
    made = str(versions.get("leverplus", "")) if isinstance(versions, Mapping) else ""
    if _version(made) <= _version(__version__):
        return ""
    return (
        f"This run was made by leverplus {made[:40]} and this is {__version__}, so it may not be read rightly; "
        "type `pip install --upgrade leverplus`."
    )


def require_manifest(folder: Path) -> None:
    """Refuse a half-written run, and one of a newer version, where the run itself must be loaded."""
    manifest = _read_json(folder / rundir.MANIFEST, {}, "`lever run` makes it") or {}
    known = all(isinstance(manifest.get(key), str) for key in ("recipe", "recipe_hash"))
    if not known or not isinstance(manifest.get("seed"), int):
        raise DataError(f"{folder.name} has no whole run.json yet, so it cannot be loaded; `lever run` makes it")
    sentence = newer_version_note(manifest)
    if sentence:
        raise DataError(sentence)


def _version(text: str) -> tuple[int, ...]:
    """The first three numbers of a version, to compare by; 0.2.0+local -> (0, 2, 0)."""
    parts = text.split("+", maxsplit=1)[0].split(".")[:3]
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in parts)


def logged_number(line: Mapping[str, Any], key: str) -> float | None:
    """A number of a log line, None where it is absent or was not finite."""
    value = line.get(key)
    return float(value) if is_number(value) else None
