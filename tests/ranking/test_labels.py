"""What labels let expect: the closed form against fits without the rows, and what counts as one answer."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.embedders.base import Vectors
from leverplus.metrics import metric_named
from leverplus.pools.similarity import similarity
from leverplus.ranking import labels as module
from leverplus.ranking.labels import RIDGE, LabelModel, expected_of, learn_labels
from leverplus.types import Item, ItemId

METRIC = metric_named("vqa_accuracy")


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def drawn(count: int, seed: int = 0, pictures: bool = False) -> tuple[list[Item], Vectors]:
    """Items in three clusters whose answer is mostly that of their cluster; three items share a picture."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=count)
    centres = 1.5 * rng.standard_normal((3, 12))
    text = unit(centres[kind] + rng.standard_normal((count, 12)))
    image = unit(rng.standard_normal((count, 8))) if pictures else None
    said = np.where(rng.random(count) < 0.9, kind, rng.integers(3, size=count))
    words = ("red", "two dogs", "A")
    items = [
        Item(ItemId(f"q{row}"), f"question {row}", (words[own],) * 10, "train", f"p{row // 3}", f"p{row // 3}")
        for row, own in enumerate(said.tolist())
    ]
    return items, Vectors(image, text, text)


def learnt(items: list[Item], vectors: Vectors) -> LabelModel:
    found = learn_labels(items, vectors, METRIC)
    assert found is not None
    return found


def test_what_is_left_out_is_a_fit_without_the_picture() -> None:
    items, vectors = drawn(30)
    model = learnt(items, vectors)
    scores = np.zeros((30, len(model.answers)))
    for row, item in enumerate(items):
        scores[row, model.columns[module.answer_key(item.answer)]] = 1.0
    kernel = np.exp((similarity(vectors, vectors, model.text_share) - 1.0) / model.width)
    for row in range(30):
        kept = [other for other in range(30) if other // 3 != row // 3]
        weights = np.linalg.solve(kernel[np.ix_(kept, kept)] + RIDGE * np.eye(len(kept)), scores[kept])
        assert model.left_out[row] == pytest.approx(kernel[row, kept] @ weights, abs=2e-4)
    right = [scores[row, guess] for row, guess in enumerate(model.left_out.argmax(axis=1))]
    assert model.accuracy == pytest.approx(np.mean(right), abs=1e-6)
    assert model.accuracy > 0.7  # a guess has a third


def test_a_stranger_is_predicted_by_all_and_an_item_as_if_it_were_not_there() -> None:
    items, vectors = drawn(30)
    model = learnt(items, vectors)
    one = Vectors(None, vectors.text[:1], vectors.answer[:1])
    assert model.expected([ItemId("q0")], one)[0] == pytest.approx(model.left_out[0])
    kernel = np.exp((similarity(one, vectors, 1.0) - 1.0) / model.width)
    assert model.expected([ItemId("stranger")], one) == pytest.approx(kernel @ model.weights, abs=1e-4)


def test_a_label_that_normalises_to_nothing_is_an_answer() -> None:
    items, vectors = drawn(60)
    model = learnt(items, vectors)
    assert set(model.columns) == {"red", "2 dogs", "A"}
    assert sorted(model.answers) == ["A", "red", "two dogs"]
    columns = model.columns_of(
        [*items[:2], Item(ItemId("x"), "?", ("blue",), "train"), Item(ItemId("y"), "?", (), "t")]
    )
    assert columns.tolist()[2:] == [-1, -1]
    expected = expected_of(np.array([[0.2, 0.7, 0.1]]), np.array([[1, -1, 0]]))
    assert expected.tolist() == [[0.7, 0.0, 0.2]]


def test_pictures_are_read_where_they_tell_more() -> None:
    items, vectors = drawn(120, pictures=True)
    swapped = Vectors(vectors.text, unit(np.random.default_rng(3).standard_normal((120, 12))), vectors.answer)
    assert learnt(items, vectors).text_share > 0.0
    assert learnt(items, swapped).text_share < 1.0
    assert learnt(items, swapped).tries == 6


def test_more_items_than_it_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEARNT_FROM", 20)
    items, vectors = drawn(50)
    first = [ItemId(f"q{row}") for row in range(30, 45)]
    found = learn_labels(items, vectors, METRIC, first=first)
    assert found is not None
    assert len(found.items) == 20
    assert set(first) <= set(found.items)


def test_items_without_answers_teach_nothing() -> None:
    items = [Item(ItemId(f"q{row}"), "?", (), "train") for row in range(3)]
    assert learn_labels(items, drawn(3)[1], METRIC) is None
    one = learn_labels(*drawn(1), METRIC)
    assert one is not None
    assert one.left_out.tolist() == [[0.0]]  # nothing is left to learn from
