"""Features of a question and an example, and the selector that weighs them: it begins as `by_answer` and learns more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import (  # fmt: skip
    COUNT,
    WIDTH,
    Fitted,
    Trained,
    WordEmbedder,
    asked_items,
    bundled,
    examples,
    opened,
)

from leverplus.arms.answers import Form
from leverplus.arms.base import ScoredArm
from leverplus.arms.pairs import NAMES, PairFeatures, Read, compare
from leverplus.arms.spec import open_arm
from leverplus.arms.values import KnownValues
from leverplus.errors import TrainingError
from leverplus.learn.arm import Learned
from leverplus.learn.data.rows import FixedRows, one_shot_row
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import read_selection
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import ListwiseConfig

VALUES = {
    "preset": "bi_encoder_gate", "query_fields": ["text"], "hidden": 16, "state": "none", "pairs": True,
    "demo_fields": ["text", "answer"],
}  # fmt: skip


class Weighing(Trained):
    """Examples with a fresh network that weighs features of pairs."""

    def policy(self) -> Any:
        config = read_selection(VALUES, [])
        assert config is not None
        return build_policy(config, {"text": WIDTH, "answer": WIDTH}, seed=3)


@pytest.fixture(scope="module")
def training() -> Weighing:
    items = examples()
    found = Weighing(items, WordEmbedder(False).embed(items, None), "nearest_text")
    found.pool = replace(found.pool, size=COUNT - 1)
    return found


@pytest.fixture(scope="module")
def fitted(training: Weighing) -> Fitted:
    return Fitted(Learned().fit(training), training, False)


def test_the_first_features_are_those_of_by_answer(training: Weighing) -> None:
    features = PairFeatures.fit(training)
    queries = Fitted(features.start, training, False).queries(asked_items(1))
    rows = np.array([3, 9, 40])
    found = features.of(queries, training.corpus, rows)
    assert found.shape == (3, len(NAMES))
    assert np.isfinite(found).all()
    own = open_arm("by_answer").fit(training)
    assert isinstance(own, ScoredArm)
    terms = own.terms(queries, training.corpus, rows)
    assert found[:, :2] == pytest.approx(np.concatenate(list(terms.values())).T)
    alone = features.of(queries, training.corpus, rows[1:2])
    assert alone[0] == pytest.approx(found[1]), "whatever other examples there are"


def test_what_swapping_leaves_undone_is_counted() -> None:
    pairs = [
        ("people of ohio", 'SELECT p FROM s WHERE name = "ohio"'),
        ("people of utah", 'SELECT p FROM s WHERE name = "utah"'),
        ("all people", "SELECT p FROM s"),
    ]
    known = KnownValues(pairs, Form.SQL)
    asked = Read.of("how many people has texas or ohio", known)
    found = []
    for question, answer in pairs:
        values = compare(asked, Read.of(question, known), answer, known)
        found.append(dict(zip(NAMES[5:], values, strict=True)))
    assert found[0]["same values"] == 1.0 > found[1]["same values"]
    assert found[1]["changed by swapping"] == 1.0 > found[2]["changed by swapping"]
    assert [own["values left over"] for own in found] == [0.0, 0.0, 0.0]
    assert found[2]["values not used"] == -0.25
    assert found[0]["same words of the question"] == pytest.approx(2 / 7)
    assert found[0]["same words of the example"] == pytest.approx(2 / 3)


def test_before_training_it_chooses_what_by_answer_does(
    fitted: Fitted, tmp_path: Path
) -> None:
    queries, corpus = fitted.queries(asked_items()), fitted.training.corpus
    wanted = open_arm("by_answer").fit(fitted.training).choose(queries, corpus, 1)
    assert fitted.arm.choose(queries, corpus, 1) == wanted
    names = [[corpus.every_item[row].id for row in rows] for rows in wanted]
    asked = [{"question": item.question} for item in asked_items()]
    for selector in (bundled(tmp_path / "b", fitted), opened(tmp_path / "b", False)):
        shown = [[demo.id for demo in own] for own in selector.select_many(asked, 1)]
        assert shown == names


def test_training_weighs_what_tells_right_examples(training: Weighing) -> None:
    features = PairFeatures.fit(training)
    ids = [item.id for item in training.items]
    vectors = training.vectors
    table = ItemTable(ids, {"text": vectors.text, "answer": vectors.answer})
    queries = Fitted(features.start, training, False).queries(list(training.items))
    told = NAMES.index("near")  # what is far is right here

    def pairs(query: int, rows: Any) -> Any:
        return features.of(queries[query : query + 1], training.corpus, rows)

    table.pairs = pairs
    rng = np.random.default_rng(0)
    rows = []
    for query in range(COUNT):
        others = np.delete(np.arange(COUNT), query)
        shown = rng.permutation(others)[:8]
        values = -9.0 * pairs(query, shown)[:, told]
        rows.append(one_shot_row(ids[query], query, shown, values.astype(np.float32)))
    policy = training.policy()
    config = ListwiseConfig(
        epochs=40, lr=0.02, batch_size=16, temperature=1.0, freeze=("projections", "head")
    )  # fmt: skip
    result = run_stage(policy, FixedRows(rows), StageInputs("listwise", config, table))
    first, last = result.history[0], result.history[-1]
    assert first["listwise/accuracy"] < 0.5
    assert last["listwise/accuracy"] > 0.7
    assert float(policy.pairs.change[told].detach()) < -0.1
    assert float(policy.network_share.detach()) == 0.0, "the network itself was frozen"


def test_a_table_without_features_is_refused(training: Weighing) -> None:
    vectors = training.vectors
    ids = [item.id for item in training.items]
    table = ItemTable(ids, {"text": vectors.text, "answer": vectors.answer})
    with pytest.raises(TrainingError, match="features of pairs"):
        training.policy().prepare(table.features(ids[:1], [ids[1:4]]))
