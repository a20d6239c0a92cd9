"""The facts of the world: which thing goes with which shape or colour under each relation.

About half of the facts are known: they are the same in every world and were seen in pretraining. The rest are drawn
from the world seed; the model can only read them from demonstrations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leverplus_lab.world.words import COLOURS, DEPENDS_ON, RELATIONS, SHAPES, THINGS

KNOWN_SEED = 20260101  # the shipped weights were pretrained on the facts of this seed
KNOWN_SINGLE = 3
"""Known facts of a relation that needs one fact, out of seven."""
KNOWN_BOTH = 3
"""Known facts per shape and per colour of a relation that needs two, out of seven."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Facts:
    """thing = by_shape[relation, shape] and by_colour[relation, colour]; the masks say which entries are known."""

    by_shape: Ints
    by_colour: Ints
    known_shape: Bools
    known_colour: Bools


def known_facts() -> Facts:
    """The facts seen in pretraining, the same in every world; unknown entries hold -1."""
    rng = np.random.default_rng(KNOWN_SEED)
    tables = []
    for values in (SHAPES, COLOURS):
        shape = (len(RELATIONS), len(values))
        things = rng.integers(0, len(THINGS), shape)
        known = np.zeros(things.shape, dtype=bool)
        for relation, needs in enumerate(DEPENDS_ON):
            order = rng.permutation(len(values))
            count = KNOWN_BOTH if needs == "both" else KNOWN_SINGLE
            known[relation, order[:count]] = True
        tables.append((np.where(known, things, -1), known))
    (by_shape, known_shape), (by_colour, known_colour) = tables
    return Facts(by_shape, by_colour, known_shape, known_colour)


def draw_facts(world_seed: int) -> Facts:
    """All facts of the world with this seed: the known ones, and the rest drawn afresh."""
    known = known_facts()
    rng = np.random.default_rng([world_seed, 1])
    fresh_shape = rng.integers(0, len(THINGS), known.by_shape.shape)
    fresh_colour = rng.integers(0, len(THINGS), known.by_colour.shape)
    return Facts(
        np.where(known.known_shape, known.by_shape, fresh_shape),
        np.where(known.known_colour, known.by_colour, fresh_colour),
        known.known_shape,
        known.known_colour,
    )
