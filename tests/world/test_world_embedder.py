"""The world's embedder: unit vectors in which paraphrases, synonyms and like pictures are near."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus_lab.world.embedder import WorldEmbedder
from leverplus_lab.world.task import WorldTask
from leverplus_lab.world.words import PARAPHRASES, THINGS

PICTURE = "world:dev:0"


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask(0)


@pytest.fixture(scope="module")
def embedder() -> WorldEmbedder:
    return WorldEmbedder()


@pytest.fixture(scope="module")
def vectors(task: WorldTask, embedder: WorldEmbedder) -> Vectors:
    return embedder.embed(task.items("dev")[:600], task)


def own_and_others(
    vectors: NDArray[np.float32], group: NDArray[np.int64]
) -> tuple[float, float]:
    """Mean similarity inside groups (of different rows) and between them."""
    likeness, same = vectors @ vectors.T, group[:, None] == group[None, :]
    return float(likeness[same & ~np.eye(len(group), dtype=bool)].mean()), float(
        likeness[~same].mean()
    )


def test_paraphrases_are_near_and_other_questions_far(
    task: WorldTask, embedder: WorldEmbedder
) -> None:
    texts = [text for group in PARAPHRASES for text in group]
    items = [Item(ItemId(text), text, (), "query", PICTURE) for text in texts]
    inside, between = own_and_others(
        embedder.embed(items, task).text, np.repeat(np.arange(6), 4)
    )
    assert inside > 0.7
    assert inside > between + 0.5


def test_two_names_of_one_thing_are_near_and_other_names_far(
    task: WorldTask, embedder: WorldEmbedder
) -> None:
    names = [name for pair in THINGS for name in pair]
    items = [
        Item(ItemId(name), "what does it like", (name,), "train", PICTURE)
        for name in names
    ]
    inside, between = own_and_others(
        embedder.embed(items, task).answer, np.repeat(np.arange(len(THINGS)), 2)
    )
    assert inside > 0.7
    assert inside > between + 0.5


def test_pictures_of_one_shape_and_colour_are_nearer_than_others(
    task: WorldTask, vectors: Vectors
) -> None:
    items = task.items("dev")[:600:2]
    looks = {
        look: n
        for n, look in enumerate(
            sorted({(i.meta["shape"], i.meta["colour"]) for i in items})
        )
    }
    group = np.array([looks[item.meta["shape"], item.meta["colour"]] for item in items])
    assert vectors.image is not None
    inside, between = own_and_others(vectors.image[::2], group)
    assert inside > between + 0.3


@pytest.mark.slow
def test_the_demonstrations_of_a_world_are_embedded_once_and_never_taken_for_another_worlds(
    task: WorldTask, embedder: WorldEmbedder
) -> None:
    own = embedder.embed(task.items("train"), task)
    assert WorldEmbedder().embed(WorldTask(0).items("train"), WorldTask(0)) is own
    alone = embedder.embed(task.items("train")[:600], task)
    assert np.allclose(alone.image, own.image[:600], atol=1e-6)
    assert np.allclose(alone.answer, own.answer[:600], atol=1e-6)
    other = embedder.embed(WorldTask(1).items("train"), WorldTask(1))
    assert not np.allclose(other.image, own.image, atol=1e-2)


def test_the_fingerprint_names_the_weights(embedder: WorldEmbedder) -> None:
    fingerprint = embedder.fingerprint()
    assert fingerprint["embedder"] == "world-dual-encoder"
    assert len(fingerprint["revision"]) == 16
