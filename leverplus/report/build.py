"""Builds report.html: everything a run folder holds, in one file that opens anywhere, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from leverplus import rundir
from leverplus.errors import LeverError
from leverplus.evaluation.names import arm_name, shots_name
from leverplus.recipe.recipe import Recipe, load_recipe, recipe_names
from leverplus.report import curves, figures, groups, tables
from leverplus.report.checkpoints import Pooled, agreement_figure
from leverplus.report.data import RunFiles, read_run
from leverplus.report.examples import examples, fates, most_used, picks_table
from leverplus.report.figures import Figure
from leverplus.report.pictures import Pictures
from leverplus.report.verdict import advice, headline, notes, verdict
from leverplus.rundir import replaced
from leverplus.tasks.base import Task

ASSETS = resources.files("leverplus.report") / "assets"
SCRIPTS = ("plotly-basic.min.js", "report.js")


class ReportedRun(Pooled, Protocol):
    """What the report asks of a run (`pipeline.Run` has it)."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def folder(self) -> Path: ...

    @property
    def seed(self) -> int: ...

    @property
    def task(self) -> Task: ...


def build_report(run: ReportedRun) -> Path:
    """Write report.html into the run folder, replacing it at once; what the folder lacks is said in a sentence."""
    page = render(run, read_run(run.folder))
    path = run.folder / rundir.REPORT
    with replaced(path) as part:
        # a text that is no valid Unicode (half a surrogate pair from a JSON file) is shown with a question mark
        part.write_bytes(page.encode("utf-8", errors="replace"))
    return path


def render(run: ReportedRun, files: RunFiles) -> str:
    """The page as text."""
    import jinja2

    try:
        pictures = Pictures(run.task)
        run.task.items("train")
    except (LeverError, OSError) as error:
        pictures = Pictures(None)
        files.missing["task"] = f"The task's items cannot be reached, so they are shown by id without pictures: {error}"
    sections = {
        **results_part(files),
        **training_part(files),
        **examples_part(files, pictures),
        "agreement": agreement_part(run, files),
        **origin_part(run, files),
    }
    drawn = [figure for value in sections.values() for figure in _figures(value)]
    scripts = [_asset(name) for name in SCRIPTS]
    loader = jinja2.FunctionLoader(_asset)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.get_template("report.html.j2").render(
        **sections,
        missing=files.missing,
        style=_asset("report.css"),
        picture_style=pictures.style_sheet(),
        figure_json=script_json({f.id: {"data": f.data, "layout": f.layout, "height": f.height} for f in drawn}),
        scripts=scripts,
        script_hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        arm_name=arm_name,
        shots_name=shots_name,
    )


def results_part(files: RunFiles) -> dict[str, Any]:
    """Verdict, accuracy, differences, help and harm, cost."""
    results, predictions = files.results, files.predictions
    rows: Sequence[Mapping[str, Any]] = results["comparisons"] if results else []
    part: dict[str, Any] = {
        "results": results,
        "verdict": verdict(results) if results else files.missing[rundir.EVAL],
        "advice": advice(results) if results else "",
        "notes": notes(results) if results else [],
        "headline": headline(results) if results else None,
        "forest": figures.forest_figure(rows) if rows else None,
        "help_harm": tables.help_harm_table(rows) if rows else None,
        "gap": tables.gap_table(results["gap_closed"]) if results and results.get("gap_closed") else None,
        "regret": None,
        "accuracy": None,
        "zero_shot_table": None,
        "cost": None,
    }
    regret = (results or {}).get("regret", {}).get("learned")
    if regret:
        part["regret"] = figures.regret_figure(regret)
    if predictions is not None:
        part["accuracy"] = figures.accuracy_figure(figures.estimates(predictions), len(predictions.items))
        part["zero_shot_table"] = tables.against_zero_shot(predictions)
        calls = results.get("model_calls") if results else None
        if isinstance(calls, int):
            part["cost"] = figures.cost_figure(predictions, calls, files.log)
    return part


def training_part(files: RunFiles) -> dict[str, Any]:
    """Curves, rewards and the doctor's findings."""
    found = files.findings or []
    return {
        "curves": curves.curve_figures(curves.TRAINING, files.log, found),
        "histograms": groups.group_figures(files.groups),
        "group_table": groups.group_table(files.groups) if files.groups else None,
        "rewards": curves.curve_figures(curves.REWARDS, files.log, found),
        "findings": files.findings,
        "fired": [curves.fired_at(finding, files.log) for finding in found],
        "stages": list(curves.stage_starts(files.log).values()),
    }


def examples_part(files: RunFiles, pictures: Pictures) -> dict[str, Any]:
    """Picks and single queries."""
    predictions = files.predictions
    if predictions is None:
        return {"picks": None, "most_used": [], "examples": [], "fate_counts": {}}
    row = headline(files.results) if files.results else None
    fate = list(fates(predictions, row).values())
    return {
        "picks": picks_table(predictions),
        "most_used": most_used(predictions, pictures),
        "examples": examples(predictions, pictures, row),
        "fate_counts": {kind: fate.count(kind) for kind in ("helped", "harmed", "same")} if fate else {},
    }


def agreement_part(run: ReportedRun, files: RunFiles) -> Figure | None:
    """How the picks settled from checkpoint to checkpoint, on evaluated queries; a sentence where it cannot be told."""
    from leverplus.evaluation.sweep import checkpoint_names

    if files.predictions is None or files.results is None or "learned" not in files.predictions.draws:
        return None
    folder, stages = run.folder / rundir.CHECKPOINTS, list(run.recipe.stages)
    chosen = files.results.get("checkpoint") or (stages[-1] if stages else "")
    try:
        items = [run.task.item(item) for item in files.predictions.items]
        shots = max(files.predictions.shots("learned"))
        found = agreement_figure(run, folder, checkpoint_names(folder, stages), items, chosen=str(chosen), shots=shots)
    except (LeverError, OSError, ValueError) as error:
        files.missing["checkpoints"] = f"The picks of the checkpoints cannot be compared: {error}"
        return None
    if found is None:
        files.missing["checkpoints"] = "There are not two checkpoints whose picks could be compared."
    return found


def origin_part(run: ReportedRun, files: RunFiles) -> dict[str, Any]:
    """Recipe, hashes, versions, and the command that makes the run again."""
    manifest, results = files.manifest, files.results or {}
    facts = {
        "recipe": run.recipe.name,
        "recipe hash": run.recipe.hash,
        "seed": run.seed,
        "scoring context": results.get("context"),
        "commit": manifest.get("commit"),
        "platform": manifest.get("platform"),
    }
    versions = manifest.get("versions")
    return {
        "title": f"{run.recipe.name}, seed {run.seed}",
        "purpose": run.recipe.purpose,
        "facts": {key: str(value) for key, value in facts.items() if value is not None},
        "versions": versions if isinstance(versions, dict) else {},
        "command": command(run),
        "resolved": files.resolved,
    }


def command(run: ReportedRun) -> str:
    """What to type to make the run again: a shipped recipe by name where it is that, else the resolved values."""
    shipped = run.recipe.name in recipe_names() and load_recipe(run.recipe.name).hash == run.recipe.hash
    recipe = run.recipe.name if shipped else shlex.quote(f"{run.folder.resolve().name}/resolved.toml")
    return f"lever run {recipe} --seed {run.seed} --out {shlex.quote(run.folder.resolve().name + '-again')}"


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False)  # ASCII only, so U+2028 and its like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(value: Any) -> list[Figure]:
    if isinstance(value, Figure):
        return [value]
    return [entry for entry in value if isinstance(entry, Figure)] if isinstance(value, list) else []


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
