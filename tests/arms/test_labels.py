"""What labels let expect: the closed form against fits without the rows, and what counts as one answer."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.arms import labels as module
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.labels import RIDGE, Labels, learn_labels
from leverplus.arms.similarity import cosine, rows
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors

RULES = AnswerRules("vqa_accuracy")


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def drawn(count: int, pictures: bool = False) -> tuple[list[Item], Vectors]:
    """Items in three clusters whose answer is mostly that of their cluster; three items share a picture."""
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=count)
    centres = 1.5 * rng.standard_normal((3, 12))
    text = unit(centres[kind] + rng.standard_normal((count, 12)))
    image = unit(rng.standard_normal((count, 8))) if pictures else None
    said = np.where(rng.random(count) < 0.9, kind, rng.integers(3, size=count))
    items = []
    for row, own in enumerate(said.tolist()):
        answers = (("red", "two dogs", "A")[own],) * 10
        picture = f"p{row // 3}"
        name = ItemId(f"q{row}")
        items.append(Item(name, f"question {row}", answers, "train", picture, picture))
    return items, Vectors(image, text, text)


def learnt(items: list[Item], vectors: Vectors) -> tuple[Labels, Corpus]:
    corpus = Corpus.of_items(items, vectors, RULES)
    found = learn_labels(corpus)
    assert found is not None
    return found, corpus


def test_what_is_left_out_is_a_fit_without_the_picture_and_strangers_get_all() -> None:
    items, vectors = drawn(30)
    model, corpus = learnt(items, vectors)
    scores = np.zeros((30, len(model.answers)))
    for row, item in enumerate(items):
        scores[row, model.columns[RULES.key(item.answer)]] = 1.0
    kernel = np.exp((cosine(vectors.text, vectors.text) - 1.0) / model.ridge.width)
    found = model.expected(Queries(items, vectors), corpus)
    for row in range(30):
        kept = [other for other in range(30) if other // 3 != row // 3]
        regular = kernel[np.ix_(kept, kept)] + RIDGE * np.eye(len(kept))
        weights = np.linalg.solve(regular, scores[kept])
        assert found[row] == pytest.approx(kernel[row, kept] @ weights, abs=2e-4)
    right = np.take_along_axis(scores, found.argmax(axis=1)[:, None], axis=1)
    assert right.mean() > 0.7  # a guess has a third
    strangers = [Item(ItemId("stranger"), "?", (), "")]
    told = model.expected(Queries(strangers, rows(vectors, [0])), corpus)
    weights = np.linalg.solve(kernel + RIDGE * np.eye(30), scores)
    assert told[0] == pytest.approx(kernel[0] @ weights, abs=1e-4)


def test_a_label_that_normalises_to_nothing_is_an_answer() -> None:
    items, vectors = drawn(60)
    model, corpus = learnt(items, vectors)
    assert set(model.columns) == {"red", "2 dogs", "A"}
    assert sorted(model.answers) == ["A", "red", "two dogs"]
    place = [item.answer for item in items].index("A")
    more = [Item(ItemId("x"), "?", ("blue",), "t"), Item(ItemId("y"), "?", (), "t")]
    block = {"text": vectors.text[:2], "answer": vectors.answer[:2]}
    bigger = corpus.grown(block, np.ones(2, np.bool_))
    every = [*items, *more]
    object.__setattr__(
        bigger, "items_of", lambda rows: {row: every[row] for row in rows}
    )
    expected = np.array([[0.2, 0.7, 0.1]])
    found = model.of_rows(expected, bigger, np.array([60, 61, place]))
    assert found.tolist() == [[0.0, 0.0, expected[0, model.columns["A"]]]]


def test_pictures_are_read_where_they_tell_more() -> None:
    items, vectors = drawn(120, pictures=True)
    noise = unit(np.random.default_rng(3).standard_normal((120, 12)))
    swapped = Vectors(vectors.text, noise, vectors.answer)
    assert "text" in learnt(items, vectors)[0].ridge.fields
    assert "image" in learnt(items, swapped)[0].ridge.fields


def test_more_items_than_it_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEARNT_FROM", 20)
    corpus = Corpus.of_items(*drawn(50), RULES)
    first = [ItemId(f"q{row}") for row in range(30, 45)]
    found = learn_labels(corpus, first)
    assert found is not None
    assert len(found.ridge.rows) == 20
    assert set(range(30, 45)) <= set(found.ridge.rows.tolist())


def test_items_without_answers_and_answers_that_are_no_labels_teach_nothing() -> None:
    items, vectors = drawn(3)
    silent = [Item(item.id, "?", (), "train") for item in items]
    assert learn_labels(Corpus.of_items(silent, vectors, RULES)) is None
    captions = Corpus.of_items(items, vectors, AnswerRules("cider"))
    assert learn_labels(captions) is None
    model, _ = learnt(*drawn(1))
    assert model.ridge.left_out[ItemId("q0")].tolist() == [0.0]
