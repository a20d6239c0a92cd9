"""Labels alone: what a candidate is worth, who is drawn, and that a selector learns the rule behind the answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import TrainingError
from leverplus.learn.data.from_labels import LabelRows
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import LabelPretrainingConfig

EXACT = AnswerRules("exact_match", "vqa")


def item(number: int, *answers: str, image: str | None = None) -> Item:
    return Item(ItemId(f"i{number}"), "what?", answers, "train", image=image)


def table_of(items: list[Item], vectors: Any = None) -> ItemTable:
    vectors = np.eye(len(items), 4, dtype=np.float32) if vectors is None else vectors
    return ItemTable([one.id for one in items], {"text": vectors})


def rows_of(
    items: list[Item],
    config: LabelPretrainingConfig,
    rules: AnswerRules = EXACT,
    *,
    seed: int = 0,
    epoch: int = 0,
) -> Any:
    source: Any = LabelRows(
        items,
        [one.id for one in items],
        table_of(items),
        rules,
        config=config,
        seed=seed,
    )
    return source.rows(None, epoch)


def test_a_candidate_is_worth_what_its_answer_scores_for_the_query() -> None:
    items = [
        item(0, "cat", "cat", "cat", "dog", "dog"),
        item(1, "dog"),
        item(2, "cat"),
        item(3, "fish"),
    ]
    rows = rows_of(
        items,
        LabelPretrainingConfig(candidates=64, agreeing=2),
        AnswerRules("vqa_accuracy", "vqa"),
    )
    first = next(row for row in rows if row.query == "i0")
    found = dict(zip(first.pool_rows.tolist(), first.rewards.tolist(), strict=True))
    # leaving out each of the five in turn: dog meets 2, 2, 2, 1, 1 of the others, cat 2, 2, 2, 3, 3; three are enough
    assert found == pytest.approx(
        {1: (2 + 2 + 2 + 1 + 1) / 15, 2: (2 + 2 + 2 + 3 + 3) / 15, 3: 0.0}
    )
    assert first.sequences.tolist() == [[0], [1], [2]]
    assert first.accuracy.tolist() == first.rewards.tolist()
    assert bool(first.log_mu.isnan().all())


def test_a_query_never_meets_itself_nor_its_picture() -> None:
    items = [
        item(k, "ab"[k % 2], image=f"p{k // 4}" if k < 20 else None) for k in range(40)
    ]
    for epoch in range(5):
        for row in rows_of(
            items, LabelPretrainingConfig(candidates=12, agreeing=4), epoch=epoch
        ):
            own = items[row.query_row]
            drawn = [items[place] for place in row.pool_rows.tolist()]
            assert own not in drawn
            assert own.image is None or own.image not in {
                other.image for other in drawn
            }
            assert len(set(row.pool_rows.tolist())) == len(drawn) <= 12


@pytest.mark.slow
def test_agreeing_items_are_drawn_alike_whichever_of_the_answers_they_show() -> None:
    # the query accepts "a" (shown by six items) and "b" (by three): each of the nine is drawn as often as the others
    items = [
        item(0, "a", "b"),
        *(item(k, "a") for k in range(1, 7)),
        *(item(k, "b") for k in range(7, 10)),
    ]
    items += [item(k, "z") for k in range(10, 2010)]
    config = LabelPretrainingConfig(candidates=3, agreeing=1)
    source: Any = LabelRows(items, [], table_of(items), EXACT, config=config, seed=0)
    rng = np.random.default_rng(0)
    drawn = Counter(int(source._agreeing(0, rng)[0]) for _ in range(6000))
    drawn.pop(0)  # the query itself shows "a"; it is taken out afterwards
    assert set(drawn) == set(range(1, 10))
    expected = 6000 / 10
    assert max(abs(count - expected) for count in drawn.values()) < 4.5 * expected**0.5


@pytest.mark.slow
def test_rows_follow_seed_and_epoch_and_their_settings() -> None:
    items = [item(k, str(k % 5)) for k in range(200)]
    plain = LabelPretrainingConfig()

    def shape(**changes: Any) -> list[Any]:
        config = LabelPretrainingConfig(**{**vars(plain), **changes.pop("config", {})})
        return [
            (row.query, row.pool_rows.tolist())
            for row in rows_of(items, config, **changes)
        ]

    assert shape() == shape()
    assert shape() != shape(seed=1)
    assert shape() != shape(epoch=1)
    assert len(shape(config={"queries": 7})) == 7
    assert len(shape(config={"queries": 0})) == len(shape()) == 200
    assert max(len(pool) for _, pool in shape(config={"candidates": 5})) == 5

    def agreeing(count: int) -> float:
        rows = rows_of(items, LabelPretrainingConfig(candidates=10, agreeing=count))
        return float(np.mean([float(row.rewards.sum()) for row in rows]))

    assert agreeing(6) > agreeing(2) + 2.0


def test_queries_that_tell_nothing_apart_are_left_out_and_a_task_without_any_says_so() -> (
    None
):
    some = [
        item(0, "a"),
        item(1, "a"),
        item(2, "lonely"),
        *(item(k, f"own {k}") for k in range(3, 9)),
    ]
    rows = rows_of(some, LabelPretrainingConfig(candidates=64))
    assert {row.query for row in rows} == {"i0", "i1"}
    with pytest.raises(
        TrainingError, match=r"take label_pretraining out of train\.stages"
    ):
        rows_of([item(k, f"caption {k}") for k in range(9)], LabelPretrainingConfig())


def test_two_candidates_that_differ_are_enough_to_learn_from() -> None:
    rows = rows_of(
        [item(0, "a"), item(1, "a"), item(2, "b")],
        LabelPretrainingConfig(candidates=64),
    )
    assert {row.query for row in rows} == {"i0", "i1"}
    assert all(sorted(row.rewards.tolist()) == [0.0, 1.0] for row in rows)


def test_labels_of_other_questions_than_those_of_the_training_are_not_learnt_only_shown() -> (
    None
):
    items = [item(k, str(k % 3)) for k in range(60)]
    asked: Any = ["i4", "i7"]
    source: Any = LabelRows(
        items, asked, table_of(items), EXACT, config=LabelPretrainingConfig(), seed=0
    )
    rows = source.rows(None, 0)
    assert {row.query for row in rows} == {"i4", "i7"}
    assert len({place for row in rows for place in row.pool_rows.tolist()}) > 10


def test_answers_that_are_only_alike_teach_by_degrees() -> None:
    items = [
        item(k, f"a {'red' if k % 2 else 'blue'} thing number {k}") for k in range(20)
    ]
    row = rows_of(
        items, LabelPretrainingConfig(candidates=20), AnswerRules("token_f1", "vqa")
    )[0]
    assert len(set(row.rewards.tolist())) == 2
    alike = [(place - row.query_row) % 2 == 0 for place in row.pool_rows.tolist()]
    assert [
        reward == max(row.rewards.tolist()) for reward in row.rewards.tolist()
    ] == alike


@pytest.mark.slow
def test_a_selector_learns_the_rule_behind_the_answers_without_a_single_call() -> None:
    """Answers follow one of two features; the other is louder, so that nearest neighbours are no better than chance."""
    rng = np.random.default_rng(0)
    kind, noise = (
        rng.integers(8, size=600),
        rng.normal(size=(600, 8)).astype(np.float32),
    )
    vectors = np.concatenate([np.eye(8, dtype=np.float32)[kind], 1.5 * noise], axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = [item(k, f"answer {kind[k]}") for k in range(600)]
    table = table_of(items, vectors)
    fields = {"query_fields": ("text",), "demo_fields": ("text",)}
    policy = build_policy(
        PolicyConfig(hidden=32, state="none", temperature=0.1, **fields),
        table.dims,
        seed=0,
    )
    config = LabelPretrainingConfig(epochs=30, lr=3e-3, batch_size=32)
    source = LabelRows(
        items[:400],
        [one.id for one in items[:400]],
        table,
        EXACT,
        config=config,
        seed=0,
    )

    def hit_rate() -> float:
        found = []
        for query in range(400, 600):
            pool = [int(place) for place in rng.permutation(400)[:32]]
            features = table.features(
                [items[query].id], [[items[place].id for place in pool]]
            )
            with torch.no_grad():
                encoded = policy.eval().prepare(features)
                first = int(
                    policy.step(encoded, policy.start(encoded, 1), allow_stop=False)[
                        0, 0, :32
                    ].argmax()
                )
            found.append(kind[pool[first]] == kind[query])
        return float(np.mean(found))

    before = hit_rate()
    run_stage(policy, source, StageInputs("label_pretraining", config, table))
    assert before < 0.3
    assert hit_rate() > 0.8
