from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from leverplus.data.types import Pool
from leverplus.learn.policies.base import sequence_logprobs
from leverplus_lab.search.drawn import from_policy, from_selector_beam
from leverplus_lab.search.mixed import (
    MemberSource,
    from_chance,
    from_retrieval,
    mixed_members,
    similarity,
)


def all_pairs(pools) -> list[list[tuple[str, ...]]]:
    return [list(permutations(pool.candidates, 2)) for pool in pools]


def test_every_density_sums_to_one_over_all_sequences(policy, table, pools) -> None:
    sources = [
        from_chance(pools, 2, 3, seed=0),
        from_policy(policy, table, pools, 2, 3, temperature=1.0, seed=0),
        from_policy(policy, table, pools, 2, 3, temperature=1.7, seed=0),
    ]
    for source in sources:
        assert source.density is not None
        for row in source.density(all_pairs(pools)):
            assert np.exp(row).sum() == pytest.approx(1.0, abs=1e-5)
    assert sources[0].density([[pools[0].candidates[:2]]] * 5)[0][0] == pytest.approx(
        -math.log(30)
    )


def test_samples_come_as_often_as_their_density_says(policy, table, pools) -> None:
    for heat in (0.5, 2.0):
        source = from_policy(
            policy, table, pools[:1], 1, 4000, temperature=heat, seed=1
        )
        seen = Counter(source.lists[0])
        for item in pools[0].candidates:
            chance = math.exp(source.density([[(item,)]])[0][0])
            error = math.sqrt(chance * (1 - chance) / 4000)
            assert seen[(item,)] / 4000 == pytest.approx(chance, abs=4.5 * error + 1e-9)


def test_company_does_not_change_draws_and_the_seed_does(policy, table, pools) -> None:
    def drawn(pools, seed):
        source = from_policy(policy, table, pools, 2, 8, temperature=1.3, seed=seed)
        return source.lists

    together = drawn(pools, 4)
    assert together == [drawn([pool], 4)[0] for pool in pools]
    assert all(len(own) == 8 and len(set(own[0])) == 2 for own in together)
    assert together != drawn(pools, 5)


def test_at_temperature_one_the_density_is_the_selectors_own(
    policy, table, pools
) -> None:
    drawn = from_policy(policy, table, pools, 2, 4, temperature=1.0, seed=0)
    assert drawn.density is not None
    for pool, own, row in zip(
        pools, drawn.lists, drawn.density(drawn.lists), strict=True
    ):
        features = table.features([pool.query], [pool.candidates])
        places = torch.tensor(
            [[[pool.position(item) for item in demos] for demos in own]]
        )
        with torch.no_grad():
            total = sequence_logprobs(policy, policy.prepare(features), places, False)
        assert row == pytest.approx(total.total[0].tolist(), abs=1e-5)


def test_a_selector_beam_is_the_likeliest_there_is(policy, table, pools) -> None:
    source = from_selector_beam(policy, table, pools, 2, 36)
    density = from_policy(policy, table, pools, 2, 1, temperature=1.0, seed=0).density
    for own, row in zip(source.lists, density(source.lists), strict=True):
        assert len(own) == 30
        assert row == sorted(row, reverse=True)


def test_retrieval_takes_windows_of_the_nearest_with_the_nearest_last(
    table, pools
) -> None:
    source = from_retrieval(pools, table, 2, 3)
    for pool, own in zip(pools, source.lists, strict=True):
        cosines = similarity(pool, table)
        order = [pool.candidates[place] for place in np.argsort(-cosines)]
        assert own == [(order[1], order[0]), (order[2], order[1]), (order[3], order[2])]
    image, text = table.blocks["image"], table.blocks["text"]
    query, item = table.row(pools[0].query), table.row(pools[0].candidates[4])
    by_hand = (float(image[query] @ image[item]) + float(text[query] @ text[item])) / 2
    assert similarity(pools[0], table)[4] == pytest.approx(by_hand)
    assert len(from_retrieval(pools, table, 5, 9).lists[0]) == 2


def test_members_of_a_mixture_carry_its_density_by_hand() -> None:
    pool = Pool("q", ("a", "b"), "x")
    fair = MemberSource(
        "fair",
        [[("a",), ("b",)]],
        3,
        lambda lists: [[math.log(0.5)] * len(own) for own in lists],
    )
    chances = {("a",): 0.9, ("b",): 0.1}
    bent = MemberSource(
        "bent",
        [[("a",)]],
        1,
        lambda lists: [[math.log(chances[d]) for d in own] for own in lists],
    )
    fixed = MemberSource("fixed", [[("b",)]], 1)
    (members,) = mixed_members([pool], [fixed, fair, bent])
    assert [(member.demos, member.source) for member in members] == [
        (("b",), "fixed"),
        (("a",), "fair"),
    ]
    assert members[0].log_mu is None
    assert members[1].log_mu == pytest.approx(math.log(0.75 * 0.5 + 0.25 * 0.9))


def test_a_mixture_weighs_every_sequence_right(policy, table, pools) -> None:
    """Importance weights against the mixture recover an expectation under the selector, over many draws."""
    pool, density = (
        pools[:1],
        from_policy(policy, table, pools[:1], 2, 1, temperature=1.0, seed=0).density,
    )
    worth = {demos: place for place, demos in enumerate(all_pairs(pool)[0])}
    target = np.exp(density(all_pairs(pool))[0])
    truth = sum(p * worth[demos] for p, demos in zip(target, worth, strict=True))
    draws = [
        from_chance(pool, 2, 2000, seed=1),
        from_policy(policy, table, pool, 2, 1000, temperature=1.5, seed=1),
    ]
    log_mu = {member.demos: member.log_mu for member in mixed_members(pool, draws)[0]}
    drawn = [demos for source in draws for demos in source.lists[0]]
    weights = np.exp(
        np.array(density([drawn])[0]) - np.array([log_mu[demos] for demos in drawn])
    )
    values = weights * np.array([worth[demos] for demos in drawn])
    assert values.mean() == pytest.approx(
        truth, abs=4.5 * values.std() / math.sqrt(len(values))
    )
