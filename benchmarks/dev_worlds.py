"""Do the worlds that recipes were chosen on flatter them? The share of the gap there, on the reported worlds, and the
difference.

`lever bench --methods best --worlds 1,2,3,4 --budgets 32000,128000 --seeds 1 --out DIR` measures the test splits of the
first, kept in `benchmarks/bench_dev_worlds`; the second are in `benchmarks/bench`. Both sets are of other items, so the
joint interval of the difference is the root of the sum of squares of their half-widths, on either side.

    python benchmarks/dev_worlds.py [--dev FOLDER] [--reported FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from leverplus.lab.jobs import ARMS
from leverplus.lab.records import Records
from leverplus.lab.summary import method_sample, share_of_gap

HERE = Path(__file__).parent


def shares(folder: Path, method: str = "best") -> dict[int, dict[str, Any]]:
    """By budget: the share of the gap that a method closes, its interval, worlds, seeds and items."""
    records = [r for r in Records.read(folder).found.values() if r["pool"] == 64 and not r["queries"]]
    arms = {record["world"]: record for record in records if record["method"] == ARMS}
    found = {}
    for budget in sorted({record["budget"] for record in records if record["method"] == method}):
        own = method_sample([r for r in records if (r["method"], r["budget"]) == (method, budget)], arms)
        closed = share_of_gap(own.mean("learned"), own.mean("random"), own.mean("oracle"), own.images)
        assert closed is not None
        found[budget] = {**closed, "worlds": own.worlds, "seeds": own.seeds, "n": len(own.images)}
    return found


def apart(dev: dict[str, Any], reported: dict[str, Any]) -> dict[str, Any]:
    """The difference of two shares and its joint interval."""
    low = math.hypot(dev["share"] - dev["ci95"][0], reported["ci95"][1] - reported["share"])
    high = math.hypot(dev["ci95"][1] - dev["share"], reported["share"] - reported["ci95"][0])
    difference = dev["share"] - reported["share"]
    return {"difference": difference, "ci95": [difference - low, difference + high]}


def compare(dev: Path = HERE / "bench_dev_worlds", reported: Path = HERE / "bench") -> dict[int, dict[str, Any]]:
    """By budget: the shares of both sets, their difference and its joint interval."""
    here, there = shares(dev), shares(reported)
    return {
        budget: {"dev": here[budget], "reported": there[budget], **apart(here[budget], there[budget])}
        for budget in sorted(set(here) & set(there))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", type=Path, default=HERE / "bench_dev_worlds", metavar="FOLDER")
    parser.add_argument("--reported", type=Path, default=HERE / "bench", metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    both = compare(args.dev, args.reported)
    if args.json:
        print(json.dumps(both))
        return
    print("\n".join(line(budget, row) for budget, row in both.items()))


def line(budget: int, row: dict[str, Any]) -> str:
    """A line of the table in docs/results.md."""

    def percent(share: float, ci95: list[float]) -> str:
        return f"{100 * share:.1f} ({100 * ci95[0]:.1f} to {100 * ci95[1]:.1f})"

    shown = [percent(row[name]["share"], row[name]["ci95"]) for name in ("dev", "reported")]
    return f"| {budget // 1000} k | {shown[0]} | {shown[1]} | {percent(row['difference'], row['ci95'])} |"


if __name__ == "__main__":
    main()
