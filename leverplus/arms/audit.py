"""What was measured, for people: which demonstrations help and which harm, and whether that may be luck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leverplus.arms.effects import Measured, estimate_effects

FEWEST = 3
"""Answers that a demonstration must have been shown for to be listed."""

NOISE = 0.05
"""Below this reliability effects could be the luck of few answers: no spread, or next to none of what is seen is real."""


def audit(data: Measured, names: Sequence[str]) -> dict[str, Any]:
    """Effects of all demonstrations of one-shot rows, numbered as in `names`; the most useful and most harmful first.

    A line has the demonstration, its effect and standard error, in accuracy, and how many queries it was shown to.
    """
    own = estimate_effects(data)
    lines = []
    for place in np.argsort(-own.effect, kind="stable").tolist():
        shown = int(own.counts[place])
        if shown >= FEWEST:
            effect = float(own.effect[place])
            error = float(own.error[place])
            line = {"demo": names[place], "effect": effect, "error": error}
            lines.append({**line, "shown": shown})
    return {
        "answers": len(data.scores),
        "queries": len(np.unique(data.queries)),
        "demonstrations": len(lines),
        "fewest": FEWEST,
        "effect_sd": own.spread**0.5,
        "reliability": own.reliability,
        "is_noise": own.reliability < NOISE,
        "useful": lines,
        "harmful": lines[::-1],
    }
