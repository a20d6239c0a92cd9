"""The `[mistakes]` section: documented mistakes that no other setting can make, made again on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus.recipe.schema import setting


@dataclass(frozen=True)
class MistakesSection:
    """`[mistakes]`: every value but the first of each reproduces a known mistake, so that the doctor has something to
    find; the gallery's recipes use them."""

    test_pool: str = setting(
        "built",
        "pools of dev and test: built as in training, or the same two demonstrations for every query",
        choices=("built", "two_fixed"),
        mistakes=("two_fixed",),
    )
    own_picture: bool = setting(
        False, "another question on a training query's picture is among its candidates", mistakes=(True,)
    )
    queries: str = setting(
        "train", "the split that training queries are taken from", choices=("train", "test"), mistakes=("test",)
    )
    members: str = setting(
        "once",
        "members of a group: each sequence once, or every one twice",
        choices=("once", "twice"),
        mistakes=("twice",),
    )
    labels: str = setting(
        "position",
        "what sft imitates: positions in the pool, or these modulo two",
        choices=("position", "modulo"),
        mistakes=("modulo",),
    )
    conversion: str = setting(
        "whole",
        "what is left of a stage's checkpoint: all tensors, or half of them and the others at random",
        choices=("whole", "half"),
        mistakes=("half",),
    )

    @property
    def any(self) -> bool:
        """Whether a mistake is made at all."""
        return self != MistakesSection()
