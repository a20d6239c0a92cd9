"""Lists chosen by what was asked: folds are kept apart, values are those of the formulas, records survive a stop."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.benchmarking import load_benchmark

ITEMS, FOLDS = 600, 5
VOTES = dict.fromkeys(range(FOLDS), (0.3, 0.08))


@pytest.fixture(scope="module")
def pools() -> ModuleType:
    return load_benchmark("real_lists_pools")


@pytest.fixture(scope="module")
def plan(pools: ModuleType) -> ModuleType:
    return load_benchmark("real_lists_plan")


@pytest.fixture(scope="module")
def learn(pools: ModuleType) -> ModuleType:
    return load_benchmark("real_lists_learn")


def made_world(pools: ModuleType, rng: np.random.Generator) -> Any:
    """Items with random vectors; the effects of a fold or two say nothing of these folds, as in the benchmark."""
    fold = np.arange(ITEMS) // 2 % FOLDS
    vectors = {}
    for name in ("question", "caption", "both"):
        own = rng.normal(size=(ITEMS, 8)) + 1.0
        vectors[name] = (own / np.linalg.norm(own, axis=1, keepdims=True)).astype(np.float32)
    effects = {}
    for pair in pools.fold_sets():
        inside = np.isin(fold, pair)
        effects[pair] = tuple(np.where(inside, 0.0, rng.normal(size=ITEMS)) for _ in range(2))
    worth = rng.random((ITEMS, 30)).astype(np.float32)
    return pools.World(fold, np.arange(ITEMS) // 2, rng.integers(30, size=ITEMS), worth, vectors, effects)


def asked_of(learn: ModuleType, drawn: Any, rng: np.random.Generator) -> Any:
    """Answers to lists: what votes promise, and chance."""
    scores = drawn.features[:, 6] + 0.1 * rng.normal(size=len(drawn.rows))
    return learn.Asked(drawn.rows, drawn.serves, drawn.demos, drawn.features, scores, scores)


def test_lists_for_learning_show_nothing_of_their_own_fold_nor_of_the_one_they_serve(pools, plan) -> None:
    world = made_world(pools, np.random.default_rng(0))
    drawn = plan.draw_company(world, np.random.default_rng(1).permutation(ITEMS), VOTES)
    shown = np.append(world.fold, -1)[drawn.demos]
    assert (drawn.serves != world.fold[drawn.rows]).all()
    assert not (shown == drawn.serves[:, None]).any()
    assert not (shown == world.fold[drawn.rows][:, None]).any()
    assert all(len(set(own[own >= 0])) == (own >= 0).sum() for own in drawn.demos)


def test_lists_with_a_demonstration_of_the_tested_fold_are_not_learnt_from(learn) -> None:
    folds = np.array([0, 1, 2, 2])
    rows, demos = np.array([1, 1, 1, 0, 0, 1, 1]), np.array([[2], [3], [0], [2], [3], [-1], [2]])
    serves = np.array([0, 0, 0, 0, 0, 0, 2])
    asked = learn.Asked(rows, serves, demos, np.zeros((7, 1)), np.arange(7.0), np.arange(7.0))
    assert asked.usable(0, folds).accuracy.tolist() == [0.0, 1.0, 5.0]  # 2 shows fold 0, 3 and 4 ask about it


def test_nothing_of_the_tested_fold_changes_what_is_chosen_for_it(pools, plan, learn) -> None:
    """Labels of the tested fold, and answers to every list that it has a part in, are replaced by others."""
    rng = np.random.default_rng(2)
    world = made_world(pools, rng)
    order, everyone = rng.permutation(ITEMS), np.arange(ITEMS)
    nobody = np.full(ITEMS, pools.NO_FOLD)
    effects = np.stack([world.effects[fold, fold][0] for fold in range(FOLDS)])

    def chosen(world: Any, spoil: bool) -> Any:
        drawn = plan.draw_company(world, order, VOTES)
        asked = asked_of(learn, drawn, np.random.default_rng(3))
        if spoil:
            touched = (np.append(world.fold, -1)[asked.demos] == 1).any(axis=1) | (world.fold[asked.rows] == 1)
            noise = np.random.default_rng(4).random(len(asked.rows))
            asked = replace(asked, accuracy=np.where(touched, noise, asked.accuracy))
        return learn.choose_all(asked, pools.make_pools(world, everyone, nobody, VOTES), world.fold, effects).lists

    other = replace(world, worth=np.where((world.fold == 1)[:, None], 1.0 - world.worth, world.worth))
    before, after = chosen(world, spoil=False), chosen(other, spoil=True)
    tested = world.fold == 1
    assert before.keys() == after.keys()
    for key, lists in before.items():
        assert (lists[tested] == after[key][tested]).all(), key
        shown = world.fold[lists]
        assert (shown != world.fold[:, None]).all(), key
    assert any((lists[~tested] != after[key][~tested]).any() for key, lists in before.items())


def small_pools(pools: ModuleType, rng: np.random.Generator, size: int = 9) -> Any:
    known = {name: rng.random((4, size)) for name in pools.PAIR}
    vectors = rng.normal(size=(4, size, 3)) + 0.5
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    alike = np.einsum("rpd,rqd->rpq", vectors, vectors)
    members, answers = np.arange(4 * size).reshape(4, size), rng.integers(4, size=(4, size))
    known["vote"] = np.take_along_axis(rng.random((4, 4)), answers, axis=1)  # a vote is about an answer
    return pools.Pools(np.arange(4), members, answers, known, alike)


def test_features_of_a_list_worked_by_hand(pools) -> None:
    own = small_pools(pools, np.random.default_rng(5))
    own.answers[0] = [7, 8, 7, 0, 1, 2, 3, 4, 5]
    places = np.array([[0, 1, 2]] * 4)
    found = dict(zip((*pools.PAIR, *pools.LIST), pools.describe(own, places)[0], strict=True))
    vote, question = own.known["vote"][0, :3], own.known["question"][0, :3]
    assert found["vote"] == pytest.approx(vote.mean())
    assert found["best_vote"] == pytest.approx(vote.max())
    assert found["covered"] == pytest.approx((vote[0] + vote[1]) / 3)  # the third answer is the first again
    assert found["distinct"] == pytest.approx(2 / 3)
    assert found["alike"] == pytest.approx((own.alike[0, 0, 1] + own.alike[0, 0, 2] + own.alike[0, 1, 2]) / 3)
    assert found["last_question"] == pytest.approx(question[2])
    assert found["slope_question"] == pytest.approx((question[2] - question[0]) / 3)


def test_where_members_add_up_the_list_is_the_best_of_all_lists(pools, learn) -> None:
    rng = np.random.default_rng(6)
    own = small_pools(pools, rng)
    value = learn.Value({"question": 1.0, "vote": -0.7, "effect": 0.4}, 0.1 * rng.normal(size=36))
    built = value.of(own, learn.best_lists(own, value, 3))
    every = [value.of(own, np.array([chosen] * 4)) for chosen in combinations(range(9), 3)]
    assert built == pytest.approx(np.max(every, axis=0))


def test_no_other_member_at_one_place_makes_the_list_worth_more(pools, learn) -> None:
    rng = np.random.default_rng(6)
    own = small_pools(pools, rng)
    names = ("question", "vote", "effect", "best_vote", "covered", "distinct", "alike")
    for _ in range(5):
        value = learn.Value({name: float(rng.normal()) for name in names}, 0.1 * rng.normal(size=36))
        places = learn.best_lists(own, value, 4)
        built = value.of(own, places)
        for place, member in product(range(4), range(9)):
            other = places.copy()
            other[:, place] = member
            free = (places != member).all(axis=1)
            assert (value.of(own, other)[free] <= built[free] + 1e-9).all()


def test_weights_that_made_the_scores_are_found_again(pools, plan, learn) -> None:
    rng = np.random.default_rng(7)
    drawn = plan.draw_company(made_world(pools, rng), rng.permutation(ITEMS), VOTES)
    value = learn.fit_value(asked_of(learn, drawn, rng), ("labels",))
    assert value.weights["best_vote"] == pytest.approx(1.0, abs=0.15)


def test_records_go_on_after_a_file_was_cut_off(tmp_path: Path) -> None:
    ask = load_benchmark("real_lists_ask")
    jobs = [ask.Job("rivals", "nearest", query, (1, 2)) for query in range(4)]
    said = [ask.Record(f"q{job.query}", job.arm, 2, 0, job.query, 0, [1, 2], 0.3, 0.1, "red", 9) for job in jobs]
    book = ask.Book(tmp_path / "first", None)
    book.add("rivals", said[:2])
    book.add("rivals", said[2:])
    path = tmp_path / "first" / "records-rivals.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-5])
    again = ask.Book(tmp_path / "second", tmp_path / "first")
    assert again.missing(jobs) == jobs[2:]
    again.add("rivals", said[2:])
    assert sorted(ask.read_records(tmp_path / "second"), key=lambda own: own.query) == said
