"""Facts: the known ones are the same in every world, the others follow the seed."""

from __future__ import annotations

import numpy as np

from leverplus_lab.world.facts import KNOWN_BOTH, KNOWN_SINGLE, draw_facts, known_facts
from leverplus_lab.world.words import DEPENDS_ON, RELATIONS, SHAPES, THINGS


def test_a_new_world_redraws_the_unknown_facts_and_leaves_the_known_ones() -> None:
    one, other, known = draw_facts(0), draw_facts(1), known_facts()
    for name in ("shape", "colour"):
        mask = getattr(known, f"known_{name}")
        left, right = getattr(one, f"by_{name}"), getattr(other, f"by_{name}")
        np.testing.assert_array_equal(left[mask], right[mask])
        np.testing.assert_array_equal(left[mask], getattr(known, f"by_{name}")[mask])
        assert np.mean(left[~mask] != right[~mask]) > 0.8, (
            "24 things: a redrawn fact is the same by luck 1 time in 24"
        )
        assert (getattr(known, f"by_{name}")[~mask] == -1).all()


def test_the_same_seed_draws_the_same_facts() -> None:
    np.testing.assert_array_equal(draw_facts(3).by_shape, draw_facts(3).by_shape)
    np.testing.assert_array_equal(draw_facts(3).by_colour, draw_facts(3).by_colour)


def test_every_relation_has_as_many_known_facts_as_stated() -> None:
    known = known_facts()
    wanted = [KNOWN_BOTH if needs == "both" else KNOWN_SINGLE for needs in DEPENDS_ON]
    assert known.known_shape.sum(1).tolist() == wanted
    assert known.known_colour.sum(1).tolist() == wanted


def test_every_fact_names_a_thing() -> None:
    facts = draw_facts(0)
    assert facts.by_shape.shape == (len(RELATIONS), len(SHAPES))
    for table in (facts.by_shape, facts.by_colour):
        assert table.min() >= 0
        assert table.max() < len(THINGS)
