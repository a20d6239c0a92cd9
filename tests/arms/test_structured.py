"""Arms that foretell answers, on a task where the answer's shape decides and nearness misleads; BM25 by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from leverplus.arms.base import Arm, ArmUnavailable
from leverplus.arms.corpus import Queries
from leverplus.arms.spec import open_arm
from leverplus.arms.training import Training
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item
from leverplus.encode.base import Vectors
from leverplus.encode.settings import EmbedSection
from leverplus.encode.tfidf import TfidfVectors

RULES, LABELS = AnswerRules("sql"), AnswerRules("label_accuracy")
PLACES = [
    "Aldern", "Brockhurst", "Castelmar", "Dunmore", "Eastvale", "Fairholm", "Glenrock", "Harwick", "Ironton",
    "Jasperfield", "Kingsley", "Lorenz", "Marbury", "Norwood", "Oakmont", "Pinecrest",
]  # fmt: skip
ASKED = {
    "how many people live in {} today": 'SELECT population FROM town WHERE name = "{}"',
    "which rivers cross the old town of {}": 'SELECT river FROM crossing WHERE town = "{}"',
    "count the schools that {} has": 'SELECT COUNT(*) FROM school WHERE town = "{}"',
    "what is the oldest bridge of {}": 'SELECT name FROM bridge WHERE town = "{}" ORDER BY year LIMIT 1',
}
"""The words of a place weigh more than those that decide the shape, so that near questions have wrong shapes."""


def towns(split: str) -> list[Item]:
    items = []
    for place in PLACES[:12]:
        ends = ("", "ton", "shire", "view", "by", "ley")
        name = " ".join(place + end for end in ends)
        for number, (question, answer) in enumerate(ASKED.items()):
            asked, told = question.format(name), (answer.format(name),)
            items.append(Item(f"{split}-{place}-{number}", asked, told, split))
    return items


def vectors_of(items: Sequence[Item], learnt_from: Sequence[Item]) -> Vectors:
    encoder = TfidfVectors(EmbedSection(name="tfidf"))
    encoder.learn([item.question for item in learnt_from])
    text = encoder.of_texts([item.question for item in items])
    return Vectors(None, text, np.zeros_like(text))


def learn_from(items: Sequence[Item], rules: AnswerRules = RULES) -> Training:
    return Training(items, vectors_of(items, items), rules)


def ask(items: Sequence[Item], examples: Training) -> Queries:
    blind = [Item(f"asked {item.id}", item.question, (), "") for item in items]
    return Queries(blind, vectors_of(items, examples.items))


@pytest.fixture(scope="module")
def examples() -> Training:
    """12 places, but each lacks one of the four questions, so that the nearest example has another shape."""
    items = towns("train")
    return learn_from([item for place, item in enumerate(items) if place % 5 != 0])


@pytest.fixture(scope="module")
def asked() -> list[Item]:
    return [item for place, item in enumerate(towns("test")) if place % 5 == 0]


def fitted(spec: str, examples: Training) -> Arm:
    return open_arm(spec).fit(examples)


def shape_of(item: Item) -> str:
    return item.answer.split('"')[0]


def test_where_the_shape_decides_it_is_foretold_and_a_cover_shows_other_shapes_too(
    examples: Training, asked: list[Item]
) -> None:
    queries = ask(asked, examples)
    right, kinds = {}, {}
    for spec in ("nearest_text", "bm25", "by_answer", "cover", "cover(bm25)"):
        lists = fitted(spec, examples).choose(queries, examples.corpus, 4)
        hits, counts = [], []
        for rows, item in zip(lists, asked, strict=True):
            shapes = [shape_of(examples.items[row]) for row in rows]
            hits.append(shapes[-1] == shape_of(item))
            counts.append(len(set(shapes)))
        right[spec], kinds[spec] = np.mean(hits), np.mean(counts)
    assert max(right["nearest_text"], right["bm25"]) <= 0.2
    assert right["by_answer"] == right["cover"] == 1.0
    assert kinds["cover"] > kinds["by_answer"]


def test_an_answer_is_copied_and_its_values_are_swapped(
    examples: Training, asked: list[Item]
) -> None:
    arm, queries = fitted("copy_nearest", examples), ask(asked, examples)
    lists = arm.choose_lists(queries, examples.corpus, 0)
    copies = arm.answer(queries, examples.corpus, lists, [])
    assert copies == [item.answer for item in asked]


def test_a_first_answer_of_the_model_leads_to_examples_like_it(
    examples: Training, asked: list[Item]
) -> None:
    arm, queries = fitted("predicted", examples), ask(asked[:4], examples)
    first = arm.choose(queries, examples.corpus, 2)
    assert first == fitted("by_answer", examples).choose(queries, examples.corpus, 2)
    written = 'SELECT COUNT(*) FROM school WHERE town = "Nowhere"'
    for rows in arm.choose_given(queries, examples.corpus, 2, [written] * 4):
        for row in rows:
            assert "COUNT" in examples.items[row].answer
    assert arm.choose_given(queries, examples.corpus, 2, [" "] * 4) == first


def test_too_few_answers_are_said(examples: Training) -> None:
    with pytest.raises(ArmUnavailable, match="only 3 have one"):
        fitted("by_answer", learn_from(examples.items[:3]))


def test_what_was_learnt_from_an_example_is_not_used_for_it() -> None:
    """A training question is foretold without itself: with a label of chance nothing can be known of it."""
    rng = np.random.default_rng(3)
    items = []
    for place in range(60):
        words = " ".join(rng.choice(PLACES, 4))
        label = str(rng.choice(["red", "green", "blue"]))
        items.append(Item(f"item {place}", f"{words} number {place}", (label,), ""))
    training = learn_from(items, LABELS)
    closed = [np.array([place]) for place in range(60)]
    queries = Queries(items, training.vectors, closed)
    hits = 0
    chosen = fitted("by_answer", training).choose(queries, training.corpus, 1)
    for rows, item in zip(chosen, items, strict=True):
        hits += items[rows[0]].answer == item.answer
    assert hits < 35  # a third by chance, nearly all where the answer itself were read


@pytest.mark.parametrize("with_vectors", [True, False])
def test_labels_are_foretold_too_and_words_alone_serve(with_vectors: bool) -> None:
    items = []
    for place, (question, answer) in itertools.product(PLACES, ASKED.items()):
        label = answer.split()[3]
        items.append(
            Item(f"{label} {place}", question.format(place), (label,), "train")
        )
    blind = [
        Item("a", "how many people live in Zanzibar today", (), ""),
        Item("b", "what is the oldest bridge of Zanzibar", (), ""),
    ]
    training = learn_from(items, LABELS)
    vectors = vectors_of(blind, items)
    if not with_vectors:
        empty, none = (
            np.zeros((len(items), 0), np.float32),
            np.zeros((2, 0), np.float32),
        )
        training = Training(items, Vectors(None, empty, empty), LABELS)
        vectors = Vectors(None, none, none)
    arm = fitted("by_answer", training)
    assert with_vectors or arm.vector_fields == ()
    chosen = arm.choose(Queries(blind, vectors), training.corpus, 3)
    for rows, label in zip(chosen, ("town", "bridge"), strict=True):
        assert [items[row].answer for row in rows] == [label] * 3


def test_pictures_are_compared_where_they_decide() -> None:
    """Questions say nothing here; the regression must learn from the pictures' vectors."""
    rng, answers = np.random.default_rng(0), ("cat", "dog", "bus", "cup")
    centres = np.linalg.qr(rng.standard_normal((16, 4)))[0].T  # (4, 16)
    items, pictures = [], []
    for place in range(80):
        question, answer = f"what is item {rng.integers(9)}", (answers[place % 4],)
        items.append(Item(str(place), question, answer, "train", image_id=f"p {place}"))
        own = centres[place % 4] + 0.2 * rng.standard_normal(16)
        pictures.append(own / np.linalg.norm(own))
    text = vectors_of(items, items).text
    vectors = Vectors(np.array(pictures, np.float32), text, np.zeros_like(text))
    training = Training(items, vectors, AnswerRules("exact_match"))
    arm = fitted("by_answer", training)
    assert "image" in arm.vector_fields
    asked = Vectors(centres.astype(np.float32), text[:4], text[:4])
    queries = Queries([Item("new", "what is item 3", (), "")] * 4, asked)
    for rows, answer in zip(
        arm.choose(queries, training.corpus, 3), answers, strict=True
    ):
        assert [items[row].answer for row in rows] == [answer] * 3


def test_bm25_by_hand_and_ties_come_in_the_order_of_rows() -> None:
    """Two texts of 2 and 4 words, mean 3; k1 = 1.5, b = 0.75."""
    training = learn_from(
        [
            Item("1", "red ball", ("a",), "train"),
            Item("2", "blue ball ball here", ("b",), "train"),
        ]
    )
    query = ask([Item("q", "the red ball", (), "")], training)
    explained = fitted("bm25", training).explain(query, training.corpus, 2)
    rare = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    common = math.log(1 + (2 - 2 + 0.5) / (2 + 0.5))
    short = 1 + 1.5 * (0.25 + 0.75 * 2 / 3)
    long = 2 + 1.5 * (0.25 + 0.75 * 4 / 3)
    first, second = (rare + common) * 2.5 / short, common * 2 * 2.5 / long
    assert explained.rows.tolist() == [0, 1]
    assert explained.score == pytest.approx([first, second], abs=1e-6)
    same = [Item(str(n), "the same words", (f"{n}",), "train") for n in range(12)]
    twins = learn_from(same, AnswerRules("exact"))
    query = ask([Item("q", "the same words", (), "")], twins)
    for spec in ("bm25", "hybrid", "masked"):
        assert fitted(spec, twins).choose(query, twins.corpus, 3) == [[2, 1, 0]]
