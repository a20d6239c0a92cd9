"""Money in a fit: prices and bounds that make no sense, and plans that cost too much, are refused before anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leverplus.errors import LeverError, WrongUsage

SETTINGS = ("price_in", "price_out", "max_cost")


def check_money(settings: Mapping[str, Any], model: str) -> None:
    """Refuse prices that are none, prices of what is no server, and a bound that could bound nothing."""
    given = {key: settings[key] for key in SETTINGS if key in settings}
    for key, value in given.items():
        option = "--" + key.replace("_", "-")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise WrongUsage(f"{option} {value}: must be a number of at least 0")
        if not model.startswith(("http://", "https://")):
            raise WrongUsage(f"{option} is for a server, and --model {model[:100]} is none; leave it out")
    most = given.get("max_cost")
    if most is None:
        return
    if not most:
        raise WrongUsage("--max-cost 0: must be above 0; leave it out for no limit, or spend nothing with --dry-run")
    if not given.get("price_in", 0) + given.get("price_out", 0):
        raise WrongUsage(
            f"--max-cost {most:g} needs the server's prices of a million tokens: give --price-in and --price-out"
        )


def require_paid(most: float, price: float | None, calls: int, smallest: int) -> None:
    """Refuse a plan that costs more than `most` (0: no bound), and say what the money pays for.

    `price` is the rough price of all `calls`; the smallest plan for these data takes `smallest`.
    """
    if price is None or not most or price <= most:
        return
    pays = int(calls * most / price)
    if pays < smallest:
        needed = price * smallest / calls
        raise LeverError(
            f"--max-cost {most:g} is too little: the smallest plan for these data takes {smallest:,} calls, which cost "
            f"roughly {_amount(needed)}; give more, or fewer --shots"
        )
    raise LeverError(
        f"this plan of {calls:,} calls costs roughly {_amount(price)}, more than --max-cost {most:g}; "
        f"give --calls {pays} or fewer, or a larger --max-cost"
    )


def _amount(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.2g}"  # a small model's calls cost parts of a cent
