"""Data and stored answers: a data set checked, the store of paid-for scores, the scores of a recipe as one file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus import catalog
from leverplus.cli.command import Bars, Outcome, Table
from leverplus.data.formats import Problems
from leverplus.data.settings import read_section
from leverplus.data.tasks.base import FileTask, check_picture_files
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import ItemId
from leverplus.errors import RecipeError, WrongUsage
from leverplus.models.open import build_task
from leverplus.run.recipe import apply_override, load_recipe
from leverplus.run.run import Run, load_run
from leverplus.scores.store import ScoreStore, default_store_path

if TYPE_CHECKING:
    from leverplus.data.tasks.base import Task
    from leverplus.data.types import Item

SPLITS = ("train", "dev", "test")


def check_task(task: str, *, set_: Sequence[str] = (), quick: bool = False) -> Outcome:
    """Says what a task found, what is missing and where to get it.

    TASK: the name of a task, such as jsonl, labels or okvqa
    --set KEY=VALUE ...: a value of [task], such as folder=data/okvqa
    --quick: read only the beginning and the end of each picture
    """
    loaded = load_task(task, set_)
    rules = loaded.answers
    lines = [
        f"{loaded.name} (version {loaded.version}, judged by {rules.metric}, cut {rules.cut})"
    ]
    splits = {}
    for split in SPLITS:
        items = loaded.items(split)
        answers = set()
        pictures = set()
        for item in items:
            answers.add(item.answer)
            pictures.add(item.image)
        counts = {
            "items": len(items),
            "pictures": len(pictures - {None}),
            "answers": len(answers),
        }
        splits[split] = counts
        lines.append(
            f"  {split:5} {counts['items']:>7,} items, {counts['pictures']:,} pictures, {counts['answers']:,} different answers"
        )
    decoded = 0
    if not quick and isinstance(loaded, FileTask):
        decoded = _decode_pictures(loaded)
        lines.append(f"  all {decoded:,} pictures can be read")
    notes = list(getattr(loaded, "notes", ()))
    for note in notes:
        lines.append(f"  note: {note}")
    value = {
        "task": loaded.name,
        "version": loaded.version,
        "metric": rules.metric,
        "cut": rules.cut,
        "splits": splits,
        "pictures_decoded": decoded,
        "notes": notes,
    }
    return Outcome(value, lines)


def load_task(name: str, overrides: Sequence[str]) -> Task:
    """A task by name and `key=value` settings of its section."""
    # an unknown name is answered before its settings are read
    catalog.load(catalog.TASKS, name, "task")
    problems: list[str] = []
    values = {"task": {"name": name}}
    for override in overrides:
        key = override.removeprefix("task.")
        apply_override(values, f"task.{key}", problems)
    section = read_section(TaskSection, values["task"], "task.", problems)
    if problems or section is None:
        raise RecipeError(f"task {name}", problems)
    return build_task(section)


def _decode_pictures(task: FileTask) -> int:
    """Read every picture to its end; broken ones are named together."""
    problems = Problems(task.name)
    items: list[Item] = []
    for split in SPLITS:
        items += task.items(split)
    seen = check_picture_files(items, task.places, problems, decode=True)
    problems.finish()
    return seen


def store_stats(*, store: Path | None = None) -> Outcome:
    """Counts the stored scores, by model and task."""
    path = store or default_store_path()
    with ScoreStore(path, must_exist=True) as opened:
        stats = opened.stats()
    line = f"{path}: {stats['records']:,} scores, {stats['bytes'] / 1e6:.1f} MB"
    if stats["records"]:
        line += f", {stats['bytes_per_record']:.0f} bytes a record"
    rows = []
    for entry in stats["contexts"]:
        named = entry["backend"].get("model") or ", ".join(entry["backend"].values())
        cells = [entry["digest"][:8], named, f"{entry['task']} {entry['task_version']}"]
        for key in ("records", "queries", "tokens"):
            cells.append(f"{entry[key]:,}")
        rows.append([*cells, f"{entry['seconds']:,.1f}"])
    header = (
        "context",
        "model",
        "task",
        "scores",
        "queries",
        "tokens",
        "model seconds",
    )
    return Outcome(stats, [line, Table("", header, rows)])


def export_store(out: Path, *, store: Path | None = None) -> Outcome:
    """Writes all scores to a Parquet file.

    OUT: the Parquet file to write
    """
    from leverplus.scores.exchange import export_parquet

    with ScoreStore(store or default_store_path(), must_exist=True) as opened:
        contexts = opened.contexts()
        written = export_parquet(opened, out, contexts)
    return Outcome(
        {"path": str(out), "records": written, "contexts": len(contexts)},
        [f"{out}: {written:,} scores of {len(contexts)} contexts"],
    )


def merge_stores(others: Sequence[Path], *, store: Path | None = None) -> Outcome:
    """Adds the scores of other stores or exports; exit code 1 if some were damaged.

    OTHER: a store or a Parquet export
    """
    from leverplus.scores.exchange import merge

    path = store or default_store_path()
    with ScoreStore(path) as opened:
        report = merge(opened, *others)
        total = opened.count()
    lines = [
        f"{path}: {report.added:,} of {report.read:,} scores were new, {total:,} in all"
    ]
    if report.conflicts:
        lines.append(
            f"{report.conflicts:,} scores had been measured with another result; those already in the store were kept"
        )
    if report.salvaged:
        lines.append(
            "a damaged store was read page by page; what its checksums prove was taken over"
        )
    if report.damaged:
        lines.append(
            f"{report.damaged:,} damaged scores were left out; make the file again, or measure them again"
        )
    value = {"path": str(path), **dataclasses.asdict(report), "records": total}
    return Outcome(value, lines, int(report.damaged > 0))


def verify_store(*, store: Path | None = None) -> Outcome:
    """Reads all scores and checks them; exit code 1 if something is wrong."""
    from leverplus.scores.exchange import verify

    path = store or default_store_path()
    with ScoreStore(path, must_exist=True) as opened:
        report = verify(opened)
    verdict = "clean"
    if not report.clean:
        verdict = f"{report.problem_count:,} problems"
    lines = [
        f"{path}: {report.records:,} scores in {report.contexts} contexts, {verdict}"
    ]
    for problem in report.problems:
        lines.append(f"  - {problem}")
    if not report.clean:
        lines.append(
            f"keep what is whole with `lever store merge --store NEW.db {path}`; the rest is measured again"
        )
    value = {"path": str(path), "clean": report.clean, **dataclasses.asdict(report)}
    return Outcome(value, lines, int(not report.clean))


def record(
    recipe: str,
    *,
    out: Path,
    set_: Sequence[str] = (),
    seed: int = 0,
    licence: str = "",
    store: Path | None = None,
) -> Outcome:
    """Writes the scores of a recipe or run as a recorded table.

    RECIPE: a recipe's name or TOML file, or a run folder
    --out FILE.parquet: the file to write; answers to test queries go to FILE-test.parquet
    --set KEY=VALUE ...: override a value of the recipe
    --seed N: seed that draws the training queries (default 0)
    --licence TEXT: what the table's card says about its licence
    """
    from leverplus.scores.tables import record_table

    if out.suffix != ".parquet":
        raise WrongUsage(
            f"--out {out}: a recorded table is a Parquet file; name it FILE.parquet"
        )
    written = {}
    lines = []
    with Bars() as bars:
        path = store or default_store_path()
        if Path(recipe).is_dir():
            run = load_run(Path(recipe), path, bars.say, bars.show, at_work=False)
        else:
            loaded = load_recipe(recipe, set_)
            run = Run(loaded, Path(), seed, path, bars.say, bars.show, at_work=False)
        model = run.recipe.model
        asked: dict[ItemId, Item] = {}
        for item in run.training_queries():
            asked[item.id] = item
        # training judges on some dev items, the evaluation on others; many are the same
        for count in (run.recipe.score.dev_queries, run.recipe.eval.dev_items):
            for item in run.chosen_items("dev", count):
                asked[item.id] = item
        parts = {
            out: list(asked.values()),
            out.with_stem(f"{out.stem}-test"): run.chosen_items(
                "test", run.recipe.eval.items
            ),
        }
        prompt = {
            "form": model.prompt,
            "template": model.template,
            "instruction": model.instruction,
        }
        facts = {"prompt": prompt, "licence": licence}
        for file, queries in parts.items():
            pools = run.pools(queries)[0]
            card = record_table(run.scorer, pools, file, facts=facts)
            written[str(file)] = {
                key: card[key] for key in ("rows", "queries", "items", "model")
            }
            lines.append(
                f"{file}: {card['rows']:,} prompts of {card['queries']:,} queries, model {card['model']}"
            )
    return Outcome(written, lines)
