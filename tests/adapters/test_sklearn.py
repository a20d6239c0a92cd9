"""scikit-learn: an estimator of texts, pictures and vectors that clones, pipes and passes what checks it can."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapted import ASKED, animals, answer_of, by_hand, colour_at, png, rgb, run_page

from leverplus.bundle.selector import Selector

pytest.importorskip("sklearn", reason="scikit-learn is not installed; type `make test`")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from leverplus.adapters.sklearn import DemoSelector

TEXTS = [row["question"] for row in animals()]
LABELS = [row["answer"] for row in animals()]
WORDS = "plain_words:WordEmbedder"


def by_words(**options: Any) -> DemoSelector:
    return DemoSelector(embedder=WORDS, **{"shots": 2, **options})


def expected_pairs(question: str, count: int) -> list[tuple[str, str]]:
    return [
        (f"what colour is the {name}", answer_of(name))
        for name in by_hand(question, count)
    ]


def test_it_shows_the_nearest_of_what_it_was_fitted_with() -> None:
    fitted = by_words().fit(TEXTS, LABELS)
    assert fitted.transform([ASKED, "the fish"]) == [
        expected_pairs(ASKED, 2),
        expected_pairs("the fish", 2),
    ]
    assert (
        by_words(output="positions")
        .fit(np.array(TEXTS), np.array(LABELS))
        .transform(np.array(["fish"]))[0][-1]
        == 4
    )


def test_pictures_go_in_and_come_out() -> None:
    rows = [{"question": row["question"], "image": row["image"]} for row in animals()]
    fitted = by_words(output="demos").fit(rows, LABELS)
    shown = fitted.transform([{"question": ASKED, "image": png("yellow")}])[0]
    assert [colour_at(demo.pil()) for demo in shown] == [
        rgb(answer_of(name)) for name in by_hand(ASKED, 2)
    ]


def test_a_trained_bundle_brings_its_own_demonstrations(folder: Path) -> None:
    estimator = DemoSelector(bundle=str(folder), shots=3, output="demos")
    chosen = estimator.fit(["anything"], ["at all"]).transform([ASKED])[0]
    assert [demo.id for demo in chosen] == [
        demo.id for demo in Selector.load(folder).select(question=ASKED, shots=3)
    ]
    pairs = (
        DemoSelector(bundle=str(folder), shots=1)
        .fit(["anything"])
        .transform([ASKED])[0]
    )
    assert colour_at(pairs[0][0]["image"]) == rgb("red")
    assert pairs[0][1] == "red"
    with pytest.raises(ValueError, match="are no rows of X"):
        DemoSelector(bundle=str(folder), output="positions").fit(["a"]).transform(
            [ASKED]
        )


def test_a_clone_has_the_parameters_and_nothing_fitted() -> None:
    fitted = by_words(shots=3, arm="mmr").fit(TEXTS, LABELS)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.get_params()["shots"] == 3
    assert copy.set_params(shots=1).shots == 1
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)


def test_it_works_in_a_pipeline_on_texts_and_after_a_vectoriser() -> None:
    prompt = FunctionTransformer(
        lambda chosen: [" ".join(y for _, y in pairs) for pairs in chosen]
    )
    shown = make_pipeline(by_words(), prompt).fit(TEXTS, LABELS).transform([ASKED])
    assert shown == [" ".join(answer for _, answer in expected_pairs(ASKED, 2))]
    pipe = make_pipeline(
        TfidfVectorizer(), DemoSelector(shots=1, output="positions")
    ).fit(TEXTS, LABELS)
    assert pipe.transform(TEXTS).ravel().tolist() == list(range(len(TEXTS))), (
        "each text is nearest to itself"
    )


def test_rows_of_numbers_are_vectors_and_brute_force_finds_the_same() -> None:
    drawn = np.random.default_rng(0).standard_normal((30, 5))
    fitted = DemoSelector(shots=4, output="positions").fit(drawn[:20], np.arange(20))
    unit = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)  # (30, 5)
    nearest = np.argsort(-(unit[20:] @ unit[:20].T), axis=1)[
        :, :4
    ]  # (10, 4), nearest first
    assert fitted.transform(drawn[20:]).tolist() == nearest[:, ::-1].tolist()


@pytest.mark.parametrize("arm", ["nearest_text", "label_rank", "bm25"])
def test_what_was_fitted_can_be_pickled(arm: str) -> None:
    fitted = by_words(arm=arm).fit(TEXTS, LABELS)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.transform([ASKED]) == fitted.transform([ASKED])


def test_wrong_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="the target y is None"):
        by_words().fit(TEXTS)
    with pytest.raises(ValueError, match="X has 6 examples and y has 1 answers"):
        by_words().fit(TEXTS, ["red"])
    with pytest.raises(ValueError, match="must be a list of texts"):
        by_words().fit(TEXTS, LABELS).transform(ASKED)
    with pytest.raises(ValueError, match='arm = "learned" needs a training'):
        by_words(arm="learned").fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="must be one of pairs, demos, positions"):
        by_words(output="ids").fit(TEXTS, LABELS)


@pytest.mark.slow
def test_it_passes_the_checks_of_scikit_learn() -> None:
    """Those that feed numbers, which are taken as vectors; `check_estimator` raises where one fails."""
    done = check_estimator(DemoSelector(output="positions", shots=1), on_skip=None)
    passed = [check["check_name"] for check in done if check["status"] == "passed"]
    assert len(passed) >= 40
    assert {
        "check_estimators_pickle",
        "check_transformer_general",
        "check_fit_idempotent",
    } <= set(passed)


def test_the_page_runs(reader: Path) -> None:
    shown = run_page("sklearn")
    assert [demo.id for demo in shown["demos"][0]] == by_hand(ASKED, 2)
    assert shown["positions"].shape == (1, 2)
