"""Questions: two different relations on every picture, ten annotators who differ, everything from the seed."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus_lab.world.facts import draw_facts
from leverplus_lab.world.questions import (
    CARELESS,
    CUES,
    IMAGES,
    MISLABELLED,
    NONE,
    OTHER_DIALECT,
    Questions,
    draw_questions,
    true_things,
)
from leverplus_lab.world.words import ANSWER_START, DEPENDS_ON, RELATIONS


@pytest.fixture(scope="module")
def drawn() -> Questions:
    return draw_questions(0, "train")


def test_every_picture_carries_two_distinct_relations(drawn: Questions) -> None:
    relation = drawn.relation.reshape(-1, 2)
    assert len(relation) == IMAGES["train"]
    assert (relation[:, 0] != relation[:, 1]).all()
    np.testing.assert_array_equal(drawn.image, np.repeat(np.arange(IMAGES["train"]), 2))


def test_a_question_has_ten_answers_of_one_or_two_words(drawn: Questions) -> None:
    assert drawn.answers.shape == (len(drawn), 10, 2)
    two = np.array(DEPENDS_ON)[drawn.relation] == "both"
    assert (drawn.answers[two] != NONE).all()
    assert (drawn.answers[~two][:, :, 0] != NONE).all()
    assert (drawn.answers[~two][:, :, 1] == NONE).all()


def test_annotators_err_and_change_dialect_as_often_as_stated(drawn: Questions) -> None:
    clean = ~drawn.mislabelled
    first = drawn.answers[clean, :, 0] - ANSWER_START
    right = first // 2 == drawn.truth[clean, :1]
    assert 1 - right.mean() == pytest.approx(CARELESS * 23 / 24, abs=0.005)
    other = first % 2 != drawn.dialect[clean, None]
    assert other[right].mean() == pytest.approx(OTHER_DIALECT, abs=0.01)
    assert drawn.mislabelled.mean() == pytest.approx(MISLABELLED, abs=0.01)


def test_a_background_hints_at_the_dialect_as_strongly_as_stated(
    drawn: Questions,
) -> None:
    dialect, background = drawn.dialect[::2], drawn.scenes.background
    for kind, cue in enumerate(CUES):
        own = background % len(CUES) == kind
        typical = (background // len(CUES) == dialect)[own].mean()
        assert typical == pytest.approx(cue, abs=0.04)


def test_the_truth_follows_from_shape_or_colour_or_both() -> None:
    facts = draw_facts(0)
    relation = np.arange(len(RELATIONS))
    things = true_things(facts, relation, np.full(6, 2), np.full(6, 5))
    for row, needs in enumerate(DEPENDS_ON):
        by_shape, by_colour = facts.by_shape[row, 2], facts.by_colour[row, 5]
        expected = {
            "shape": (by_shape, NONE),
            "colour": (by_colour, NONE),
            "both": (by_colour, by_shape),
        }[needs]
        assert tuple(things[row]) == expected


def test_unknown_counts_the_facts_that_are_needed_and_not_known(
    drawn: Questions,
) -> None:
    facts = draw_facts(0)
    for row in range(200):
        relation, image = drawn.relation[row], drawn.image[row]
        needs = DEPENDS_ON[relation]
        count = 0
        if needs != "colour":
            count += not facts.known_shape[relation, drawn.scenes.shape[image]]
        if needs != "shape":
            count += not facts.known_colour[relation, drawn.scenes.colour[image]]
        assert drawn.unknown[row] == count


def test_splits_and_seeds_draw_different_scenes() -> None:
    dev, test, other = (
        draw_questions(0, "dev"),
        draw_questions(0, "test"),
        draw_questions(1, "dev"),
    )
    for one in (test, other):
        assert not np.isin(dev.scenes.radius, one.scenes.radius).any()
