"""The `[eval]` section of a recipe: which items, numbers of demonstrations and arms."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus.data.settings import setting

TEXT_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Shares of the question that nearest_both tries on dev."""


@dataclass(frozen=True)
class EvalSection:
    """`[eval]`: which items, numbers of demonstrations and rival arms."""

    items: int = setting(300, "test items, drawn at random once; 0: all", low=0)
    shots: tuple[int, ...] = setting(
        (1, 2, 3, 4), "numbers of demonstrations", low=1, high=16
    )
    oracle: bool = setting(
        True, "also run the greedy oracle, which looks at the answers"
    )
    random_draws: int = setting(3, "independent draws of the random arm", low=1)
    dev_items: int = setting(
        200, "dev items on which the weight of nearest_both is chosen", low=1
    )
    arms: tuple[str, ...] = setting(
        (),
        "ways of choosing to compare, such as nearest_text, vote(nearest_text, 5) or module:Class; empty: all that suit",
    )
    candidates: str = setting(
        "corpus",
        "what every way of choosing searches: all demonstrations, or the pools that a trained selector learns from",
        choices=("corpus", "pool"),
    )
    calibrate: bool = setting(
        True, "label tasks: also show every arm after batch calibration; costs no call"
    )
    exhaustive_calls: int = setting(
        20000,
        "most calls that trying all ordered pairs may take; 0: never",
        low=0,
        when=("oracle",),
    )
    diagnostics: bool = setting(
        True, "also measure regret, which asks with other orders of what was chosen"
    )
    diagnostic_items: int = setting(
        100, "items on which it is measured", low=2, when=("diagnostics",)
    )
    advice: bool = setting(
        True,
        "also run every arm on eval.dev_items, to say at the end which one to use",
    )
