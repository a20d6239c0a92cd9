"""The `[pool]` section: which demonstrations a trained selector may choose from, in training and in test alike."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.data.settings import setting

RECORDED = "recorded"
"""The pool kind of recorded tables: what the table holds for a query, however many these are."""


@dataclass(frozen=True)
class PoolSection:
    """`[pool]`: how the candidates of a query are found; every value here is part of a pool's builder hash."""

    kind: str = setting(
        "corpus",
        "how candidates are found",
        choices=(*catalog.SAMPLERS, RECORDED),
        part="pool",
    )
    size: int = setting(64, "candidates in a pool (K)", low=1)
    text_weight: float = setting(
        0.5,
        "share of the question in a similarity, the picture has the rest (nearest_both, mmr, corpus)",
        low=0.0,
        high=1.0,
    )
    first_stage: int = setting(
        200,
        "how many the first search leaves (two_stage, mmr); at least the size",
        low=1,
    )

    def problems(self) -> list[str]:
        """Values that are allowed one by one but not together."""
        if self.kind in ("two_stage", "mmr") and self.first_stage < self.size:
            return [
                f"pool.first_stage = {self.first_stage}: must be at least pool.size = {self.size}, which are chosen "
                "from it"
            ]
        return []
