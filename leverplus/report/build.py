"""Builds report.html: everything a run folder holds, in one file that opens anywhere, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leverplus import rundir
from leverplus.errors import LeverError
from leverplus.evaluation.names import arm_name, shots_name
from leverplus.recipe.recipe import Recipe, load_recipe, recipe_names
from leverplus.report import curves, figures, groups, tables
from leverplus.report.checkpoints import HasPools, agreement_figure
from leverplus.report.data import RunFiles, read_run_files
from leverplus.report.examples import examples, fates, most_used, usage_table, worth_alone
from leverplus.report.figures import Figure
from leverplus.report.pictures import Thumbnails
from leverplus.report.verdict import advice, headline, notes, verdict
from leverplus.rundir import write_atomically
from leverplus.tasks.base import Task

if TYPE_CHECKING:
    import jinja2

ASSETS = resources.files("leverplus.report") / "assets"
SCRIPTS = ("plotly-basic.min.js", "report.js")


class ReportedRun(HasPools, Protocol):
    """What the report asks of a run (`experiment.run.Run` has it)."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def folder(self) -> Path: ...

    @property
    def seed(self) -> int: ...

    @property
    def task(self) -> Task: ...


def build_report(run: ReportedRun) -> Path:
    """Write report.html into the run folder, atomically; a sentence on the page names each file that is missing."""
    page = render_report(run, read_run_files(run.folder))
    path = run.folder / rundir.REPORT
    with write_atomically(path) as part:
        # A text that is no valid Unicode (half a surrogate pair from a JSON file) is shown with a question mark.
        part.write_bytes(page.encode("utf-8", errors="replace"))
    return path


def render_report(run: ReportedRun, files: RunFiles) -> str:
    """The page as text."""
    try:
        pictures = Thumbnails(run.task)
        run.task.items("train")
    except (LeverError, OSError) as error:
        pictures = Thumbnails(None)
        files.missing["task"] = f"The task's items cannot be reached, so they are shown by id without pictures: {error}"
    sections = {
        **results_part(files),
        **training_part(files),
        **examples_part(files, pictures),
        "worth_alone": worth_alone(files.groups, pictures),
        "agreement": agreement_part(run, files),
        **origin_part(run, files),
    }
    drawn: list[Figure] = []
    for value in sections.values():
        drawn += _figures(value)
    return fill_template(
        "report.html.j2",
        drawn,
        **sections,
        missing=files.missing,
        picture_style=pictures.style_sheet(),
        arm_name=arm_name,
        shots_name=shots_name,
    )


def fill_template(name: str, drawn: Sequence[Figure], **values: Any) -> str:
    """A page from one of our templates, with the charts it draws, their scripts and the style sheet inside."""
    scripts = [_asset(script) for script in SCRIPTS]
    # The page's content security policy lets only scripts with these hashes run.
    hashes = [f"'sha256-{_digest(script)}'" for script in scripts]
    return (
        _environment()
        .get_template(name)
        .render(
            **values,
            style=_asset("report.css"),
            figure_json=script_json(figures.figure_values(drawn)),
            scripts=scripts,
            script_hashes=" ".join(hashes),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    """Keeps templates once they are compiled, which takes longer than to fill them."""
    import jinja2

    loader = jinja2.FunctionLoader(_asset)
    made = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    made.filters["with_code"] = with_code
    return made


def with_code(words: Any) -> Any:
    """A sentence for a page, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))


def results_part(files: RunFiles) -> dict[str, Any]:
    """Verdict, accuracy, differences, help and harm, cost."""
    results, predictions = files.results, files.predictions
    part: dict[str, Any] = {
        "results": results,
        "verdict": "",
        "advice": "",
        "pilot": [],
        "notes": [],
        "headline": None,
        "forests": [],
        "help_harm": [],
        "gap": None,
        "regret": None,
        "accuracy": None,
        "zero_shot_table": None,
        "cost": None,
    }
    if results:
        part |= _of_results(results)
    else:
        part["verdict"] = files.missing[rundir.EVAL]
    if predictions is not None:
        advised = (results or {}).get("advice")
        part["accuracy"] = figures.accuracy_figure(
            figures.estimates(predictions),
            len(predictions.items),
            advised.get("arm") if isinstance(advised, Mapping) else None,
        )
        shared = len(set(predictions.images)) < len(predictions.images)
        part["drawn_over"] = "images" if shared else "items"
        part["zero_shot_table"] = tables.against_zero_shot(predictions)
        calls = results.get("model_calls") if results else None
        if isinstance(calls, int):
            part["cost"] = figures.cost_figure(predictions, calls, files.log)
    return part


def _of_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the page that eval.json alone gives."""
    part: dict[str, Any] = {
        "verdict": verdict(results),
        "advice": advice(results),
        "pilot": (results.get("pilot") or {}).get("says", []),
        "notes": notes(results),
        "headline": headline(results),
    }
    rows: Sequence[Mapping[str, Any]] = results["comparisons"]
    if rows:
        part["forests"] = figures.forest_figures(rows)
        part["help_harm"] = tables.help_harm_tables(rows)
    if results.get("gap_closed"):
        part["gap"] = tables.gap_table(results["gap_closed"])
    regret = results.get("regret", {}).get("learned")
    if regret:
        part["regret"] = figures.regret_figure(regret)
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


def examples_part(files: RunFiles, pictures: Thumbnails) -> dict[str, Any]:
    """Picks and single queries."""
    predictions = files.predictions
    if predictions is None:
        return {"picks": None, "most_used": [], "examples": [], "fate_counts": {}}
    row = headline(files.results) if files.results else None
    fate = list(fates(predictions, row).values())
    fate_counts = {}
    if fate:
        fate_counts = {kind: fate.count(kind) for kind in ("helped", "harmed", "same")}
    return {
        "picks": usage_table(predictions),
        "most_used": most_used(predictions, pictures),
        "examples": examples(predictions, pictures, row),
        "fate_counts": fate_counts,
    }


def agreement_part(run: ReportedRun, files: RunFiles) -> Figure | None:
    """How the picks settled from checkpoint to checkpoint, on evaluated queries; None, with a sentence, if unknown."""
    from leverplus.evaluation.checkpoints import checkpoint_names

    if files.predictions is None or files.results is None or "learned" not in files.predictions.draws:
        return None
    folder, stages = run.folder / rundir.CHECKPOINTS, list(run.recipe.stages)
    last = stages[-1] if stages else ""
    chosen = files.results.get("checkpoint") or last
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
    """What to type to make the run again: the name of a shipped recipe that was not changed, else resolved.toml."""
    name = run.folder.resolve().name
    shipped = run.recipe.name in recipe_names() and load_recipe(run.recipe.name).hash == run.recipe.hash
    recipe = run.recipe.name if shipped else shlex.quote(f"{name}/resolved.toml")
    return f"lever run {recipe} --seed {run.seed} --out {shlex.quote(name + '-again')}"


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False)  # ASCII only, so U+2028 and its like are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(value: Any) -> list[Figure]:
    """The charts of a part of the page, which is one chart, a list with charts, or something else."""
    if isinstance(value, Figure):
        return [value]
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, Figure)]
    return []


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
