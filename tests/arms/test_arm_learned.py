"""What a learned selector keeps of demonstrations: the same choice as without, for those that were added later too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.settings import PoolSection
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.learn import arm as arm_module
from leverplus.learn.arm import Learned
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.decode import greedy
from leverplus.learn.policies.settings import read_selection

WIDTH = 24


def unit(count: int, seed: int) -> np.ndarray:
    made = (
        np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    )
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def learned(preset: str = "bi_encoder_gate", **more: object) -> Learned:
    torch.manual_seed(0)
    values = {
        "preset": preset,
        "hidden": 16,
        "query_fields": ["text"],
        "demo_fields": ["text", "answer"],
        **more,
    }
    config = read_selection(values, [])
    assert config is not None
    policy = build_policy(config, {"text": WIDTH, "answer": WIDTH})
    return Learned().take(policy, PoolSection("nearest_text", 40), 0)


def asked(seed: int) -> Queries:
    vectors = Vectors(None, unit(1, seed), unit(1, seed))
    return Queries([Item(ItemId("q"), "q", (), "query")], vectors)


def corpus(count: int = 300) -> Corpus:
    blocks = {"text": unit(count, 1), "answer": unit(count, 2)}
    return Corpus.of(blocks, lambda rows: {}, AnswerRules("exact"))


@pytest.mark.parametrize("preset", ["bi_encoder_gate", "cross_attention", "pool_aware"])
def test_the_same_demonstrations_are_chosen_with_and_without_what_is_kept(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = corpus()
    rows = rows.grown(
        {"text": unit(60, 5), "answer": unit(60, 6)}, np.ones(60, np.bool_)
    )
    queries = [asked(seed) for seed in range(10, 30)]
    kept = learned(preset)
    with_kept = [kept.choose(query, rows, 4)[0] for query in queries]
    assert any(row >= 300 for picks in with_kept for row in picks), (
        "some that were added later are shown"
    )
    assert kept._kept is not None
    found = kept._kept.vectors
    assert (found is not None and len(found) == 300) == (preset == "bi_encoder_gate")
    monkeypatch.setattr(arm_module, "MOST_KEPT", 0)
    plain = learned(preset)
    assert [plain.choose(query, rows, 4)[0] for query in queries] == with_kept
    assert plain._kept is not None
    assert plain._kept.vectors is None


def test_a_score_does_not_depend_on_what_was_asked_before() -> None:
    rows = corpus()
    fresh = learned().explain(asked(41), rows, 4).score
    used = learned()
    used.explain(asked(40), rows, 4)
    np.testing.assert_array_equal(used.explain(asked(41), rows, 4).score, fresh)


def test_a_policy_without_vectors_of_its_own_for_items_keeps_none() -> None:
    policy = learned("cross_attention").policy
    assert (
        policy.item_vectors(
            {"text": torch.zeros(2, WIDTH), "answer": torch.zeros(2, WIDTH)}
        )
        is None
    )
    own = learned()
    items = {
        "text": torch.from_numpy(unit(5, 1)),
        "answer": torch.from_numpy(unit(5, 2)),
    }
    made = own.policy.item_vectors(items)
    assert made is not None
    torch.testing.assert_close(made.norm(dim=1), torch.ones(5))


@pytest.mark.parametrize(
    "preset", ["bi_encoder_gate", "stopping", "parallel_slots", "volume"]
)
def test_it_chooses_what_the_network_decodes_greedily(preset: str) -> None:
    arm, rows = learned(preset), corpus()
    for seed in range(50, 60):
        query = asked(seed)
        near = rows.nearest(query, 1.0, 40)[0][0]
        encoded = arm.encode(query, rows, [near])
        picks = greedy(arm.policy, encoded, 4).positions[0, 0].tolist()
        expected = [int(near[place]) for place in picks if place >= 0]
        assert arm.choose(query, rows, 4)[0] == expected
        assert arm.explain(query, rows, 4).shown == expected


def test_fewer_are_chosen_where_fewer_are_open() -> None:
    arm, rows = learned(), corpus(5)
    many = Queries(
        [Item(ItemId(str(n)), "q", (), "query") for n in range(2)],
        Vectors(None, unit(2, 60), unit(2, 60)),
        (np.array([0, 1, 2, 3]), np.array([], np.int64)),
    )
    assert [len(own) for own in arm.choose(many, rows, 3)] == [1, 3]
