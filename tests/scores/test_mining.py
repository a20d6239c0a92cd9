from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest

from leverplus.data.types import Group, Member, Pool, Reference, Score
from leverplus.learn.data.plan import BALANCES, Balance, keep_groups, tier_of
from leverplus.scores.scorer import TRAINING
from leverplus_lab.search.mining import (
    Lack,
    _ranked,
    flat_value,
    lack_of,
    mine_flat,
    sequences_best_first,
    tie_breaker,
)


def group_of(*accuracies: float) -> Group:
    pool = Pool("q", tuple(f"d{row}" for row in range(len(accuracies))), "x")
    scores = tuple(
        Score(
            "q",
            (f"d{row}",),
            "x",
            "x",
            value,
            value > 0,
            (Reference("x", 3, -1.0),),
            0.0,
            0.5,
            1,
            0.0,
        )
        for row, value in enumerate(accuracies)
    )
    return Group(
        "q", pool, tuple(Member(score.demos, "dense") for score in scores), scores
    )


@pytest.mark.parametrize(
    ("value", "found", "lack"),
    [
        (0.0, [0.0, 0.0], Lack(better=True, worse=False)),
        (1.0, [1.0, 1.0], Lack(better=False, worse=True)),
        (0.6, [0.6, 0.6], Lack(better=True, worse=True)),
        (0.6, [0.6, 1.0], Lack(better=False, worse=True)),
        (0.6, [0.6, 0.3], Lack(better=True, worse=False)),
        (0.6, [0.6, 0.3, 0.9], Lack(better=False, worse=False)),
        (0.0, [0.0, 0.3], Lack(better=False, worse=False)),
    ],
)
def test_a_flat_group_says_what_it_lacks(value, found, lack) -> None:
    assert lack_of(group_of(*found).scores, value) == lack


def test_a_group_is_flat_when_its_sequences_agree_whatever_the_bare_query_does() -> (
    None
):
    assert flat_value(group_of(0.6, 0.6)) == 0.6
    assert flat_value(group_of(0.6, 0.0)) is None
    bare = replace(group_of(1.0).scores[0], demos=())
    flat = group_of(0.0, 0.0)
    assert (
        flat_value(
            replace(
                flat,
                scores=(*flat.scores, bare),
                members=(*flat.members, Member((), "dense")),
            )
        )
        == 0.0
    )


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_outwards_tries_everything_once_and_the_best_first(shots) -> None:
    ranked = tuple("abcde")
    tried = list(sequences_best_first(ranked, shots))
    assert sorted(tried) == sorted(permutations(ranked, shots))
    assert tried[0] == tuple(reversed(ranked[:shots]))
    widest = [max(ranked.index(item) for item in demos) for demos in tried]
    assert widest == sorted(widest)


def flat_groups(scorer, pools) -> list[Group]:
    """One measured pair a query; every such group is flat."""
    groups = []
    for pool in pools:
        demos = pool.candidates[:2]
        groups.append(
            Group(
                pool.query,
                pool,
                (Member(demos, "random"),),
                tuple(scorer.score([(pool.query, demos)])),
            )
        )
    return groups


def test_mining_measures_until_nothing_is_lacking_or_the_calls_are_spent(
    scorer, pools
) -> None:
    groups = flat_groups(scorer, pools)
    before = scorer.meter.calls(TRAINING)
    mined = mine_flat(scorer, groups, shots=2, calls=20)
    tried = [len(new.members) - 1 for new in mined]
    assert scorer.meter.calls(TRAINING) - before == sum(tried)
    assert max(tried) <= 20
    for old, new in zip(groups, mined, strict=True):
        value = old.scores[0].accuracy
        assert len({member.demos for member in new.members}) == len(new.members)
        assert {member.source for member in new.members[1:]} == {"mined"}
        assert list(new.scores) == scorer.score(
            [(new.query, member.demos) for member in new.members]
        )
        assert not lack_of(new.scores, value) or len(new.members) == 21
    assert sum(flat_value(group) is None for group in mined) >= 4


def test_mining_leaves_groups_alone_that_differ_already(scorer, pools) -> None:
    groups = mine_flat(scorer, flat_groups(scorer, pools), shots=2, calls=30)
    done = [group for group in groups if flat_value(group) is None]
    before = scorer.meter.calls(TRAINING)
    assert mine_flat(scorer, done, shots=2, calls=30) == done
    assert scorer.meter.calls(TRAINING) == before


def test_mining_ends_when_there_is_nothing_left_to_try(scorer, pools) -> None:
    small = [replace(pool, candidates=pool.candidates[:2]) for pool in pools]
    for group in mine_flat(scorer, flat_groups(scorer, small), shots=2, calls=1000):
        assert len(group.members) <= 2


def test_promise_is_the_probability_of_the_truth_or_else_relevance() -> None:
    score = group_of(0.0).scores[0]
    assert tie_breaker(score) == score.gt_prob
    assert tie_breaker(replace(score, references=(Reference("x", 3, None),))) == 0.5


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("all", [0, 1, 2, 3, 4]),
        ("mixed", [2, 3, 4]),
        ("strict", [4]),
        ("few_positives", [3, 4]),
        ("diverse", [2, 3, 4]),
    ],
)
def test_filters_keep_balanced_groups(name, kept) -> None:
    groups = [
        group_of(0.0, 0.0, 0.0),
        group_of(1.0, 1.0),
        group_of(1.0, 1.0, 1.0, 0.0),
        group_of(1.0, 0.0, 0.0, 0.0),
        group_of(1.0, 0.3, 0.0, 0.0, 0.0),
    ]
    assert [
        row for row, group in enumerate(groups) if BALANCES[name].holds(group)
    ] == kept


def test_tiers_follow_gap_and_counts() -> None:
    high = group_of(1.0, 0.6, 0.3, 0.0, 0.0, 0.0)
    few = group_of(1.0, 0.6, 0.0, 0.0)
    small_gap = group_of(0.3, 0.3, 0.3, 0.0, 0.0, 0.0)
    single = group_of(1.0, 0.0, 0.0)
    assert [tier_of(group) for group in (high, few, small_gap, single)] == [
        "high",
        "medium",
        "medium",
        "low",
    ]
    assert tier_of(group_of(1.0, 0.6, 0.3, 0.0, 0.0)) == "medium", (
        "three right, but only two wrong"
    )
    assert tier_of(group_of(1.0, 1.0, 1.0, 1.0, 0.0)) == "low", (
        "four right, but only one wrong"
    )
    assert keep_groups([high, few, single], "mixed", ("high", "low")) == [high, single]


class Flat:
    """A scorer for which every prompt is wrong, likelier the more of `a` and `b` it has; it keeps what it was asked."""

    def __init__(self, accuracy: float = 0.0) -> None:
        self.accuracy, self.asked = accuracy, []

    def score(self, prompts, what="") -> list[Score]:
        self.asked.append([demos for _, demos in prompts])
        return [self.one(demos) for _, demos in prompts]

    def one(self, demos: tuple[str, ...]) -> Score:
        reference = Reference(
            "x", 3, math.log(0.1 + 0.2 * sum(demo in "ab" for demo in demos))
        )
        return Score(
            "q",
            demos,
            "x",
            "x",
            self.accuracy,
            self.accuracy > 0,
            (reference,),
            0.0,
            0.0,
            1,
            0.0,
        )


def one_flat(scorer: Flat, demos: list[tuple[str, ...]]) -> Group:
    members, scores = (
        tuple(Member(own, "random") for own in demos),
        tuple(scorer.one(own) for own in demos),
    )
    return Group("q", Pool("q", tuple("cabde"), "x"), members, scores)


@pytest.mark.parametrize(
    ("calls", "rounds"), [(20, [8, 8, 4]), (8, [8]), (3, [3]), (0, [])]
)
def test_a_group_that_stays_flat_costs_exactly_its_calls_in_rounds_of_eight(
    calls, rounds
) -> None:
    scorer = Flat()
    (mined,) = mine_flat(scorer, [one_flat(scorer, [("c",)])], shots=3, calls=calls)
    assert [len(own) for own in scorer.asked] == rounds
    assert len(mined.members) == len(mined.scores) == 1 + calls


def test_better_is_sought_among_the_best_worse_among_the_worst_and_both_by_halves() -> (
    None
):
    measured = [
        ("a",),
        ("b", "c"),
        ("d",),
        ("c",),
    ]  # a: 0.3, b: 0.3, c: 0.2, d: 0.1; e never tried: the mean
    wrong, right, between = Flat(0.0), Flat(1.0), Flat(0.6)
    for scorer in (wrong, right, between):
        mine_flat(scorer, [one_flat(scorer, measured)], shots=1, calls=4)
    assert wrong.asked[0] == [("b",), ("e",)], (
        "b and e are best of what was not tried alone"
    )
    assert right.asked[0] == [("e",), ("b",)]
    assert between.asked[0] == [("b",), ("e",)]
    pairs = Flat(0.6)
    mine_flat(pairs, [one_flat(pairs, measured)], shots=2, calls=6)
    assert pairs.asked[0][:3] == [("b", "a"), ("a", "b"), ("e", "b")]
    assert set(pairs.asked[0][3:]) <= {
        ("c", "d"),
        ("d", "c"),
        ("e", "c"),
        ("c", "e"),
        ("e", "d"),
        ("d", "e"),
    }
    assert len(pairs.asked[0]) == 6


def test_candidates_are_ranked_by_the_mean_of_what_they_stand_in() -> None:
    scorer = Flat()
    group = one_flat(scorer, [("a",), ("b", "c"), ("d",), ("c",), ("a", "b")])
    # a: (0.3 + 0.5) / 2, b: (0.3 + 0.5) / 2, c: (0.3 + 0.1) / 2, d: 0.1, e: 2.2 / 7
    assert _ranked(group) == ["a", "b", "e", "c", "d"]


@pytest.mark.parametrize(
    ("rule", "accuracies", "holds"),
    [
        (Balance(), [0.0], True),
        (Balance(positives=1), [0.0, 0.3], True),
        (Balance(positives=2), [0.0, 0.3], False),
        (Balance(negatives=2), [0.0, 0.0, 1.0], True),
        (Balance(negatives=2), [0.0, 1.0], False),
        (Balance(largest_share=0.5), [0.0, 1.0], True),
        (Balance(largest_share=0.5), [0.0, 1.0, 1.0], False),
        (Balance(distinct=2), [0.3, 0.6], True),
        (Balance(distinct=3), [0.3, 0.6], False),
    ],
)
def test_each_part_of_a_balance_alone(rule, accuracies, holds) -> None:
    assert rule.holds(group_of(*accuracies)) is holds


def test_the_balances_are_those_of_the_manual() -> None:
    assert BALANCES["strict"] == Balance(2, 3, 0.6, 1)
    assert BALANCES["few_positives"] == Balance(1, 3, 0.45, 1)
    assert (
        BALANCES["all"].distinct,
        BALANCES["mixed"],
        BALANCES["diverse"].distinct,
    ) == (0, Balance(1, 1), 2)
    empty = group_of()
    assert BALANCES["all"].holds(empty)
    assert not BALANCES["mixed"].holds(empty)
