"""Small sets of labelled examples with and without pictures, for which every arm can be fitted without a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.base import Arm, ArmUnavailable, Rows
from leverplus.arms.corpus import Queries, words_digest
from leverplus.arms.effects import Ranking
from leverplus.arms.settings import PoolSection
from leverplus.arms.spec import open_arm
from leverplus.arms.training import Training
from leverplus.bundle.bundle import BundlePlan, write_bundle
from leverplus.bundle.selector import Selector
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Demos, Item, ItemId, Reference, Score
from leverplus.encode.base import Vectors
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import read_selection

WIDTH, COUNT = 16, 60
ANSWERS = ("red", "blue", "green")
RULES = AnswerRules("exact_match", "vqa")


def word_vector(text: str, salt: str = "") -> NDArray[np.float32]:
    """A unit vector that follows from a text: the sum of one random direction a word."""
    total = np.zeros(WIDTH)
    for word in text.split():
        seed = int.from_bytes(
            hashlib.sha256((salt + word).encode()).digest()[:8], "big"
        )
        total += np.random.default_rng(seed).standard_normal(WIDTH)
    return (total / np.linalg.norm(total)).astype(np.float32)


def said(item: Item, answer: str, choices: Mapping[str, float] | None = None) -> Score:
    """What a model said to a question, with the log-probabilities of labels where it weighs these."""
    weighed = [Reference(label, 0, own) for label, own in (choices or {}).items()]
    right = RULES.score(answer, item) if item.answers else 0.0
    references = tuple(weighed)
    return Score(
        item.id, (), answer, answer, right, right > 0, references, right, right, 1, 0.0
    )


class WordEmbedder:
    """Embeds questions by their words, and as their picture by the same words otherwise."""

    def __init__(self, pictures: bool) -> None:
        self.pictures = pictures

    def fingerprint(self) -> dict[str, str]:
        return {"embedder": "words"}

    def embed(self, items: Any, task: Any) -> Vectors:
        text = np.stack([word_vector(item.question) for item in items])
        image = np.stack([word_vector(item.question, "image") for item in items])
        answers = []
        for item in items:
            answers.append(
                word_vector(item.answer) if item.answers else np.zeros(WIDTH)
            )
        answer = np.stack(answers).astype(np.float32)
        return Vectors(image if self.pictures else None, text, answer)


def examples() -> list[Item]:
    items = []
    for row in range(COUNT):
        question = f"word{row} thing{row % 7} kind{row % 3}"
        if row % 20 == 19:
            question = items[-1].question  # some questions stand twice
        meta = {"part": str(row % 4)}
        answer = (ANSWERS[row % 3],)
        items.append(Item(ItemId(f"d{row}"), question, answer, "train", meta=meta))
    return items


def asked_items(count: int = 8) -> list[Item]:
    found = []
    for row in range(count):
        words = f"word{row} thing{row % 5} kind{row % 3} new{row}"
        found.append(Item(ItemId(f"q{row}"), words, (ANSWERS[row % 3],), "test"))
    return found


class Trained(Training):
    """The same examples with a network, measured effects and lists for everybody, as a run would have them."""

    questions_asked = 0

    def __init__(self, items: list[Item], vectors: Vectors, kind: str) -> None:
        super().__init__(items, vectors, RULES)
        self.pool = PoolSection(kind, 12, text_weight=self.text_share)

    def ask(
        self, queries: Queries, lists: Sequence[Sequence[Rows]], what: str
    ) -> list[list[Score]]:
        """A model that says the answer of the last example, and is right as often as that is."""
        self.questions_asked += sum(map(len, lists))
        found = []
        for item, own in zip(queries.items, lists, strict=True):
            texts = [self.items[rows[-1]].answer if rows else "" for rows in own]
            found.append([said(item, text) for text in texts])
        return found

    def policy(self) -> Any:
        values = {"preset": "stopping", "query_fields": ["text"], "hidden": 16}
        values["demo_fields"] = ["text", "answer"]
        config = read_selection(values, [])
        assert config is not None
        return build_policy(config, {"text": WIDTH, "answer": WIDTH}, seed=3)

    def effects(self) -> Ranking:
        effect = np.sin(np.arange(COUNT)) / 10
        return Ranking({"text": 0.3}, 0.5, effect)

    def fixed_lists(self) -> dict[int, Demos]:
        return {1: (ItemId("d7"),), 3: (ItemId("d1"), ItemId("d9"), ItemId("d4"))}


@dataclass(frozen=True)
class Fitted:
    """A fitted arm with what it was fitted to."""

    arm: Arm
    training: Trained
    pictures: bool

    def queries(self, items: list[Item]) -> Queries:
        vectors = WordEmbedder(self.pictures).embed(items, None)
        return Queries(
            items, vectors, digest_of=lambda item: words_digest(item.question, None)
        )


def fitted(spec: str, pictures: bool, pool: str = "nearest_text") -> Fitted | None:
    """An arm fitted to the examples; None where it needs pictures and there are none."""
    items = examples()
    vectors = WordEmbedder(pictures).embed(items, None)
    training = Trained(items, vectors, pool)
    try:
        return Fitted(open_arm(spec).fit(training), training, pictures)
    except ArmUnavailable:
        assert not pictures
        return None


def bundled(folder: Path, found: Fitted) -> Selector:
    """The selector of a bundle that holds an arm and the examples."""
    entries = []
    for item in found.training.items:
        entries.append((item, None))
    vectors = {}
    for name, block in vars(found.training.vectors).items():
        if block is not None:
            vectors[name] = block
    task = {"metric": RULES.metric, "cut": RULES.cut}
    plan = BundlePlan(shots=2, task=task)
    write_bundle(folder, plan, found.arm, entries, vectors)
    return opened(folder, found.pictures)


def opened(folder: Path, pictures: bool) -> Selector:
    selector = Selector.load(folder)
    selector.source.embedder = WordEmbedder(pictures)
    return selector
