"""`lever export`: a run, or what `lever import` wrote, in the formats of the earlier Lever-Plus code."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from leverplus.cli.command import Outcome
from leverplus.cli.console import opened
from leverplus.data import rundir
from leverplus.data.metrics.vqa import normalise_answer
from leverplus.errors import DataError, MissingFile
from leverplus.evaluate.record import read_record
from leverplus.run.run import load_run
from leverplus_lab.legacy.groups import (
    FILE,
    beam_from_groups,
    item_numbers,
    read_group_file,
    read_groups,
    read_json_value,
    rl_from_groups,
    write_json_value,
)
from leverplus_lab.legacy.imports import METRICS_FILE, metrics_of, read_metrics

Format = Literal["rl", "beam", "metrics", "pt", "v2", "bare"]


def export(
    source: Path,
    *,
    format_: Format,
    out: Path,
    checkpoint: str | None = None,
    shots: int = 2,
    beam: int = 5,
    names: Literal["layers", "single"] | None = None,
    store: Path | None = None,
) -> Outcome:
    """Writes a run, or what `lever import` wrote, in the formats of the earlier Lever-Plus code.

    RUN: a run folder, a checkpoint, or a folder that `lever import` wrote
    --format: what to write: rl, beam or metrics JSON, or a checkpoint as pt, v2 or bare
    --out FILE: the file to write
    --checkpoint NAME: which checkpoint (default: the only or the last one)
    --shots N: beam: demonstrations in a list (default 2)
    --beam N: beam: lists for each query (default 5)
    --names: names of the attention tensors: cross_attn_layers.0. or the older cross_attn.
    """
    if not source.is_dir():
        raise MissingFile(
            f"there is no folder {source}; give a run folder or one that `lever import` wrote"
        )
    if format_ in ("rl", "beam"):
        line = _groups(source, format_, out, (shots, beam), store)
    elif format_ == "metrics":
        line = _metrics(source, out)
    else:
        line = _checkpoint(_checkpoint_folder(source, checkpoint), format_, out, names)
    return Outcome(
        {"path": str(out), "format": format_, "found": line}, [f"{out}: {line}"]
    )


def _groups(
    source: Path, kind: str, out: Path, lists: tuple[int, int], store: Path | None
) -> str:
    """Imported groups as they are, or those of a run; `lists` says how long beam lists are, and how many."""
    if (source / FILE).is_file():
        file = read_group_file(source)
    else:
        file = read_groups(_from_run(source, kind, lists, store), str(source))
    if file.kind != kind:
        raise DataError(
            f"{source} holds {file.kind} data, which lacks some of what {kind} data need"
        )
    write_json_value(out, file.as_json())
    return f"{len(file.queries):,} queries, {file.sequences():,} sequences"


def _from_run(
    source: Path, kind: str, lists: tuple[int, int], store: Path | None
) -> dict[str, Any]:
    """The groups a run trained on, read from the store."""
    from leverplus.run.train import search_groups  # torch comes in

    with opened(source, store, lock=False) as run:
        groups = search_groups(run)
    task = run.task
    numbers = item_numbers([*task.items("train"), *task.items("dev")])
    if kind == "beam":
        return beam_from_groups(groups, *lists, numbers)
    facts: dict[Any, dict[str, Any]] = {}
    for group in groups:
        item = task.item(group.query)
        facts[group.query] = {
            "question_id": item.id,
            "image_id": item.image_id,
            "question": item.question,
            "gt_answers_raw": list(item.answers),
            "gt_answers_norm": [normalise_answer(answer) for answer in item.answers],
        }
    return rl_from_groups(groups, facts, numbers)


def _metrics(source: Path, out: Path) -> str:
    report = source / rundir.EVAL
    imported = source / METRICS_FILE
    record = read_record(report)
    if imported.is_file():
        found = read_metrics(read_json_value(imported), str(imported))
    elif record is not None:
        written = datetime.fromtimestamp(report.stat().st_mtime, UTC)
        when = written.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        found = metrics_of(record, when)
    else:
        raise MissingFile(f"{source} has no eval.json; type `lever eval {source}`")
    write_json_value(out, found)
    return f"{len(found)} evaluations"


def _checkpoint(folder: Path, layout: str, out: Path, names: str | None) -> str:
    from leverplus.learn.checkpoint import load_checkpoint
    from leverplus_lab.legacy.checkpoints import write_legacy

    policy, description = load_checkpoint(folder)
    facts = description["extra"].get("legacy")
    facts = dict(facts) if facts and facts["layout"] == layout else {}
    if names:
        facts["single"] = names == "single"
    write_legacy(policy, out, layout, facts)
    warning = "; its names (cross_attn.) are ignored by the earlier code since November 2025: --names layers"
    return f"{folder.name} as {layout}" + (warning if facts.get("single") else "")


def _checkpoint_folder(source: Path, name: str | None) -> Path:
    if (source / rundir.WEIGHTS).is_file():
        return source
    choices = []
    for path in sorted((source / rundir.CHECKPOINTS).glob(f"*/{rundir.WEIGHTS}")):
        choices.append(path.parent.name)
    if name is None and (source / rundir.RESOLVED).is_file():
        last = list(load_run(source).recipe.stages)[-1]
        name = last if last in choices else None
    if name is None and len(choices) == 1:
        name = choices[0]
    if name not in choices:
        known = ", ".join(choices) or "none"
        raise MissingFile(
            f"{source}: say which checkpoint with --checkpoint NAME; it has {known}"
        )
    return source / rundir.CHECKPOINTS / str(name)
