"""The `[pool]` section: which demonstrations a selector may choose from, in training and in test alike."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.recipe.schema import setting

RECORDED = "recorded"
"""The pool kind of recorded tables: what the table holds for a query, however many these are."""

WHOLE_CORPUS = ("nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "corpus")
"""Pool kinds that search all demonstrations, so that any of them may be shown; the others deal some out."""


def _kinds() -> tuple[str, ...]:
    return (*catalog.SAMPLERS, RECORDED)


@dataclass(frozen=True)
class PoolSection:
    """`[pool]`: how the candidates of a query are found; every value here is part of a pool's builder hash."""

    kind: str = setting("corpus", "how candidates are found", choices=_kinds, part="pool")
    size: int = setting(64, "candidates in a pool (K)", low=1)
    text_weight: float = setting(
        0.5,
        "share of the question in a similarity, the picture has the rest (nearest_both, mmr, corpus)",
        low=0.0,
        high=1.0,
    )
    mix_random: float = setting(0.5, "part of random candidates, relative to the others (mix)", low=0.0)
    mix_text: float = setting(0.25, "part of nearest by question, relative to the others (mix)", low=0.0)
    mix_image: float = setting(0.25, "part of nearest by picture, relative to the others (mix)", low=0.0)
    first_stage: int = setting(200, "how many the first search leaves (two_stage, mmr); at least the size", low=1)
    mmr_lambda: float = setting(0.7, "weight of nearness against variety; 1 is nearness alone (mmr)", low=0.0, high=1.0)
    ann_above: int = setting(
        1_000_000, "larger demonstration sets are searched approximately where faiss is installed (corpus)", low=0
    )

    def problems(self, prefix: str = "pool.") -> list[str]:
        """Values that are allowed one by one but not together."""
        found = []
        if self.kind in ("two_stage", "mmr") and self.first_stage < self.size:
            found.append(
                f"{prefix}first_stage = {self.first_stage}: must be at least {prefix}size = {self.size}, "
                "which are chosen from it"
            )
        if self.kind == "mix" and self.mix_random + self.mix_text + self.mix_image <= 0.0:
            found.append(f"{prefix}mix_random, {prefix}mix_text, {prefix}mix_image: at least one must be above 0")
        return found
