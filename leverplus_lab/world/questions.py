"""The questions of a world: two on every picture, ten annotators each; the seed alone decides everything.

The order of the random draws below is part of the world: a draw added or moved would give every seed another world.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leverplus_lab.world.facts import Bools, Facts, Ints, draw_facts
from leverplus_lab.world.scenes import Scenes, draw_scenes
from leverplus_lab.world.words import (
    ANSWER_START,
    DEPENDS_ON,
    DIALECTS,
    PARAPHRASES,
    RELATIONS,
    THINGS,
)

IMAGES = {"train": 4000, "dev": 1000, "test": 2000}
"""Pictures per split; each carries two questions."""
QUESTIONS_PER_IMAGE = 2
ANNOTATORS = 10

CUES = (0.95, 0.8, 0.65)
"""How often a background is seen in the dialect it is typical of: a strong, a middling and a weak hint."""
MISLABELLED = 0.04
"""Share of questions whose annotators agree on a wrong answer: demonstrations can mislead."""
OTHER_DIALECT = 0.15
"""How often an annotator uses the other dialect's name."""
CARELESS = 0.05
"""How often an annotator names a random thing."""

RELATION_WEIGHT = (0.2, 0.2, 0.2, 0.2, 0.1, 0.1)
"""How often each relation is asked about; the two relations of one picture are distinct."""

NONE = -1
"""Stands for the second thing of a one-word answer."""

_SPLIT_NUMBER = {"train": 11, "dev": 12, "test": 13}


@dataclass(frozen=True)
class Questions:
    """N = 2 x images questions; `answers` (N, 10, 2) holds token ids of the annotators' names, NONE for no second word.

    `truth` (N, 2) are the things the facts say; `unknown` counts the facts that the model cannot know beforehand.
    """

    scenes: Scenes
    image: Ints
    relation: Ints
    paraphrase: Ints
    dialect: Ints
    truth: Ints
    unknown: Ints
    mislabelled: Bools
    answers: Ints

    def __len__(self) -> int:
        return len(self.relation)


def draw_questions(world_seed: int, split: str) -> Questions:
    """The pictures and questions of one split of the world with this seed."""
    rng = np.random.default_rng([world_seed, _SPLIT_NUMBER[split]])
    images = IMAGES[split]
    dialect_of_image = rng.integers(0, len(DIALECTS), images)
    scenes = draw_scenes(rng, draw_backgrounds(rng, dialect_of_image))
    image = np.repeat(np.arange(images), QUESTIONS_PER_IMAGE)  # (N,)
    # Gumbel top-k: the largest log-weights plus Gumbel noise are a weighted sample without replacement
    luck = rng.gumbel(size=(images, len(RELATIONS)))
    keys = np.log(RELATION_WEIGHT) + luck
    order = np.argsort(-keys, axis=1)
    relation = order[:, :QUESTIONS_PER_IMAGE].reshape(-1)  # (N,)
    paraphrase = rng.integers(0, len(PARAPHRASES[0]), len(image))
    shape = scenes.shape[image]
    colour = scenes.colour[image]
    dialect = dialect_of_image[image]
    facts = draw_facts(world_seed)
    truth = true_things(facts, relation, shape, colour)
    mislabelled = rng.random(len(image)) < MISLABELLED
    answers = _annotate(rng, truth, dialect, mislabelled)
    unknown = _unknown_facts(facts, relation, shape, colour)
    return Questions(
        scenes,
        image,
        relation,
        paraphrase,
        dialect,
        truth,
        unknown,
        mislabelled,
        answers,
    )


def draw_backgrounds(rng: np.random.Generator, dialect: Ints) -> Ints:
    """A background for each picture, typical of its dialect as often as the background's cue says."""
    kind = rng.integers(0, len(CUES), len(dialect))
    typical = rng.random(len(dialect)) < np.array(CUES)[kind]
    side = np.where(typical, dialect, 1 - dialect)
    # backgrounds 0-2 belong to dialect 0, 3-5 to dialect 1
    return np.asarray(side * len(CUES) + kind)


def true_things(
    facts: Facts,
    relation: Ints,
    shape: Ints,
    colour: Ints,
) -> Ints:
    """The one or two things (N, 2) that answer each question."""
    needs = np.array(DEPENDS_ON)[relation]
    by_shape = facts.by_shape[relation, shape]
    by_colour = facts.by_colour[relation, colour]
    first = np.where(needs == "shape", by_shape, by_colour)
    second = np.where(needs == "both", by_shape, NONE)
    return np.stack([first, second], axis=1)


def _unknown_facts(
    facts: Facts,
    relation: Ints,
    shape: Ints,
    colour: Ints,
) -> Ints:
    """How many facts each question needs that pretraining did not show, (N,)."""
    needs = np.array(DEPENDS_ON)[relation]
    unknown_shape = ~facts.known_shape[relation, shape] & (needs != "colour")
    unknown_colour = ~facts.known_colour[relation, colour] & (needs != "shape")
    return np.asarray(unknown_shape.astype(np.int64) + unknown_colour)


def _annotate(
    rng: np.random.Generator,
    truth: Ints,
    dialect: Ints,
    mislabelled: Bools,
) -> Ints:
    """Ten annotators' answers as token ids (N, 10, 2)."""
    n = len(truth)
    # (N, 2), one wrong answer that all annotators of a question give
    wrong = rng.integers(0, len(THINGS), truth.shape)
    agreed = np.where(mislabelled[:, None] & (truth != NONE), wrong, truth)  # (N, 2)
    things = agreed[:, None, :].repeat(ANNOTATORS, axis=1)  # (N, 10, 2)
    random_things = rng.integers(0, len(THINGS), things.shape)
    careless = rng.random((n, ANNOTATORS)) < CARELESS  # (N, 10)
    things = np.where(careless[:, :, None] & (things != NONE), random_things, things)
    other = rng.random((n, ANNOTATORS)) < OTHER_DIALECT
    own = dialect[:, None]
    spoken = np.where(other, 1 - own, own)[:, :, None]  # (N, 10, 1)
    # token of a name: see words.name_token
    return np.where(things == NONE, NONE, ANSWER_START + 2 * things + spoken)
