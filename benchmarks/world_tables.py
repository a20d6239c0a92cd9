"""How far does the world predict? Rank correlation of ways of choosing between the world and each recorded table.

    python benchmarks/world_tables.py [--svg docs/pictures/world_tables.svg]

The world's figures are those of `lever bench` (docs/bench.json: worlds 100-102, pools of 64 random candidates); the
tables' come from the records of `lever bench real`. Ways that both have are ranked by accuracy: without
demonstrations, random, nearest (1 shot, most shots), MMR (most shots), the label vote, the regression on labels,
ranking by labels, what was learnt (`best` with 128,000 calls; effects), and the oracle with one shot. The oracle is on
top everywhere by its making, so the correlation is also given without it. With ten ways a correlation below 0.56 may be
luck (p = 0.05, one-sided).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.lab.real import WayRecord, read_records
from leverplus.rundir import shipped

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAIRS = {
    "zero-shot": ("zero_shot", "0", "zero_shot", "best"),
    "random, 1 shot": ("random", "1", "random", "1"),
    "random, most shots": ("random", "4", "random", "best"),
    "nearest, 1 shot": ("nearest_both", "1", "nearest", "1"),
    "nearest, most shots": ("nearest_both", "4", "nearest", "best"),
    "MMR, most shots": ("mmr", "4", "mmr", "best"),
    "label vote": ("label_vote", "0", "label_vote", "best"),
    "label regression": ("label_regression", "0", "label_regression", "best"),
    "ranked by labels, 1 shot": ("label_rank", "1", "label_rank", "1"),
    "learnt from answers, 1 shot": ("learned", "1", "effects", "1"),
    "oracle, 1 shot": ("oracle", "1", "oracle", "1"),
}
"""Way -> arm and shots in the world, arm and shots in the tables."""
LEARNT = ("best", 128_000)


def world_accuracies(found: Mapping[str, Any]) -> dict[str, float]:
    rows = {row["arm"]: row["accuracy"] for row in found["arms"]}
    learnt = [row for row in found["methods"] if (row["method"], row["budget"], row["pool"]) == (*LEARNT, 64)]
    rows["learned"] = learnt[0]["accuracy"]
    return {way: float(rows[arm][shots]) for way, (arm, shots, _, _) in PAIRS.items()}


def table_accuracies(records: Sequence[WayRecord]) -> dict[str, float]:
    rows = {(record.arm, record.shots): record.mean for record in records}
    return {way: rows[arm, shots] for way, (_, _, arm, shots) in PAIRS.items() if (arm, shots) in rows}


def correlations(world: Mapping[str, float], records: Sequence[WayRecord]) -> list[dict[str, Any]]:
    """For every table: Spearman's rank correlation with the world over common ways, with and without the oracle."""
    from scipy.stats import spearmanr

    tables: dict[tuple[str, str], list[WayRecord]] = {}
    for record in records:
        tables.setdefault((record.task, record.model), []).append(record)
    found = []
    for (task, model), own in sorted(tables.items()):
        here = table_accuracies(own)
        ways = list(here)
        plain = [way for way in ways if not way.startswith("oracle")]
        row: dict[str, Any] = {"task": task, "model": model, "ways": len(plain)}
        for name, kept in (("all", ways), ("without_oracle", plain)):
            row[name] = float(spearmanr([world[way] for way in kept], [here[way] for way in kept]).statistic)
        found.append(row)
    return found


WIDTH, LEFT, LINE, TOP = 640, 230, 26, 40


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each table, from -1 to 1, without the oracle."""
    height, scale = TOP + LINE * len(rows) + 34, (WIDTH - LEFT - 30) / 2
    zero = LEFT + scale
    parts = []
    for mark in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x = zero + mark * scale
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 34}" stroke="#e3e5e8"/>')
        parts.append(f'<text x="{x}" y="{TOP - 14}" text-anchor="middle">{mark:g}</text>')
    for place, row in enumerate(rows):
        y, value = TOP + place * LINE, row["without_oracle"]
        x, width = min(zero, zero + value * scale), abs(value) * scale
        colour = "#2f7fc1" if value > 0 else "#c0392b"
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{row["task"]}, {row["model"]}</text>')
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LINE - 8}" fill="{colour}"/>')
    words = "rank correlation of ways of choosing with the world (pools of 64), oracle left out"
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 10}" text-anchor="middle" fill="#5f6368">{words}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="Rank correlation of the world with recorded tables">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=shipped("tables:real"))
    parser.add_argument("--svg", type=Path, metavar="FILE")
    args = parser.parse_args()
    world = world_accuracies(json.loads((DOCS / "bench.json").read_text(encoding="utf-8")))
    rows = correlations(world, read_records(args.records))
    print("| task | model | ways | rank correlation with the world | without the oracle |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['task']} | {row['model']} | {row['ways']} | {row['all']:.2f} | {row['without_oracle']:.2f} |")
    if args.svg:
        args.svg.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
