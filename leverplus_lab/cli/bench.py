"""`lever bench`: the recipes of the earlier plans against their baseline, or recorded answers of real models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from leverplus.cli.command import Bars, Outcome, Table
from leverplus.data.rundir import shipped
from leverplus.errors import WrongUsage
from leverplus.run.sweep import Workshop
from leverplus.scores.store import default_store_path
from leverplus_lab.plans import (
    HEADER,
    PLANS,
    QUICK_RECIPES,
    cells,
    conclusion,
    run_plans,
)
from leverplus_lab.real import (
    comparison_lines,
    read_records,
    share_sentences,
    summarise_tables,
    task_lines,
)
from leverplus_lab.structured.report import as_json, reports_of
from leverplus_lab.structured.shown import (
    by_shots,
    laid_open,
    named,
    overview,
    read_folder,
    verdict,
)

SMOKE = "--quick is a smoke test: so few items and calls that the order of the rows means nothing"
CAPTION = (
    "Arms and numbers of examples are chosen on dev questions. Simple: nearest, BM25, both, MMR or random; by answers: "
    "by_answer, cover or masked; no model: the answer of the first example by_answer would show, its values swapped "
    "for those of the question. NL2Bash: F1 of words. All pairs: docs/structured-figures.md."
)

OPTIONS = {
    "plans": ("quick", "seeds", "recipes", "out"),
    "real": ("records",),
    "structured": ("records", "task"),
}
"""Which options each kind of table takes."""


def bench(
    what: Literal["plans", "real", "structured"] = "plans",
    *,
    quick: bool = False,
    seeds: int | None = None,
    recipes: str | None = None,
    out: Path | None = None,
    records: Path | None = None,
    task: str | None = None,
    store: Path | None = None,
) -> Outcome:
    """Makes the benchmark tables.

    WHAT: plans: the recipes of the earlier plans against their baseline (default); real: every way of choosing on the
        recorded answers of real models; structured: the same where answers are SQL, parses or commands
    --quick: plans: only test that it runs, on a dozen items
    --seeds N: plans: seeds 0 .. N-1 (default 3, quick 2)
    --recipes A,B,...: plans: only these, and the baseline
    --out DIR: plans: folder of the runs (default runs/bench-plans)
    --records DIR: real, structured: a folder of other records
    --task NAME: structured: the task whose arms are all shown (default MTOP, of other records the first)
    """
    given = {"quick": quick, "seeds": seeds, "recipes": recipes, "out": out}
    given |= {"records": records, "task": task}
    for name, value in given.items():
        if value and name not in OPTIONS[what]:
            raise WrongUsage(f"`lever bench {what}` has no --{name}; leave it out")
    if what == "real":
        return _real(records or shipped("tables:real"))
    if what == "structured":
        folder = records or shipped("tables:structured/records")
        return _structured(folder, task or ("" if records else "MTOP"))
    folder = Path("runs") / ("bench-plans-quick" if quick else "bench-plans")
    names = QUICK_RECIPES if quick else tuple(PLANS)
    if recipes:
        names = tuple(recipes.split(","))
    if seeds is None:
        seeds = 3
        if quick:
            seeds = 2
    if seeds < 1:
        raise WrongUsage(f"--seeds {seeds}: must be at least 1")
    with Bars() as bars:
        path = store or default_store_path()
        workshop = Workshop(out or folder, path, bars.say, bars.show)
        return _plans(names, seeds, workshop, quick=quick)


def _plans(
    names: Sequence[str], seeds: int, workshop: Workshop, *, quick: bool
) -> Outcome:
    found = run_plans(names, seeds, workshop, quick=quick)
    title = f"{found['n']} test items, {found['seeds']} seeds a recipe"
    rows = [cells(row) for row in found["recipes"]]
    shown: list[str | Table] = [Table(title, HEADER, rows), conclusion(found)]
    if quick:
        shown.append(SMOKE)
    for name, why in found["failed"].items():
        shown.append(f"{name} failed: {why}")
    shown.append(
        f"results in {workshop.folder}/bench.json, as Markdown in {workshop.folder}/bench.md"
    )
    return Outcome(found, shown, 1 if found["failed"] else 0)


def _real(records: Path) -> Outcome:
    found = summarise_tables(read_records(records))
    lines = [
        "Accuracy in %, test queries; settings were chosen on training and dev queries, cross-fitted; * is what they "
        "recommend, (n) the number of shots."
    ]
    for task in dict.fromkeys(row["task"] for row in found["arms"]):
        lines += _markdown(task, *task_lines(found, task))
    title = "paired by item, p corrected over all of these"
    lines += _markdown(title, *comparison_lines(found))
    return Outcome(found, [*lines, *share_sentences(found)])


def _structured(folder: Path, task: str) -> Outcome:
    found = read_folder(folder)
    opened = named(found, task)
    reports = []
    for records in found:
        reports += reports_of(records)
    shown: list[str | Table] = []
    for report in reports:
        if report.task == opened.task:
            shown += [by_shots(report), *verdict(report), *laid_open(opened, report)]
    return Outcome(as_json(reports), [*shown, overview(reports), CAPTION])


def _markdown(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """A table as Markdown: wider than a terminal, and to be pasted as it is."""
    yield f"\n{name}\n"
    for line in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(line)} |"
    yield ""
