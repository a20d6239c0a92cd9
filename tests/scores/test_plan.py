from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from leverplus.errors import ScoringError
from leverplus.learn.data.plan import find_groups
from leverplus.scores.scorer import TRAINING
from leverplus.scores.settings import ScoreSection
from leverplus_lab.search.mining import flat_value

MIXED = ScoreSection(search="mixed", random=3, retrieved=2, samples=2, selector_beams=2)


@pytest.mark.parametrize(
    "section",
    [
        ScoreSection(search="dense"),
        ScoreSection(search="beam", shots=3, beam=2),
        ScoreSection(search="beam", shots=2, beam=2, side="left"),
        replace(MIXED, prefixes=True, shots=3),
        MIXED,
        replace(MIXED, mine=6),
    ],
)
def test_no_search_costs_more_than_its_section_says(
    scorer, pools, table, policy, section
) -> None:
    groups = find_groups(scorer, pools, section, table=table, policy=policy)
    assert len(groups) == len(pools)
    asked = Counter(query for query, *_ in scorer.backend.asked)
    assert max(asked.values()) <= section.cost(6)
    assert scorer.meter.calls(TRAINING) == sum(asked.values())
    for group in groups:
        lists = [member.demos for member in group.members]
        assert len(set(lists)) == len(lists)
        assert () in lists
        assert list(group.scores) == scorer.score(
            [(group.query, demos) for demos in lists]
        )


@pytest.mark.slow
def test_the_cost_of_dense_and_beam_is_exact(scorer, pools) -> None:
    section = ScoreSection(search="beam", shots=3, beam=2)
    find_groups(scorer, pools, section)
    assert (
        scorer.meter.calls(TRAINING)
        == 5 * section.cost(6)
        == 5 * (1 + 6 + 2 * 5 + 2 * 4)
    )


def test_left_and_right_search_different_sequences(scorer, pools) -> None:
    sections = [
        ScoreSection(search="beam", shots=2, beam=1, side=side)
        for side in ("right", "left")
    ]
    right, left = (find_groups(scorer, pools[:1], section)[0] for section in sections)
    first = max(
        (s for s in right.scores if len(s.demos) == 1), key=lambda s: s.gt_prob
    ).demos[0]
    assert {member.demos[0] for member in right.members if len(member.demos) == 2} == {
        first
    }
    assert {member.demos[1] for member in left.members if len(member.demos) == 2} == {
        first
    }


def test_mixed_groups_carry_source_and_density(scorer, pools, table, policy) -> None:
    for group in find_groups(scorer, pools, MIXED, table=table, policy=policy):
        sources = {member.source for member in group.members}
        assert {"prefix", "retrieval", "selector_beam"} <= sources
        for member in group.members:
            drawn = member.source == "random" or member.source.startswith("policy@")
            assert (member.log_mu is not None) == drawn
            assert len(member.demos) == (0 if member.source == "prefix" else 2)


def test_the_seed_changes_what_is_drawn(scorer, pools, table, policy) -> None:
    def lists(seed: int) -> list[list[tuple[str, ...]]]:
        groups = find_groups(
            scorer, pools, MIXED, seed=seed, table=table, policy=policy
        )
        return [[member.demos for member in group.members] for group in groups]

    assert lists(1) == lists(1) != lists(2)


def test_mining_and_filters_follow_the_section(scorer, pools, table) -> None:
    section = ScoreSection(search="mixed", random=1, retrieved=0)
    plain = find_groups(scorer, pools, section)
    assert all(flat_value(group) is not None for group in plain)
    assert find_groups(scorer, pools, replace(section, keep="diverse")) == []
    mined = find_groups(scorer, pools, replace(section, mine=24, keep="diverse"))
    assert 3 <= len(mined) <= 5
    assert find_groups(scorer, pools, replace(section, tiers=("high",))) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": 1}, "draw from a selector"),
        ({"retrieved": 1}, "needs vectors"),
        ({"random": 0}, "without any source"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(
    scorer, pools, changes, sentence
) -> None:
    section = ScoreSection(
        **{"search": "mixed", "random": 1, "retrieved": 0, **changes}
    )
    with pytest.raises(ScoringError, match=sentence):
        find_groups(scorer, pools, section)
