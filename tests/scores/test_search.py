from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from leverplus.data.types import Pool, Reference, Score
from leverplus.errors import ScoringError
from leverplus.learn.data.from_search import evidence_of
from leverplus.learn.data.search import (
    beam_groups,
    best_of_each_length,
    dense_groups,
    greedy_oracle,
    join_groups,
    oracle_objective,
    scored_groups,
    truth_objective,
)
from leverplus.scores.scorer import EVALUATION, TRAINING


def test_a_dense_table_holds_every_candidate_alone_and_the_bare_query(
    scorer, pools
) -> None:
    groups = dense_groups(scorer, pools)
    for pool, group in zip(pools, groups, strict=True):
        assert [member.demos for member in group.members] == [
            (),
            *((item,) for item in pool.candidates),
        ]
        assert [score.demos for score in group.scores] == [
            member.demos for member in group.members
        ]
        assert {score.query for score in group.scores} == {pool.query}
    assert scorer.meter.calls(TRAINING) == 5 * 7


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("shots", "width"), [(2, 1), (3, 2), (6, 2)])
def test_beam_search_keeps_the_best_of_every_step(
    scorer, pools, side, shots, width
) -> None:
    """Against a plain re-telling: all extensions on one side of the kept sequences, sorted by gt_prob."""
    groups = beam_groups(scorer, pools, shots=shots, width=width, side=side)
    for pool, group in zip(pools, groups, strict=True):
        kept, seen = [()], []
        for _ in range(shots):
            tried = [
                ((*beam, item) if side == "right" else (item, *beam))
                for beam in kept
                for item in pool.candidates
                if item not in beam
            ]
            seen += tried
            values = dict(
                zip(
                    tried,
                    scorer.score([(pool.query, demos) for demos in tried]),
                    strict=True,
                )
            )
            kept = sorted(tried, key=lambda demos: (-values[demos].gt_prob, demos))[
                :width
            ]
        assert [member.demos for member in group.members] == seen
        assert {member.source for member in group.members} == {"beam"}


def test_a_wide_beam_finds_the_best_sequence_there_is(scorer, pools) -> None:
    groups = beam_groups(scorer, pools, shots=2, width=6)
    for pool, group in zip(pools, groups, strict=True):
        everything = scorer.score(
            [(pool.query, demos) for demos in permutations(pool.candidates, 2)]
        )
        best = max((s for s in group.scores if len(s.demos) == 2), key=truth_objective)
        assert best == max(everything, key=truth_objective)


@pytest.mark.parametrize("side", ["right", "left"])
def test_gains_of_the_steps_add_up_to_the_objective(scorer, pools, side) -> None:
    (group,) = beam_groups(scorer, pools[:1], shots=3, width=2, side=side)
    known = {score.demos: score for score in group.scores}
    known[()] = scorer.score([(group.query, ())])[0]
    for score in group.scores:
        if len(score.demos) == 3:
            cuts = [
                score.demos[3 - n :] if side == "left" else score.demos[:n]
                for n in range(4)
            ]
            total = sum(known[b].gt_prob - known[a].gt_prob for a, b in pairwise(cuts))
            assert total == pytest.approx(score.gt_prob - known[()].gt_prob)


def test_a_third_side_is_refused(scorer, pools) -> None:
    with pytest.raises(ScoringError, match="right, left"):
        beam_groups(scorer, pools, shots=1, width=1, side="middle")


def test_joined_groups_hold_every_sequence_once(scorer, pools) -> None:
    dense, beam = (
        dense_groups(scorer, pools)[0],
        beam_groups(scorer, pools, shots=2, width=2)[0],
    )
    joined = join_groups(dense, beam)
    assert (
        len(joined.members)
        == len({member.demos for member in joined.members})
        == 7 + 2 * 5
    )
    assert [score.demos for score in joined.scores] == [
        member.demos for member in joined.members
    ]
    with pytest.raises(ScoringError, match="cannot be joined"):
        join_groups(dense, beam_groups(scorer, pools, shots=1, width=1)[1])


def test_the_best_of_every_length_are_kept_for_imitation(scorer, pools) -> None:
    groups = [
        join_groups(*p)
        for p in zip(
            dense_groups(scorer, pools),
            beam_groups(scorer, pools, shots=2, width=3),
            strict=True,
        )
    ]
    for group, kept in zip(groups, best_of_each_length(groups, 2), strict=True):
        assert [len(member.demos) for member in kept.members] == [1, 1, 2, 2]
        for length in (1, 2):
            best = sorted(
                (s.gt_prob for s in group.scores if len(s.demos) == length),
                reverse=True,
            )[:2]
            assert [s.gt_prob for s in kept.scores if len(s.demos) == length] == best


def test_the_greedy_oracle_extends_its_own_best_and_is_counted_apart(
    scorer, pools
) -> None:
    for pool, scores in zip(pools, greedy_oracle(scorer, pools, 3), strict=True):
        chosen = ()
        for score in scores:
            tried = scorer.score(
                [
                    (pool.query, (*chosen, c))
                    for c in pool.candidates
                    if c not in chosen
                ],
                EVALUATION,
            )
            assert score == max(tried, key=oracle_objective)
            chosen = score.demos
    assert scorer.meter.calls(TRAINING) == 0
    assert scorer.meter.calls(EVALUATION) == 5 * (6 + 5 + 4)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_gain_of_a_member_is_taken_against_the_list_it_grew_from(
    scorer, pools, side
) -> None:
    """Growing to the left, the list before is the one without the first; its own first one alone was scored as well."""
    (group,) = beam_groups(scorer, pools[:1], shots=2, width=2, side=side)
    known = {score.demos: score for score in group.scores}
    pairs = [member for member in group.members if len(member.demos) == 2]
    assert pairs
    for evidence, member in zip(
        evidence_of(pairs, [known[m.demos] for m in pairs], known), pairs, strict=True
    ):
        grown_from = known[member.demos[1:] if side == "left" else member.demos[:-1]]
        assert evidence.gain == pytest.approx(
            known[member.demos].gt_prob - grown_from.gt_prob
        )


def scored(
    demos: tuple[str, ...], accuracy: float, p: float | None, relevance: float = 0.25
) -> Score:
    known = (Reference("x", 3, None if p is None else math.log(p)),)
    return Score(
        "q",
        demos,
        "x",
        "x",
        accuracy,
        accuracy > 0,
        known,
        relevance,
        relevance,
        1,
        0.0,
    )


def test_objectives_by_hand() -> None:
    weighed, blind = scored(("a",), 0.6, 0.5), scored(("a",), 0.6, None, 0.5)
    assert truth_objective(weighed) == pytest.approx(0.5)
    assert oracle_objective(weighed) == pytest.approx(0.6 + 0.0005)
    assert (
        truth_objective(blind)
        == oracle_objective(blind)
        == pytest.approx(0.6 + 0.001 * blind.relevance)
    )


class Flat:
    """A scorer for which every prompt is worth the same; it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, tuple[str, ...]]]] = []

    def score(self, prompts, purpose="", what="") -> list[Score]:
        self.asked.append(list(prompts))
        return [
            replace(scored(demos, 0.0, 0.5), query=query) for query, demos in prompts
        ]


def test_equal_sequences_are_taken_in_the_order_of_their_names() -> None:
    pool = Pool("q", ("c", "a", "b"), "x")
    right = beam_groups(Flat(), [pool], shots=2, width=1)[0]
    assert [member.demos for member in right.members[3:]] == [("a", "c"), ("a", "b")]
    assert not any(member.front for member in right.members)
    left = beam_groups(Flat(), [pool], shots=2, width=2, side="left")[0]
    assert [member.demos for member in left.members[3:]] == [
        ("c", "a"),
        ("b", "a"),
        ("c", "b"),
        ("a", "b"),
    ]
    assert all(member.front for member in left.members)
    (best,) = greedy_oracle(Flat(), [pool], 2)
    assert [score.demos for score in best] == [("a",), ("a", "b")]
    (kept,) = best_of_each_length(dense_groups(Flat(), [pool]), 2)
    assert [member.demos for member in kept.members] == [("a",), ("b",)]
    assert [score.demos for score in kept.scores] == [("a",), ("b",)]


def test_the_oracle_keeps_the_best_score_of_every_length() -> None:
    class Known(Flat):
        def score(self, prompts, purpose="", what="") -> list[Score]:
            worth = {"a": 0.2, "b": 0.9, "c": 0.4}
            return [
                scored(demos, sum(worth[d] for d in demos) / 3, 0.5)
                for _, demos in prompts
            ]

    (best,) = greedy_oracle(Known(), [Pool("q", ("a", "b", "c"), "x")], 3)
    assert [score.demos for score in best] == [("b",), ("b", "c"), ("b", "c", "a")]


def test_members_that_do_not_match_their_pools_are_refused_before_anything_is_asked() -> (
    None
):
    scorer = Flat()
    with pytest.raises(ValueError, match="shorter"):
        scored_groups(scorer, [Pool("q", ("a",), "x")], [], "nothing")
    assert scorer.asked == []
