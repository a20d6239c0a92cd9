"""What a learned selector keeps of demonstrations: the same choice as without, for those that were added later too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from leverplus.embedders.base import Vectors
from leverplus.policies.build import build_policy
from leverplus.recipe.selection import read_selection
from leverplus.selector import choose
from leverplus.selector.choose import AskedQuery, LearnedChooser
from leverplus.selector.corpus import CorpusRows

WIDTH = 24


def unit(count: int, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def learned(preset: str = "bi_encoder_gate", **more: object) -> LearnedChooser:
    torch.manual_seed(0)
    values = {"preset": preset, "hidden": 16, "query_fields": ["text"], "demo_fields": ["text", "answer"], **more}
    config = read_selection(values, [])
    assert config is not None
    return LearnedChooser(build_policy(config, {"text": WIDTH, "answer": WIDTH}).eval(), candidates=40)


def corpus(count: int = 300) -> CorpusRows:
    return CorpusRows.of({"text": unit(count, 1), "answer": unit(count, 2)}, 1.0)


@pytest.mark.parametrize("preset", ["bi_encoder_gate", "cross_attention", "pool_aware"])
def test_the_same_demonstrations_are_chosen_with_and_without_what_is_kept(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = corpus()
    rows = rows.grown({"text": unit(60, 5), "answer": unit(60, 6)}, np.ones(60, np.bool_))
    queries = [Vectors(None, unit(1, seed), unit(1, seed)) for seed in range(10, 30)]
    kept = learned(preset)
    with_kept = [kept.choose(AskedQuery(query, rows), 4) for query in queries]
    assert any(row >= 300 for picks in with_kept for row in picks), "some that were added later are shown"
    assert (kept.kept.vectors is not None and len(kept.kept.vectors) == 300) == (preset == "bi_encoder_gate")
    monkeypatch.setattr(choose, "MOST_KEPT", 0)
    plain = learned(preset)
    assert [plain.choose(AskedQuery(query, rows), 4) for query in queries] == with_kept
    assert plain.kept.vectors is None


def test_a_score_does_not_depend_on_what_was_asked_before() -> None:
    rows = corpus()
    first, second = (Vectors(None, unit(1, seed), unit(1, seed)) for seed in (40, 41))
    fresh = learned().judge(AskedQuery(second, rows), 4).score
    used = learned()
    used.judge(AskedQuery(first, rows), 4)
    np.testing.assert_array_equal(used.judge(AskedQuery(second, rows), 4).score, fresh)


def test_a_policy_without_vectors_of_its_own_for_items_keeps_none() -> None:
    policy = learned("cross_attention").policy
    assert policy.item_vectors({"text": torch.zeros(2, WIDTH), "answer": torch.zeros(2, WIDTH)}) is None
    own = learned()
    items = {"text": torch.from_numpy(unit(5, 1)), "answer": torch.from_numpy(unit(5, 2))}
    made = own.policy.item_vectors(items)
    assert made is not None
    torch.testing.assert_close(made.norm(dim=1), torch.ones(5))
    assert replace(own, candidates=3).kept is not own.kept
