"""Decoding: batched searches against brute force, sampling against exact probabilities."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from leverplus.errors import EvaluationError
from leverplus.learn.policies.base import (
    PAD,
    STOP,
    Encoded,
    Features,
    Policy,
    sequence_logprobs,
)
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.decode import (
    _start_beam,
    beam,
    greedy,
    gumbel,
    sample,
)
from leverplus.learn.policies.settings import PolicyConfig

SIZE = 5
CONFIG = PolicyConfig(
    hidden=16, state="gru", step_embedding=True, temperature=0.3, max_shots=4
)


def setting(stop: str = "never", batch: int = 2) -> tuple[Policy, Encoded]:
    policy = build_policy(
        PolicyConfig(**{**vars(CONFIG), "stop": stop}),
        dict.fromkeys(["image", "text", "answer"], 8),
    )
    generator = torch.Generator().manual_seed(3)
    items = {
        name: torch.randn(9, 8, generator=generator)
        for name in ("image", "text", "answer")
    }
    query = {
        name: torch.randn(batch, 8, generator=generator) for name in ("image", "text")
    }
    pool = torch.stack(
        [torch.randperm(9, generator=generator)[:SIZE] for _ in range(batch)]
    )
    return policy.eval(), policy.eval().prepare(Features(query, items, pool))


def every_pair(policy: Policy, encoded: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.tensor(list(itertools.permutations(range(SIZE), 2)))
    with torch.no_grad():
        total = sequence_logprobs(
            policy, encoded, pairs.expand(len(encoded.mask), -1, -1), False
        ).total
    return pairs, total


def test_a_wide_beam_finds_every_sequence_in_order_of_probability() -> None:
    policy, encoded = setting()
    pairs, total = every_pair(policy, encoded)
    found = beam(policy, encoded, 2, 30)
    for row in range(2):
        order = total[row].argsort(descending=True)
        kept = found.logprobs[row] > -torch.inf
        assert int(kept.sum()) == len(pairs)
        assert found.positions[row][kept].tolist() == pairs[order].tolist()
        assert torch.allclose(found.logprobs[row][kept], total[row][order], atol=1e-5)
        assert (found.positions[row][~kept] == PAD).all()


def test_a_search_starts_from_one_empty_prefix_of_probability_one() -> None:
    _, actions, logprobs = _start_beam(*setting(batch=3), shots=2)
    assert actions.shape == (3, 1, 0)
    assert logprobs.tolist() == [[0.0]] * 3


def test_greedy_is_a_beam_of_one() -> None:
    policy, encoded = setting()
    one, narrow = greedy(policy, encoded, 3), beam(policy, encoded, 3, 1)
    assert torch.equal(one.positions, narrow.positions)
    assert torch.allclose(one.logprobs, narrow.logprobs, atol=1e-6)


def test_samples_follow_the_policy() -> None:
    policy, encoded = setting()
    pairs, total = every_pair(policy, encoded)
    count = 20_000
    drawn = sample(policy, encoded, 2, seeds=[1, 2], count=count)
    for row in range(2):
        code = drawn.positions[row, :, 0] * SIZE + drawn.positions[row, :, 1]
        seen = (
            torch.stack(
                [
                    (code == first * SIZE + second).sum()
                    for first, second in pairs.tolist()
                ]
            )
            / count
        )
        error = (seen - total[row].exp()).abs()
        assert float((error / (total[row].exp() / count).sqrt()).max()) < 4.5


def test_a_query_gets_the_same_samples_in_any_batch_and_any_padding() -> None:
    policy, _ = setting()
    generator = torch.Generator().manual_seed(0)
    items = {
        name: torch.randn(9, 8, generator=generator)
        for name in ("image", "text", "answer")
    }
    query = {name: torch.randn(2, 8, generator=generator) for name in ("image", "text")}
    pool = torch.tensor([[0, 1, 2, 3, -1, -1], [3, 4, 5, 6, 7, 8]])
    both = sample(
        policy, policy.prepare(Features(query, items, pool)), 2, seeds=[7, 8], count=50
    )
    alone = Features(
        {name: block[:1] for name, block in query.items()}, items, pool[:1, :4]
    )
    assert torch.equal(
        sample(policy, policy.prepare(alone), 2, seeds=[7], count=50).positions,
        both.positions[:1],
    )


def test_a_policy_that_may_stop_can_show_none_or_be_forced() -> None:
    policy, encoded = setting("anywhere", batch=1)
    drawn = sample(policy, encoded, 2, seeds=[0], count=400, allow_stop=True).positions[
        0
    ]
    kinds = {
        tuple("S" if p == STOP else "P" if p == PAD else "x" for p in row)
        for row in drawn.tolist()
    }
    assert kinds == {("x", "x"), ("x", "S"), ("S", "P")}
    assert (sample(policy, encoded, 2, seeds=[0], count=400).positions >= 0).all()


def test_asking_for_more_than_the_pool_or_the_selector_has_is_refused() -> None:
    policy, encoded = setting()
    with pytest.raises(EvaluationError, match="1 to 4"):
        greedy(policy, encoded, 5)
    small = Encoded(encoded.mask & (torch.arange(SIZE) < 2), encoded.blocks)
    with pytest.raises(EvaluationError, match="pool of 2"):
        greedy(policy, small, 3)


def test_gumbel_noise_is_standard_one_seed_a_query_and_only_inside_the_pool() -> None:
    mask = torch.tensor([[True, False, True], [True, True, True]])
    encoded = Encoded(mask, {})
    noise = gumbel(encoded, [5, 6], (2, 20_000), stop=True)
    assert noise.shape == (2, 2, 20_000, 4)
    assert not noise[0, :, :, 1].any()
    inside = noise[0][..., [0, 2, 3]]
    assert float(inside.mean()) == pytest.approx(0.5772, abs=0.015)
    assert float(inside.var()) == pytest.approx(math.pi**2 / 6, abs=0.04)
    alone = gumbel(Encoded(mask[1:], {}), [6], (2, 20_000), stop=True)
    assert torch.equal(alone[0], noise[1])
    assert gumbel(encoded, [5, 6], (1, 3), stop=False).shape == (2, 1, 3, 3)
    with pytest.raises(EvaluationError, match="2 queries but 1 seeds"):
        gumbel(encoded, [5], (1, 1), stop=False)


@pytest.mark.slow
def test_a_temperature_flattens_samples_and_log_probabilities_stay_those_of_the_policy() -> (
    None
):
    policy, encoded = setting(batch=1)
    with torch.no_grad():
        logits = policy.step(encoded, policy.start(encoded, 1))[0, 0]
    warm = torch.softmax(logits / 2.0, -1)
    drawn = sample(policy, encoded, 1, seeds=[3], count=20_000, temperature=2.0)
    seen = torch.bincount(drawn.positions[0, :, 0], minlength=SIZE) / 20_000
    assert float(((seen - warm).abs() / (warm / 20_000).sqrt()).max()) < 4.5
    own = torch.log_softmax(logits, -1)[drawn.positions[0, :, 0]]
    assert torch.allclose(drawn.logprobs[0], own, atol=1e-5)


def test_a_beam_that_may_stop_pads_what_follows_and_one_wider_than_the_tree_says_so() -> (
    None
):
    policy, encoded = setting("anywhere", batch=1)
    found = beam(policy, encoded, 2, 40, allow_stop=True)
    kept = found.logprobs[0] > -torch.inf
    lists = found.positions[0][kept].tolist()
    expected = [list(pair) for pair in itertools.permutations(range(SIZE), 2)]
    expected += [[first, STOP] for first in range(SIZE)] + [[STOP, PAD]]
    assert sorted(lists) == sorted(expected)
    assert float(found.logprobs[0][kept].exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert (found.logprobs[0][kept][:-1] >= found.logprobs[0][kept][1:] - 1e-6).all()
    likeliest = greedy(policy, encoded, 2, allow_stop=True)
    assert likeliest.positions.shape == (1, 1, 2)
    narrow = beam(policy, encoded, 1, 9)
    impossible = narrow.logprobs[0] == -torch.inf
    assert int((~impossible).sum()) == SIZE
    assert (narrow.positions[0][impossible] == PAD).all()


def test_as_many_shots_as_the_selector_or_the_pool_has_are_allowed() -> None:
    policy, encoded = setting()
    assert greedy(policy, encoded, 4).positions.shape == (2, 1, 4)
    three = Encoded(encoded.mask & (torch.arange(SIZE) < 3), encoded.blocks)
    assert greedy(policy, three, 3).positions.sort(-1).values[0, 0].tolist() == [
        0,
        1,
        2,
    ]
    with pytest.raises(EvaluationError, match="0 shots asked"):
        greedy(policy, encoded, 0)
    uneven = Encoded(
        encoded.mask & torch.tensor([[True] * 5, [True, True, False, False, False]]),
        encoded.blocks,
    )
    with pytest.raises(EvaluationError, match="pool of 2"):
        greedy(policy, uneven, 3)
