"""`lever plan`: from some hundred recorded calls, what choosing demonstrations by their effects could gain."""

from __future__ import annotations

import argparse
import json
from typing import Any

BUDGETS = (1000, 4000, 16000, 64000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="recorded one-shot answers (Parquet), or tables:NAME of a shipped one")
    parser.add_argument(
        "--queries", type=int, default=75, metavar="Q", help="how many queries the pilot uses (default 75)"
    )
    parser.add_argument(
        "--demos", type=int, default=8, metavar="D", help="how many demonstrations the pilot tries (default 8)"
    )
    parser.add_argument("--corpus", type=int, metavar="N", help="demonstrations to choose from (default: of the table)")
    parser.add_argument("--candidates", type=int, default=64, metavar="K", help="candidates of a query (default 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the pilot (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    found = planned(args)
    if args.json:
        print(json.dumps(found))
        return 0
    own = found["shares"]
    print(
        f"pilot: {own['queries']} queries x {own['demonstrations']} demonstrations = {found['calls']} calls, one "
        f"demonstration each\nvariance of a score: {100 * own['query']:.0f} % between queries, "
        f"{100 * own['demonstration']:.1f} % demonstrations' own effects (standard deviation "
        f"{100 * own['effect_sd']:.1f} points), {100 * own['interaction_and_luck']:.0f} % interaction and luck"
    )
    for row in found["gains"]:
        low, high = (100 * bound for bound in row["ci95"])
        print(
            f"{row['calls']:,} calls: the best of {args.candidates} by effect is worth {100 * row['gain']:+.1f} points "
            f"over a random demonstration ({low:+.1f} to {high:+.1f})"
        )
    print(found["advice"])
    return 0


def planned(args: argparse.Namespace) -> dict[str, Any]:
    """Shares, predicted gains and advice from a table."""
    import numpy as np

    from leverplus.backends.table.table import read_table
    from leverplus.effects.audit import pilot_table
    from leverplus.effects.estimate import Measured
    from leverplus.effects.pilot import SMALLEST_GAIN
    from leverplus.effects.shares import predicted_gain, variance_shares
    from leverplus.rundir import shipped

    table = read_table([shipped(name) for name in args.table.split(",")])
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    demos = table.demos[table.starts[alone]]
    data = Measured.of(table.queries[alone], demos, table.accuracy[alone], len(table.ids.texts))
    pilot = pilot_table(data, args.queries, args.demos, args.seed)
    shares = variance_shares(pilot)
    corpus = args.corpus or len(np.unique(demos))
    gains: list[dict[str, Any]] = []
    for calls in BUDGETS:
        own = predicted_gain(shares, corpus=corpus, candidates=args.candidates, calls=calls, seed=args.seed)
        gains.append({"calls": calls, "gain": own.gain, "ci95": list(own.ci95), "reliability": own.reliability})
    most = float(gains[-1]["ci95"][1])
    advice = (
        f"even {BUDGETS[-1]:,} calls promise less than {100 * SMALLEST_GAIN:g} points: do not train effects here"
        if most < SMALLEST_GAIN
        else "measuring effects may pay; nearest by a field chosen on dev asks for no training calls: compare with it"
    )
    return {"calls": int(pilot.size), "corpus": corpus, "shares": shares.as_json(), "gains": gains, "advice": advice}
