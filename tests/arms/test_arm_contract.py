"""What every arm of the catalog promises, with and without pictures: what is evaluated is what is served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import ANSWERS, COUNT, Fitted, asked_items, bundled, fitted, opened

from leverplus.arms.base import Arm, Limit
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.settings import PoolSection
from leverplus.arms.spec import arm_class, known_arms, open_arm
from leverplus.bundle.demo import Demo
from leverplus.bundle.selector import Selector
from leverplus.errors import DataError, LeverError

COMPOSED = (
    "label_rank(2)",
    "vote(nearest_text, 3)", "fixed(2)+nearest_text(3)", "nearest_text(2)+label_rank", "vote(mmr, 2)", "cover(bm25)",
    "copy_nearest(masked)", "fused(nearest_text)", "fused(vote(mmr, 2), 1)",
    "vote(nearest_text, bm25, label_rank)", "fused(vote(nearest_text, random, 2))",
)  # fmt: skip
SPECS = [name for name in known_arms() if name != "vote"] + list(COMPOSED)


@pytest.fixture(scope="module", params=[False, True], ids=["text", "pictures"])
def pictures(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=SPECS)
def found(request: pytest.FixtureRequest, pictures: bool) -> Fitted:
    own = fitted(request.param, pictures)
    if own is None:
        pytest.skip("it compares pictures, and there are none")
    return own


def lists(arm: Arm, queries: Queries, corpus: Corpus, shots: int) -> list[list[str]]:
    chosen = arm.choose(queries, corpus, shots)
    return [[corpus.every_item[row].id for row in rows] for rows in chosen]


def served(selector: Selector, shots: int, **options: object) -> list[list[str]]:
    queries = [{"question": item.question} for item in asked_items()]
    picks = selector.select_many(queries, shots, **options)  # type: ignore[arg-type]
    return [[demo.id for demo in own] for own in picks]


def test_a_bundle_shows_what_the_arm_chose_and_reads_it_again(
    found: Fitted, tmp_path: Path
) -> None:
    selector = bundled(tmp_path / "b", found)
    queries, corpus = found.queries(asked_items()), found.training.corpus
    for shots in range(min(5, found.arm.most_shots) + 1):
        wanted = lists(found.arm, queries, corpus, shots)
        assert served(selector, shots) == wanted
        assert served(opened(tmp_path / "b", found.pictures), shots) == wanted
        for own in wanted:
            assert len(set(own)) == len(own) <= shots
    again = open_arm(found.arm.spec).load(tmp_path / "b" / "arm")
    again.check(COUNT)
    assert again.spec == found.arm.spec
    assert again.vector_fields == found.arm.vector_fields
    offered = found.arm.choose_lists(queries, corpus, 2)
    assert again.choose_lists(queries, corpus, 2) == offered
    if not found.arm.calls:
        answers = [found.arm.answer(queries, corpus, offered, [[]] * len(offered))]
        answers.append(again.answer(queries, corpus, offered, [[]] * len(offered)))
        assert answers[0] == answers[1] is not None
        assert set(answers[0]) <= {*ANSWERS, ""}


def test_one_query_is_a_batch_of_one_and_shorter_lists_are_what_they_are_said_to_be(
    found: Fitted,
) -> None:
    queries, corpus = found.queries(asked_items()), found.training.corpus
    wanted = [n for n in (0, 1, 2, 3) if n <= found.arm.most_shots]
    each = found.arm.choose_each(queries, corpus, wanted)
    for shots in wanted:
        together = found.arm.choose(queries, corpus, shots)
        alone = []
        for place in range(len(queries)):
            alone += found.arm.choose(queries[place : place + 1], corpus, shots)
        assert together == alone == each[shots]


def test_nothing_closed_is_shown_and_a_limit_is_exact(found: Fitted) -> None:
    items, corpus = asked_items(), found.training.corpus
    own, odd = found.queries(items), np.arange(1, COUNT, 2)
    queries = replace(own, closed=[np.arange(0, COUNT, 2)] * len(items))
    shots = min(3, found.arm.most_shots)
    chosen = found.arm.choose(queries, corpus, shots)
    assert all(row % 2 == 1 for rows in chosen for row in rows)
    limited = replace(own, only=[odd] * len(items))
    assert chosen == found.arm.choose(limited, corpus, shots)


def test_a_training_question_is_never_shown_itself(found: Fitted) -> None:
    if found.arm.same_for_all:
        pytest.skip("it shows everybody the same")
    items, corpus = list(found.training.items), found.training.corpus
    closed = [np.array([row]) for row in range(COUNT)]
    queries = replace(found.queries(items), closed=closed)
    shots = min(3, found.arm.most_shots)
    for row, rows in enumerate(found.arm.choose(queries, corpus, shots)):
        assert row not in rows


def test_what_is_allowed_means_the_same_in_every_form(
    found: Fitted, tmp_path: Path
) -> None:
    selector = bundled(tmp_path / "b", found)
    shots = min(3, found.arm.most_shots)
    named = [item.id for item in found.training.items if item.meta["part"] == "1"]

    def passes(demo: Demo) -> bool:
        return demo.meta["part"] == "1"

    by_ids = served(selector, shots, allowed=named)
    assert served(selector, shots, allowed=passes) == by_ids
    assert {demo for own in by_ids for demo in own} <= set(named)
    everything = served(selector, shots)
    assert served(selector, shots, allowed=lambda demo: True) == everything
    assert served(selector, shots, allowed=[]) == [[] for _ in everything]


def test_a_limit_travels_with_the_arm(found: Fitted, tmp_path: Path) -> None:
    own, corpus = found.queries(asked_items()), found.training.corpus
    nearest = [ranked.rows for ranked in corpus.nearest(own, 1.0, 12)]
    shots = min(3, found.arm.most_shots)
    wanted = lists(found.arm, replace(own, only=nearest), corpus, shots)
    found.arm.limit = Limit(12)
    try:
        assert served(bundled(tmp_path / "b", found), shots) == wanted
        assert served(opened(tmp_path / "b", found.pictures), shots) == wanted
    finally:
        found.arm.limit = None


def test_what_is_added_counts_and_what_is_deleted_is_gone(
    found: Fitted, tmp_path: Path
) -> None:
    selector = bundled(tmp_path / "b", found)
    shots = min(3, found.arm.most_shots)
    asked = asked_items(1)[0].question
    image = np.zeros((4, 4, 3), np.uint8) if found.pictures else None
    twin = {"id": "twin", "question": asked, "answer": ANSWERS[0], "image": image}
    selector.add([twin])
    added = served(selector, shots)
    assert served(opened(tmp_path / "b", found.pictures), shots) == added
    if found.arm.name in ("nearest_text", "mmr", "bm25", "hybrid", "by_answer"):
        assert added[0][-1] == "twin", "a question asked again stands next to the query"
    gone = sorted({demo for own in added for demo in own} | {"twin"})[:6]
    selector.delete(gone)
    after = served(selector, shots)
    assert not {demo for own in after for demo in own} & set(gone)
    assert served(opened(tmp_path / "b", found.pictures), shots) == after


def test_an_explanation_says_what_was_done(found: Fitted, tmp_path: Path) -> None:
    selector = bundled(tmp_path / "b", found)
    shots = min(3, found.arm.most_shots)
    for item in asked_items(3):
        picks = selector.select(question=item.question, shots=shots, explain=True)
        told = picks.explanation
        assert told is not None
        assert told["arm"] == found.arm.spec
        assert told["goes_by"], "what it is made of says something"
        places = {row["place"]: row["id"] for row in told["candidates"] if row["place"]}
        shown = [places[place] for place in sorted(places)]
        assert shown == [demo.id for demo in picks]
        scores = [row["score"] for row in told["candidates"]]
        assert scores == sorted(scores, reverse=True)


def test_the_needs_are_true(found: Fitted) -> None:
    """Vectors that it does not name are not read, and its calls are as many as it says."""
    own, corpus = found.queries(asked_items(3)), found.training.corpus
    shots = min(2, found.arm.most_shots)
    wanted = found.arm.choose(own, corpus, shots)
    blind = own.vectors
    if "text" not in found.arm.vector_fields and not found.arm.needs.policy:
        vectors = replace(blind, text=np.full_like(blind.text, np.nan))
        assert found.arm.choose(replace(own, vectors=vectors), corpus, shots) == wanted
    if "image" not in found.arm.vector_fields:
        vectors = replace(blind, image=None)
        assert found.arm.choose(replace(own, vectors=vectors), corpus, shots) == wanted
    offered = found.arm.choose_lists(own, corpus, shots)
    assert found.training.questions_asked == min(
        found.arm.fit_calls, COUNT * found.arm.calls
    )
    if found.arm.calls and not found.arm.asks_first:
        assert [len(each) for each in offered] == [found.arm.calls] * 3
    if not found.arm.shows:
        assert wanted == [[], [], []]
        assert found.arm.shots((1, 4)) == [0]


def test_the_first_stage_is_that_of_a_trained_selector_alone(found: Fitted) -> None:
    training = fitted(found.arm.spec, found.pictures, "random")
    assert training is not None
    training.training.pool = PoolSection("random", 5, text_weight=0.1)
    other = open_arm(found.arm.spec).fit(training.training)
    queries, corpus = found.queries(asked_items()), found.training.corpus
    shots = min(3, found.arm.most_shots)
    same = other.choose(queries, corpus, shots) == found.arm.choose(
        queries, corpus, shots
    )
    assert same != found.arm.needs.policy


def test_a_damaged_file_is_refused_with_a_sentence(
    found: Fitted, tmp_path: Path
) -> None:
    found.arm.save(tmp_path)
    state = json.loads((tmp_path / "arm.json").read_text())
    if not state["settings"]:
        pytest.skip("it keeps nothing")
    for name in state["settings"]:
        wrong = {**state["settings"], name: [{"x": "y"}]}
        (tmp_path / "arm.json").write_text(json.dumps({**state, "settings": wrong}))
        with pytest.raises(DataError, match="is not understood"):
            open_arm(found.arm.spec).load(tmp_path)


def test_every_arm_says_who_it_is() -> None:
    for name in known_arms():
        own = arm_class(name)
        assert own.name == name
        assert own.title
        assert own.says
        assert own.__doc__


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        (" vote( nearest_text,5 ) ", "vote(nearest_text, 5)"),
        ("cover(by_answer)", "cover(by_answer)"),
        ("fixed(8) + nearest_text(8)+mmr", "fixed(8)+nearest_text(8)+mmr"),
        ("vote(cover(bm25)+mmr, 2)", "vote(cover(bm25)+mmr, 2)"),
        ("vote(mmr)", "vote(mmr, 5)"),
        ("vote(mmr,bm25, 1)", "vote(mmr, bm25)"),
        ("fused( vote(mmr,bm25 ,2),3 )", "fused(vote(mmr, bm25, 2), 3)"),
        ("fused()", "fused"),
    ],
)
def test_names_compose(spec: str, same: str) -> None:
    assert open_arm(spec).spec == same


@pytest.mark.parametrize(
    "spec",
    [
        "vote(nearest_text, 5", "vote(nearest_text, 1)", "vote(vote(mmr, 2), 2)", "cover(nearest_text)", "nearest_text(mmr)",
        "mmr(1, 2)", "mmr*2", "'mmr'", "vote(mmr, lists=2)", "", "(" * 9999,
    ],
)  # fmt: skip
def test_other_names_are_refused_with_what_to_write(spec: str) -> None:
    with pytest.raises(LeverError, match=r"is not understood.*write a name"):
        open_arm(spec)
    with pytest.raises(LeverError, match="did you mean 'nearest_text'"):
        open_arm("vote(nearest_txt, 3)")
    with pytest.raises(LeverError, match="LEVER_TRUST=mine"):
        open_arm("mmr+mine:Arm", trusted=())
