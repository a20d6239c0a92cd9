"""`lever bench`: the recipes of the earlier plans against their baseline, or recorded answers of real models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from leverplus.cli.command import Outcome, Table
from leverplus.cli.console import Bars
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

SMOKE = "--quick is a smoke test: so few items and calls that the order of the rows means nothing"


def bench(
    what: Literal["plans", "real"] = "plans",
    *,
    quick: bool = False,
    seeds: int | None = None,
    recipes: str | None = None,
    out: Path | None = None,
    records: Path | None = None,
    store: Path | None = None,
) -> Outcome:
    """Makes the benchmark tables.

    WHAT: plans: the recipes of the earlier plans against their baseline (default); real: every way of choosing on the
        recorded answers of real models
    --quick: plans: only test that it runs, on a dozen items
    --seeds N: plans: seeds 0 .. N-1 (default 3, quick 2)
    --recipes A,B,...: plans: only these, and the baseline
    --out DIR: plans: folder of the runs (default runs/bench-plans)
    --records DIR: real: a folder of other records
    """
    others: dict[str, object] = {"records": records}
    if what == "real":
        others = {"quick": quick, "seeds": seeds, "recipes": recipes, "out": out}
    for name, given in others.items():
        if given:
            raise WrongUsage(f"`lever bench {what}` has no --{name}; leave it out")
    if what == "real":
        return _real(records or shipped("tables:real"))
    folder = Path("runs") / ("bench-plans-quick" if quick else "bench-plans")
    names = QUICK_RECIPES if quick else tuple(PLANS)
    if recipes:
        names = tuple(recipes.split(","))
    if seeds is None:
        seeds = 2 if quick else 3
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


def _markdown(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """A table as Markdown: wider than a terminal, and to be pasted as it is."""
    yield f"\n{name}\n"
    for line in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(line)} |"
    yield ""
