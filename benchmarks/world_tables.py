"""How far does the world predict? Rank correlation of ways of choosing between the world and each recorded table.

    python benchmarks/world_tables.py [--svg docs/pictures/world_tables.svg]

The world's figures are those of `lever bench` (docs/bench.json: worlds 100-102, pools of 64 random candidates) and of
`lever bench curves` (benchmarks/curves: pools of 4,096 of the 8,000 demonstrations, the largest that were run, where
`best` has 32,000 calls and no oracle was asked); the tables' come from the records of `lever bench real`. Ways that
both have are ranked by accuracy: without demonstrations, random, nearest (1 shot, most shots), MMR (most shots), the
label vote, the regression on labels, ranking by labels, what was learnt (`best`, in pools of 64 with 128,000 calls;
effects), and the oracle with one shot. The oracle is on top everywhere by its making, so the correlation is also given
without it. With ten ways a correlation below 0.56 may be luck (p = 0.05, one-sided).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.lab.real import WayRecord, read_records
from leverplus.rundir import shipped

ROOT = Path(__file__).resolve().parents[1]
DOCS, CURVES = ROOT / "docs", ROOT / "benchmarks" / "curves" / "results.json.gz"
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
LARGE = 4096
"""Candidates of the pools that stand for the whole corpus of 8,000."""


def world_accuracies(found: Mapping[str, Any]) -> dict[str, float]:
    rows = {row["arm"]: row["accuracy"] for row in found["arms"]}
    learnt = [row for row in found["methods"] if (row["method"], row["budget"], row["pool"]) == (*LEARNT, 64)]
    rows["learned"] = learnt[0]["accuracy"]
    return {way: float(rows[arm][shots]) for way, (arm, shots, _, _) in PAIRS.items()}


def large_accuracies(records: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Mean over worlds in pools of LARGE, of every way but the oracle."""
    own = [record for record in records.values() if record["pool"] == LARGE]
    found = {}
    for way, (arm, shots, _, _) in PAIRS.items():
        means = [float(np.mean(record["accuracy"][arm][shots])) for record in own if arm in record["accuracy"]]
        if means:
            found[way] = sum(means) / len(means)
    return found


def table_accuracies(records: Sequence[WayRecord]) -> dict[str, float]:
    rows = {(record.arm, record.shots): record.mean for record in records}
    return {way: rows[arm, shots] for way, (_, _, arm, shots) in PAIRS.items() if (arm, shots) in rows}


def correlations(
    world: Mapping[str, float], large: Mapping[str, float], records: Sequence[WayRecord]
) -> list[dict[str, Any]]:
    """For every table: Spearman's rank correlation with the world over common ways.

    With and without the oracle in pools of 64, and without it in large pools.
    """
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
        for name, kept, there in (("all", ways, world), ("without_oracle", plain, world), ("large", plain, large)):
            row[name] = float(spearmanr([there[way] for way in kept], [here[way] for way in kept]).statistic)
        found.append(row)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as docs/world.md has them."""
    head = ("task", "model", "ways", "pools of 64, with the oracle", "pools of 64", f"pools of {LARGE:,}")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        figures = " | ".join(f"{row[name]:.2f}" for name in ("all", "without_oracle", "large"))
        lines.append(f"| {row['task']} | {row['model']} | {row['ways']} | {figures} |")
    return "\n".join(lines)


WIDTH, LEFT, LINE, TOP = 640, 230, 26, 40


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two bars for each table, from -1 to 1, without the oracle: pools of 64, and large ones (paler)."""
    height, scale = TOP + LINE * len(rows) + 34, (WIDTH - LEFT - 30) / 2
    zero = LEFT + scale
    parts = []
    for mark in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x = zero + mark * scale
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 34}" stroke="#e3e5e8"/>')
        parts.append(f'<text x="{x}" y="{TOP - 14}" text-anchor="middle">{mark:g}</text>')
    for place, row in enumerate(rows):
        y = TOP + place * LINE
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{row["task"]}, {row["model"]}</text>')
        for below, (name, colour) in enumerate((("without_oracle", "#2f7fc1"), ("large", "#a9cbe8"))):
            x, width = min(zero, zero + row[name] * scale), abs(row[name]) * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 9 * below}" width="{width:.1f}" height="9" fill="{colour}">'
                f"<title>{row[name]:.2f}</title></rect>"
            )
    words = f"rank correlation of ways of choosing with the world: pools of 64 (dark), of {LARGE:,} (pale); no oracle"
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
    with gzip.open(CURVES, "rt", encoding="utf-8") as file:
        large = large_accuracies(json.load(file)["records"])
    rows = correlations(world, large, read_records(args.records))
    print(table(rows))
    if args.svg:
        args.svg.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
