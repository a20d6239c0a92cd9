"""The page of a run, and report.html: the same page saved to one file that opens anywhere, without a network."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.data import rundir
from leverplus.data.rundir import write_atomically
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item, ItemId
from leverplus.errors import LeverError
from leverplus.evaluate.names import arm_name
from leverplus.evaluate.predictions import Results
from leverplus.evaluate.record import ComparisonRow
from leverplus.evaluate.verdict import headline, verdict
from leverplus.run.recipe import load_recipe, recipe_names
from leverplus.web import figures
from leverplus.web.figures import Table
from leverplus.web.pages import Card, render, webp
from leverplus.web.runs import RunFiles, measured_effects, read_run

if TYPE_CHECKING:
    from leverplus.run.run import Run

EXAMPLES = 30  # queries on the page
MOST_USED = 12  # demonstrations in the list of those used most
SIDE = 96  # pixels of a thumbnail's longer side
FATES = ("helped", "harmed", "same")


class Cards:
    """Items as pages show them; by their ids alone where the task's data cannot be reached (None)."""

    def __init__(self, task: Task | None) -> None:
        self.task = task

    def card(self, item_id: str, note: str = "") -> Card:
        """An item as a card; its id alone where the task does not know it."""
        if self.task is None:
            return Card(item_id, note=note)
        try:
            item = self.task.item(ItemId(item_id))
        except LeverError:
            return Card(item_id, note=note)
        return Card.of(item, self.picture(self.task, item), note)

    def picture(self, task: Task, item: Item) -> str:  # noqa: ARG002 for thumbnails
        """What says that an item has a picture; "" where it has none."""
        return item.image or ""


class Thumbnails(Cards):
    """Cards with small pictures, each embedded once."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)
        self._class_of: dict[str | None, str] = {None: ""}
        self._content: dict[bytes, str] = {}

    def picture(self, task: Task, item: Item) -> str:
        """The class that shows an item's picture; "" where it has none or it cannot be read."""
        if item.image not in self._class_of:
            name = ""
            try:
                image = task.image(item)
            except (LeverError, OSError):
                image = None
            if image is not None:  # equal pictures under two paths get one class
                content = webp(image, SIDE)
                name = self._content.setdefault(content, f"p{len(self._content)}")
            self._class_of[item.image] = name
        return self._class_of[item.image]

    def style_sheet(self) -> str:
        """One rule per picture."""
        rules = []
        for content, name in self._content.items():
            data = base64.b64encode(content).decode()
            url = f"url(data:image/webp;base64,{data})"
            rules.append(f".{name}{{background-image:{url}}}")
        return "\n".join(rules)


def build_report(run: Run) -> Path:
    """Write report.html into the run folder, atomically; a sentence on the page names each file that is missing."""
    files = read_run(run.folder)
    pictures = Thumbnails(run.task)
    try:
        run.task.items("train")
    except (LeverError, OSError) as error:
        pictures.task = None
        files.missing["task"] = (
            f"The task's items cannot be reached, so they are shown by id without pictures: {error}"
        )
    values = {
        **run_values(files),
        **example_values(files, pictures),
        **origin_values(run, files),
        "picture_style": pictures.style_sheet(),
    }
    path = run.folder / rundir.REPORT
    with write_atomically(path) as part:
        part.write_bytes(render("run", saved=True, **values))
    return path


def run_values(files: RunFiles) -> dict[str, Any]:
    """What the page of a run shows of its results and its training, for a saved page and for one that is served."""
    record = files.record
    found = files.findings or []
    curves = figures.curve_figures(files.log, found)
    histograms = figures.group_figures(files.groups)
    values: dict[str, Any] = {
        "record": record,
        "missing": files.missing,
        "curves": curves,
        "stages": list(figures.stage_starts(files.log).values()),
        "findings": files.findings,
        "fired": [figures.fired_at(finding, files.log) for finding in found],
        "histograms": histograms,
        "figures": [*curves, *histograms],
    }
    if files.groups:
        values["group_table"] = figures.group_table(files.groups)
    if record is None:
        return values
    charts = {"accuracy": figures.accuracy_figure(record)}
    if record.model_calls is not None:
        charts["cost"] = figures.cost_figure(record)
    if "learned" in record.regret:
        charts["regret"] = figures.regret_figure(record.regret["learned"])
    if record.gap_closed:
        values["gap"] = figures.gap_table(record)
    forests = figures.forest_figures(record.comparisons)
    values["figures"] += [*charts.values(), *forests]
    return {**values, **charts, "forests": forests, "verdict": verdict(record)}


def example_values(files: RunFiles, pictures: Thumbnails) -> dict[str, Any]:
    """Picks and single queries."""
    values: dict[str, Any] = {}
    effects = measured_effects(files)
    if effects is not None:
        ends = {}
        for end in ("useful", "harmful"):
            ends[end] = [_effect_card(line, pictures) for line in effects[end]]
        values["effects"] = {**effects, **ends}
    results = files.predictions
    if results is None:
        return values
    row = headline(files.record)
    fate = fates(results, row)
    most_used = []
    examples = []
    if "learned" in results.draws:
        used = demo_counts(results, "learned")
        ranked = sorted(used, key=lambda demo: (-used[demo], demo))
        for demo in ranked[:MOST_USED]:
            most_used.append(pictures.card(demo, f"{used[demo]}×"))
    for item in chosen_items(results.items, fate):
        by_shots = []
        for shots in results.shown_shots():
            by_shots.append((shots, arm_rows(results, item, shots, pictures)))
        card = pictures.card(item)
        examples.append((card, fate.get(item, ""), by_shots))
    return {
        **values,
        "picks": usage_table(results),
        "most_used": most_used,
        "examples": examples,
        "headline": row,
        "fates": Counter(fate.values()),
    }


def _effect_card(line: Mapping[str, Any], pictures: Thumbnails) -> Card:
    points = f"{100 * line['effect']:+.1f} (error {100 * line['error']:.1f})"
    return pictures.card(line["demo"], f"{points}, {line['shown']} queries")


def fates(results: Results, row: ComparisonRow | None) -> dict[str, str]:
    """Whether the learned arm helped or harmed each item against the baseline of a comparison; {} without one."""
    if row is None or "learned" not in results.draws:
        return {}
    against = results.against(row.baseline, row.shots)
    if against is None:
        return {}
    own = results.accuracy("learned", row.shots)
    base = results.accuracy(row.baseline, against)
    return dict(zip(results.items, fate_names(own - base), strict=True))


def fate_names(gains: Any) -> list[str]:
    """helped, harmed or same, for every gain; means over draws differ by rounding."""
    names = []
    for gain in gains:
        name = "same"
        if abs(gain) > 1e-6:
            name = "harmed"
            if gain > 0:
                name = "helped"
        names.append(name)
    return names


def chosen_items(
    items: Sequence[ItemId], fate: Mapping[str, str], count: int = EXAMPLES
) -> list[ItemId]:
    """A third helped, a third harmed, a third unchanged, drawn by a hash of their ids; filled up where one runs out."""
    order = sorted(items, key=lambda item: hashlib.sha256(item.encode()).digest())
    picked: list[ItemId] = []
    for kind in FATES:
        alike = [own for own in order if fate.get(own, "same") == kind]
        picked += alike[: count // 3]
    others = [own for own in order if own not in picked]
    picked += others[: count - len(picked)]
    return sorted(picked, key=lambda item: FATES.index(fate.get(item, "same")))


def arm_rows(
    results: Results, item: ItemId, shots: int, cards: Cards
) -> list[tuple[str, list[Card], str, float]]:
    """What every arm showed an item at a number of shots, in prompt order, its answer and accuracy.

    Of an arm with several draws the first; one that shows nothing is there at every number of shots.
    """
    rows = []
    place = results.items.index(item)
    for arm in results.draws:
        at = results.against(arm, shots)
        if at is not None:
            own = results.first(arm, at)[place]
            demos = list(map(cards.card, own.demos))
            rows.append((arm, demos, own.answer, own.accuracy))
    return rows


def demo_counts(results: Results, arm: str) -> Counter[str]:
    """How often an arm showed each demonstration at its most shots, over items and draws."""
    counts: Counter[str] = Counter()
    most = max(results.shots(arm))
    for draw in results.draws[arm][most]:
        for prediction in draw:
            counts.update(prediction.demos)
    return counts


def usage_table(results: Results) -> Table:
    """How many different demonstrations each arm used, at its most shots."""
    rows = []
    for arm in results.draws:
        used = demo_counts(results, arm)
        picks = used.total()
        if picks:
            ten = dict(used.most_common(10))
            top = sum(ten.values()) / picks
            shots = str(max(results.shots(arm)))
            counts = (f"{picks:,}", f"{len(used):,}", f"{100 * top:.1f} %")
            rows.append((arm_name(arm), shots, *counts))
    return Table(("who chooses", "shots", "picks", "distinct", "top-10 share"), rows)


def origin_values(run: Run, files: RunFiles) -> dict[str, Any]:
    """Recipe, hashes, versions, and the command that makes the run again."""
    recipe = run.recipe
    manifest = files.manifest
    facts = {
        "recipe": recipe.name,
        "recipe hash": recipe.hash,
        "seed": run.seed,
        "commit": manifest.get("commit"),
        "platform": manifest.get("platform"),
        **(manifest.get("versions") or {}),
    }
    if files.record is not None:
        facts["scoring context"] = files.record.context
    return {
        "title": f"{recipe.name}, seed {run.seed}",
        "purpose": recipe.purpose,
        "facts": {key: str(value) for key, value in facts.items() if value is not None},
        "command": command(run),
        "resolved": files.read(rundir.RESOLVED, "lever run", Path.read_text),
    }


def command(run: Run) -> str:
    """What to type to make the run again: the name of a shipped recipe that was not changed, else resolved.toml."""
    name = run.folder.resolve().name
    recipe = run.recipe.name
    shipped = recipe in recipe_names() and load_recipe(recipe).hash == run.recipe.hash
    source = recipe if shipped else shlex.quote(f"{name}/resolved.toml")
    return f"lever run {source} --seed {run.seed} --out {shlex.quote(name + '-again')}"
