"""`lever plan-n`: how many items a claim needs."""

from __future__ import annotations

import argparse
import json

RANGE = (0.05, 0.1, 0.2, 0.3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--effect", type=float, required=True, metavar="X", help="the difference of accuracies to find, such as 0.01"
    )
    parser.add_argument(
        "--discordance", type=float, metavar="D", help="share of items on which the two compared differ (default 0.2)"
    )
    parser.add_argument("--power", type=float, default=0.8, metavar="P", help="chance of finding it (default 0.8)")
    parser.add_argument(
        "--comparisons",
        type=int,
        default=10,
        metavar="M",
        help="how many comparisons the verdict is corrected for (default 10: two rivals at five numbers of shots)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    from leverplus.errors import EvaluationError
    from leverplus.stats import Changes, plan_n
    from leverplus.stats.power import USUAL

    if not 0.0 < args.power < 1.0:
        raise EvaluationError(f"--power {args.power:g}: must lie between 0 and 1, the usual value is 0.8")
    if not 0.0 < abs(args.effect) <= 1.0:
        raise EvaluationError(
            f"--effect {args.effect:g}: a difference of accuracies above 0 and at most 1, such as 0.01"
        )
    differ = max(USUAL.discordance, abs(args.effect)) if args.discordance is None else args.discordance
    if not abs(args.effect) <= differ <= 1.0:
        raise EvaluationError(
            f"--discordance {differ:g}: two that differ by {abs(args.effect):g} on average differ on at least that "
            "share of the items, and at most on all of them (1)"
        )
    if args.comparisons < 1:
        raise EvaluationError(f"--comparisons {args.comparisons}: at least 1, the comparison itself")
    needed = plan_n(args.effect, Changes(differ), power=args.power)
    corrected = plan_n(args.effect, Changes(differ), power=args.power, alpha=0.05 / args.comparisons)
    if args.json:
        values = {"effect": args.effect, "discordance": differ, "power": args.power, "alpha": 0.05}
        both = {"n": needed, "comparisons": args.comparisons, "n_corrected": corrected}
        print(json.dumps({**values, **both}))
        return 0
    points = "1 point" if abs(args.effect) == 0.01 else f"{100 * args.effect:g} points"
    print(
        f"{needed:,} items: a true difference of {points} is then found {100 * args.power:g} % of "
        f"the time at p < 0.05, if the two differ on {100 * differ:g} % of the items (paired)."
    )
    if args.comparisons > 1:
        print(
            f"{corrected:,} items where it is one of {args.comparisons} comparisons and p is corrected for all of them "
            "(Holm), as every verdict here is."
        )
    others = [
        f"{plan_n(args.effect, Changes(share), power=args.power):,} if they differ on {100 * share:g} %"
        for share in RANGE
        if share != differ and share >= abs(args.effect)
    ]
    if others:
        print(f"{'; '.join(others)}.")
    return 0
