"""The benchmark's tables: rows of text, and the whole as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leverplus.evaluation.names import arm_name
from leverplus.lab.methods import TITLES
from leverplus.lab.summary import BY_LABELS

Row = Mapping[str, Any]
Lines = tuple[Sequence[str], list[list[str]]]
"""A head and the rows below it."""

SHOWN_ARMS = (
    *("zero_shot", "random", "nearest_image", "nearest_text", "nearest_both", "two_stage", "mmr"),
    *("label_rank", "label_regression", "oracle"),
)
USUAL_POOL = 64


def title(row: Row) -> str:
    """How a line is called: the method, and that it chose the number of demonstrations itself where it did."""
    name = TITLES.get(row["method"], row["method"].replace("_", " "))
    return name if row["arm"] == "learned" else f"{name}, own count"


def share(closed: Mapping[str, Any] | None) -> str:
    """A share of the gap with its interval, in percent."""
    found = (closed or {}).get("mean")
    if found is None:
        return ""
    return f"{100 * found['share']:.1f} ({100 * found['ci95'][0]:.1f} to {100 * found['ci95'][1]:.1f})"


def percents(values: Iterable[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def harm_cells(harm: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Items harmed and helped by shots, the worst ratio of the two, and how many right answers became wrong."""
    rows = list(harm.values())
    ratio = max(row["harmed"] / row["helped"] if row["harmed"] and row["helped"] else 0.0 for row in rows)
    if any(row["harmed"] and not row["helped"] for row in rows):
        ratio = math.inf
    broken = [row["broken"] for row in rows]
    rate = "" if None in broken else f"{100 * sum(broken) / len(broken):.1f}"
    return [percents(row["harmed"] for row in rows), percents(row["helped"] for row in rows), f"{ratio:.2f}", rate]


def usual(found: Mapping[str, Any], kind: str) -> list[Row]:
    """Lines of the main table: not those of other pools, of fewer questions or of changes of `best`."""
    rows: list[Row] = [row for row in found[kind] if row.get("method", "best") in TITLES]
    sizes = {row["pool"] for row in rows}
    size = USUAL_POOL if USUAL_POOL in sizes else max(sizes, default=0)
    return [row for row in rows if row["pool"] == size and not row.get("queries")]


SHOTS = ("1", "2", "3", "4")


def calls(number: int) -> str:
    return f"{number // 1000} k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"


def accuracy_lines(found: Mapping[str, Any]) -> Lines:
    """Arms without training, then every method at every budget: accuracy by shots, share of the gap."""
    arms = [row for row in usual(found, "arms") if row["arm"] in SHOWN_ARMS]
    rows = [*((arm_name(row["arm"]), "", row) for row in arms)]
    rows += [(title(row), calls(row["budget"]), row) for row in usual(found, "methods")]
    shots = [n for n in SHOTS if any(n in row["accuracy"] for _, _, row in rows)]
    lines = []
    for name, budget, row in rows:
        accuracy = row["accuracy"]
        cells = [f"{100 * accuracy[n]:.1f}" if n in accuracy else "" for n in (*shots, "mean")]
        lines.append([name, budget, *cells, share(row["gap_closed"])])
    return ("method", "budget", *shots, "mean", "gap closed, %"), lines


def harm_lines(found: Mapping[str, Any]) -> Lines:
    """Items scored lower and higher than without demonstrations."""
    arms = [row for row in usual(found, "arms") if row["arm"] in SHOWN_ARMS and row["harm"]]
    lines = [[arm_name(row["arm"]), "", *harm_cells(row["harm"])] for row in arms]
    lines += [[title(row), calls(row["budget"]), *harm_cells(row["harm"])] for row in usual(found, "methods")]
    return ("method", "budget", "harmed by shots", "helped by shots", "worst ratio", "right made wrong"), lines


def cost_lines(found: Mapping[str, Any]) -> Lines:
    """Calls used, seconds of training, groups learnt from, worlds x seeds."""
    lines = []
    for row in usual(found, "methods"):
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        runs = f"{len(row['worlds'])} x {len(row['seeds'])}"
        cost = [f"{row['model_calls']:,}", f"{row['groups']:,.0f}", seconds]
        lines.append([title(row), calls(row["budget"]), *cost, runs])
    return ("method", "budget", "calls", "groups", "seconds", "runs"), lines


def rival_lines(found: Mapping[str, Any]) -> Lines:
    """Every method against the best arm that knows no label, and against ranking by labels, mean over shots."""
    lines = []
    for row in usual(found, "methods"):
        nearest = row["against_nearest"]
        lines.append([title(row), calls(row["budget"]), arm_name(nearest["arm"]), *_lead(nearest)])
        if row["against_labels"] is not None:
            lines.append([title(row), calls(row["budget"]), arm_name(BY_LABELS), *_lead(row["against_labels"])])
    return ("method", "budget", "against", "points", "95 % interval"), lines


def _lead(against: Row) -> tuple[str, str]:
    low, high = (100 * bound for bound in against["ci95"])
    return f"{100 * against['diff']:+.1f}", f"{low:+.1f} to {high:+.1f}"


def ablation_lines(found: Mapping[str, Any]) -> Lines:
    """Every change of `best` against it."""
    lines = []
    for row in found["ablations"]:
        low, high = (100 * bound for bound in row["ci95"])
        lines.append(
            [
                row["change"].replace("_", " "),
                calls(row["budget"]),
                f"{100 * row['diff']:+.2f}",
                f"{low:+.1f} to {high:+.1f}",
                f"{row['p_adjusted']:.2g}",
                f"{len(row['worlds'])} x {len(row['seeds'])}",
            ]
        )
    return ("change of best", "budget", "points", "95 % interval", "p (Holm)", "runs"), lines


def pool_lines(found: Mapping[str, Any]) -> Lines:
    """Accuracy by the size of the pools, mean over shots."""
    sizes = sorted({row["pool"] for row in found["arms"]})
    learnt = [row for row in found["methods"] if row["method"] == "best" and not row["queries"]]
    budget = max((row["budget"] for row in learnt if row["pool"] != USUAL_POOL), default=None)
    cells: dict[str, dict[int, str]] = {}
    for row in found["arms"]:
        if row["arm"] in SHOWN_ARMS:
            cells.setdefault(arm_name(row["arm"]), {})[row["pool"]] = f"{100 * row['accuracy']['mean']:.1f}"
    for row in learnt:
        if row["budget"] == budget:
            cells.setdefault(title(row), {})[row["pool"]] = f"{100 * row['accuracy']['mean']:.1f}"
    lines = [[name, *(own.get(size, "") for size in sizes)] for name, own in cells.items()]
    return ("who chooses", *(f"{size:,}" for size in sizes)), lines if len(sizes) > 1 else []


def query_lines(found: Mapping[str, Any]) -> Lines:
    """`best` by the number of training questions it may use."""
    rows = [row for row in found["methods"] if row["queries"]]
    lines = [
        [
            title(row),
            f"{row['queries']:,}",
            f"{row['model_calls']:,}",
            f"{100 * row['accuracy']['mean']:.1f}",
            share(row["gap_closed"]),
            f"{len(row['worlds'])} x {len(row['seeds'])}",
        ]
        for row in rows
    ]
    return ("method", "questions", "calls", "mean accuracy", "gap closed, %", "runs"), lines


PARTS = (
    ("Accuracy by shots, %, and share of the gap", accuracy_lines),
    ("Harm against zero-shot, % of items", harm_lines),
    ("Cost of training", cost_lines),
    ("Against the best arms without training", rival_lines),
    ("Ablations of best", ablation_lines),
    ("Mean accuracy by the size of the pools", pool_lines),
    ("By the number of training questions", query_lines),
)


def about(found: Mapping[str, Any]) -> str:
    """What was measured, in one sentence."""
    rows = [*usual(found, "methods"), *usual(found, "arms")]
    worlds = sorted({world for row in rows for world in row["worlds"]})
    items = sum({world: row["n"] // len(row["worlds"]) for row in rows for world in row["worlds"]}.values())
    commits = sorted({commit[:10] for row in found["methods"] for commit in row["commits"]})
    return (
        f"{items:,} test items of worlds {', '.join(map(str, worlds))}; accuracy in percent, 95 % intervals over items "
        f"and seeds in brackets; runs are worlds x seeds; commit {', '.join(commits) or 'unknown'}."
    )


def markdown(found: Mapping[str, Any]) -> str:
    """All tables that have rows."""
    lines = [about(found)]
    if found["quick"]:
        lines = ["Quick sizes: this shows that the benchmark runs, and measures nothing.", "", *lines]
    for name, make in PARTS:
        head, rows = make(found)
        if rows:
            lines += ["", f"## {name}", ""]
            lines += [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]
    if found["left_out"]:
        lines += ["", f"The time was up before {len(found['left_out'])} trainings or measurements; run it again."]
    lines += [f"\n{name} failed: {why}" for name, why in found["failed"].items()]
    return "\n".join(lines) + "\n"
