"""The model's answers and the labels in one answer: by hand, in a batch and alone, kept in a bundle, and in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import (  # fmt: skip
    ANSWERS,
    RULES,
    Fitted,
    Trained,
    WordEmbedder,
    asked_items,
    bundled,
    examples,
    fitted,
    opened,
    said,
)

from leverplus.arms.base import ArmUnavailable
from leverplus.arms.corpus import Queries
from leverplus.arms.fused import (
    MOST_WEIGHT,
    PRIOR,
    WEIGHED_ON,
    Fused,
    label_weight,
    voiced_answers,
)
from leverplus.arms.spec import fit_calls, open_arm
from leverplus.arms.training import Training
from leverplus.data.metrics.text import plain_label
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Score
from leverplus.encode.base import Vectors
from leverplus.errors import LeverError

ITEM = asked_items(1)[0]


def made(spec: str) -> Fitted:
    found = fitted(spec, False)
    assert found is not None
    assert isinstance(found.arm, Fused)
    return found


def answered(found: Fitted, given: list[list[Score]]) -> list[str]:
    queries = found.queries(asked_items(len(given)))
    answers = found.arm.answer(queries, found.training.corpus, [], given)
    assert answers is not None
    return answers


def expectations(found: Fitted, count: int) -> list[dict[str, float]]:
    """What labels expect of each answer for some questions."""
    arm = found.arm
    assert isinstance(arm, Fused)
    queries = found.queries(asked_items(count))
    rows = arm.labels.expected(queries, found.training.corpus)
    return [dict(zip(arm.labels.answers, own.tolist(), strict=True)) for own in rows]


def test_the_sum_of_share_and_weighed_expectation_wins() -> None:
    for weight in (0, 1, 3, 16):
        found = made(f"fused(nearest_text, {weight})")
        given, wanted = [], []
        rng = np.random.default_rng(weight)
        for item, expected in zip(asked_items(8), expectations(found, 8), strict=True):
            texts = rng.choice([*ANSWERS, "purple"], 5).tolist()
            given.append([said(item, text) for text in texts])
            totals = {}
            for text in dict.fromkeys(texts[::-1]):  # the last one among equals
                totals[text] = texts.count(text) / 5 + weight * expected.get(text, 0)
            wanted.append(max(totals, key=lambda text: totals[text]))
        assert answered(found, given) == wanted
        alone = []
        for place, own in enumerate(given):
            queries = found.queries(asked_items(8))[place : place + 1]
            alone += found.arm.answer(queries, found.training.corpus, [], [own]) or []
        assert alone == wanted, "one question is a batch of one"


def test_labels_choose_among_what_the_model_said_and_nothing_else() -> None:
    found = made("fused(nearest_text, 16)")
    given = [[said(item, "purple")] * 2 for item in asked_items(3)]
    assert answered(found, given) == ["purple"] * 3
    assert answered(found, [[said(ITEM, ""), said(ITEM, " ")]]) == [""]
    assert answered(found, [[said(ITEM, ""), said(ITEM, "blue")]]) == ["blue"]


def test_of_labels_each_may_win_with_the_mean_of_its_probabilities() -> None:
    items = examples()
    vectors = WordEmbedder(False).embed(items, None)
    rules = AnswerRules("label_accuracy", "vqa")
    arm = open_arm("fused(nearest_text, 2)").fit(Training(items, vectors, rules))
    assert isinstance(arm, Fused)
    training = Training(items, vectors, rules)
    asked = asked_items(6)
    queries = Queries(asked, WordEmbedder(False).embed(asked, None))
    expected = arm.labels.expected(queries, training.corpus)
    logs = [
        {"red": -1.0, "blue": -2.0, "green": -0.5},
        {"red": -9.0, "blue": -0.1, "green": -3.0},
    ]
    scores = [[said(item, "green", own) for own in logs] for item in asked]
    means: dict[str, float] = {}
    for own in logs:
        total = sum(np.exp(value) for value in own.values())
        for label, value in own.items():
            means[label] = means.get(label, 0.0) + float(np.exp(value) / total / 2)
    wanted = []
    for row in expected:
        totals = {}
        for label, value in zip(arm.labels.answers, row, strict=True):
            totals[label] = means[label] + 2 * value
        wanted.append(max(totals, key=lambda label: totals[label]))
    assert arm.answer(queries, training.corpus, [], scores) == wanted
    assert len(set(wanted)) > 1
    silent = [[said(item, "")] for item in asked]
    best = [arm.labels.answers[place] for place in expected.argmax(axis=1)]
    assert arm.answer(queries, training.corpus, [], silent) == best


def test_every_list_has_one_part_to_give() -> None:
    rules = AnswerRules("label_accuracy")
    weighed = said(ITEM, "a", {"A": -1.0, "b": -1.0})
    found = voiced_answers([weighed, said(ITEM, "a"), said(ITEM, "")], rules, ITEM)
    assert found == {
        plain_label("b"): ("b", pytest.approx(1 / 6)),
        plain_label("a"): ("a", pytest.approx(1 / 2)),
    }


def test_the_weight_is_the_ratio_of_both_slopes() -> None:
    """Answers whose worth is made of both: the ratio is found again; without answers that of the prior stands."""
    rng = np.random.default_rng(1)
    features, worth = [], []
    for _ in range(3000):
        own = rng.random((3, 2))
        level = rng.random()  # some questions are easy
        features.append([(float(a), float(b)) for a, b in own])
        worth.append([level + 0.2 * a + 0.6 * b for a, b in own.tolist()])
    assert label_weight(features, worth) == pytest.approx(3.0, rel=0.02)
    assert label_weight([], []) == pytest.approx(PRIOR[1] / PRIOR[0])
    assert label_weight([[(1.0, 0.4)]], [[1.0]]) == label_weight([], [])
    against = [[-value for value in own] for own in worth]
    assert label_weight(features, against) == 0.0
    swapped = [[(-a, b) for a, b in own] for own in features]
    assert label_weight(swapped, worth) == MOST_WEIGHT


class Knowing(Trained):
    """A model that is right, or never is."""

    right = True

    def ask(self, queries: Queries, lists: Any, what: str) -> list[list[Score]]:
        found = []
        for item, own in zip(queries.items, lists, strict=True):
            place = ANSWERS.index(item.answer) + (0 if self.right else 1)
            found.append([said(item, ANSWERS[place % 3]) for _ in own])
            assert all(
                item.id not in {self.items[row].id for row in rows} for rows in own
            )
        return found


def test_a_model_that_knows_is_believed_and_one_that_is_wrong_is_not() -> None:
    """With two different answers to choose between, the weight decides; it comes from answers to training questions."""
    items = examples()
    for item in items:
        assert item.answers
    weights = []
    for right in (True, False):
        rules = AnswerRules("label_accuracy", "vqa")
        training = Knowing(
            items, WordEmbedder(False).embed(items, None), "nearest_text"
        )
        training.right, training.rules = right, rules
        training.corpus = training.corpus.of_items(items, training.vectors, rules)
        arm = open_arm("fused(nearest_text)").fit(training)
        assert isinstance(arm, Fused)
        weights.append(arm.weight)
    assert weights[0] < PRIOR[1] / PRIOR[0] < weights[1]


def test_calls_are_named_and_a_weight_that_is_given_takes_none() -> None:
    assert open_arm("fused").calls == 5
    assert open_arm("fused").fit_calls == fit_calls(["fused"]) == 5 * WEIGHED_ON
    assert open_arm("fused(nearest_text)").calls == 1
    assert open_arm("fused(nearest_text, 2)").fit_calls == 0
    assert open_arm("fused(zero_shot)").shots((1, 4)) == [0]
    items = examples()
    plain = Training(items, WordEmbedder(False).embed(items, None), RULES)
    open_arm("fused(nearest_text, 2)").fit(plain)
    with pytest.raises(ArmUnavailable, match=r"takes the model's answers.*`lever fit`"):
        open_arm("fused(nearest_text)").fit(plain)
    sql = Training(items, plain.vectors, AnswerRules("token_f1"))
    with pytest.raises(ArmUnavailable, match="labels of these items say nothing"):
        open_arm("fused(nearest_text, 2)").fit(sql)


@pytest.mark.parametrize(
    "spec",
    ["fused(majority)", "fused(predicted)", "fused(fused)", "fused(3)", "fused(mmr, 17)", "fused(mmr, mmr)",
     "vote(fused(mmr), 3)", "cover(vote(bm25, 2))", "vote(mmr, 2)+bm25"],
)  # fmt: skip
def test_what_brings_no_answers_to_weigh_is_refused(spec: str) -> None:
    with pytest.raises(LeverError, match="is not understood"):
        open_arm(spec)


def test_a_vote_over_several_arms_has_a_list_of_each() -> None:
    found = fitted("vote(nearest_text, bm25, 2)", False)
    assert found is not None
    queries, corpus = found.queries(asked_items()), found.training.corpus
    assert found.arm.calls == 4
    both = []
    for part in ("nearest_text", "bm25"):
        arm = open_arm(part).fit(found.training)
        ranked = [rows[::-1] for rows in arm.choose(queries, corpus, 6)]
        both.append([[rows[1::2][::-1], rows[0::2][::-1]] for rows in ranked])
    wanted = [second + first for first, second in zip(*both, strict=True)]
    assert found.arm.choose_lists(queries, corpus, 3) == wanted
    assert found.arm.choose(queries, corpus, 3) == [own[-1] for own in wanted]
    open_arm("vote(" + ", ".join(["random"] * 16) + ", 2)")
    for spec in ("vote(" + ", ".join(["random"] * 33) + ")", "vote(mmr, 1)", "vote()"):
        with pytest.raises(LeverError, match="is not understood"):
            open_arm(spec)


def test_a_bundle_holds_the_weight_and_answers_alike(tmp_path: Path) -> None:
    found = made("fused(vote(nearest_text, 3))")
    selector = bundled(tmp_path / "b", found)
    assert isinstance(selector.way, Fused)
    assert isinstance(found.arm, Fused)
    assert selector.way.weight == found.arm.weight
    items = asked_items(6)
    queries, corpus = found.queries(items), found.training.corpus
    lists = found.arm.choose_lists(queries, corpus, 2)
    scores, wanted = [], []
    for item, own in zip(items, lists, strict=True):
        texts = [found.training.items[rows[0]].answer for rows in own]
        scores.append([said(item, text) for text in texts])
        wanted.append(texts)
    answers = found.arm.answer(queries, corpus, lists, scores)
    assert answers is not None
    for use in (selector, opened(tmp_path / "b", False)):
        for place, item in enumerate(items):
            chats: list[Any] = []

            def ask(chat: list[dict[str, Any]], seen: list[Any] = chats) -> str:
                seen.append(chat)
                return str(chat[1]["content"])  # the answer of the first example

            got = use.answer(ask, question=item.question, shots=2)
            assert len(chats) == 3
            assert got.given == wanted[place]
            assert got.answer == answers[place]
            shown = [
                [found.training.items[row].id for row in rows] for rows in lists[place]
            ]
            assert [[demo.id for demo in own] for own in got.lists] == shown
            told = use.select(question=item.question, shots=2, explain=True)
            assert told.explanation is not None
            assert told.explanation["calls"] == 3
            assert told.explanation["lists"] == shown
            assert chats[-1] == use.messages(question=item.question, shots=2)


def test_every_way_answers_in_use(tmp_path: Path) -> None:
    """One list: the reply as it came, cut. Without a model: nobody is asked. A first answer leads to a second prompt."""

    def never(chat: list[dict[str, Any]]) -> str:
        raise AssertionError(chat)

    for number, (spec, count) in enumerate(
        [("nearest_text", 1), ("label_vote", 0), ("fused(nearest_text, 2)", 1), ("vote(mmr, 2)", 2)]
    ):  # fmt: skip
        found = fitted(spec, False)
        assert found is not None
        selector = bundled(tmp_path / str(number), found)
        asked: list[Any] = []

        def ask(chat: list[dict[str, Any]], seen: list[Any] = asked) -> str:
            seen.append(chat)
            return " blue, I think"

        got = selector.answer(ask if count else never, question=ITEM.question, shots=2)
        assert len(asked) == len(got.lists) == count
        assert got.given == ["blue"] * count
        assert got.answer == (
            "blue" if count else selector.select(question=ITEM.question).answer
        )
        if count:
            weighed = {"red": -0.1, "green": -4.0, "blue": -5.0}
            asked.clear()
            own = selector.answer(seen_by(asked, weighed), question=ITEM.question)
            assert own.answer == "red"
            with pytest.raises(LeverError, match="must give the model's words"):
                selector.answer(seen_by(asked, None), question=ITEM.question)


def seen_by(asked: list[Any], reply: Any) -> Any:
    """A model that always replies the same."""

    def ask(chat: list[dict[str, Any]]) -> Any:
        asked.append(chat)
        return reply

    return ask


def test_a_first_answer_leads_to_the_second_prompt_in_use(tmp_path: Path) -> None:
    found = fitted("predicted", False)
    assert found is not None
    selector = bundled(tmp_path / "b", found)
    asked: list[Any] = []
    got = selector.answer(seen_by(asked, "green"), question=ITEM.question, shots=2)
    queries, corpus = found.queries(asked_items(1)), found.training.corpus
    rows = found.arm.choose_given(queries, corpus, 2, ["green"])[0]
    assert len(asked) == 2
    assert [demo.id for demo in got.lists[0]] == [f"d{row}" for row in rows]
    assert got.answer == "green"


def test_vectors_stay_those_of_the_questions() -> None:
    items = examples()
    vectors = WordEmbedder(False).embed(items, None)
    asked = Training(items, vectors, RULES).asked([3, 1])
    assert [item.id for item in asked.items] == ["d3", "d1"]
    assert isinstance(asked.vectors, Vectors)
    assert np.array_equal(asked.vectors.text, vectors.text[[3, 1]])
    assert [own.tolist() for own in asked.closed if own is not None] == [[3], [1]]
