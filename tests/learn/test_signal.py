"""What is right, flat, and which tier a group reaches: one definition for training, mining, doctor and report."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.data.types import Group, ItemId, Member, Pool, Score
from leverplus.learn.data.plan import tier_of
from leverplus.learn.maths import signal
from leverplus_doctor import quality


def group_of(accuracies: list[float]) -> Group:
    names = [ItemId(f"d{n}") for n in range(len(accuracies))]
    scores = tuple(
        Score(
            ItemId("q"), (name,), "x", "x", accuracy, accuracy > 0, (), 0.0, 0.0, 1, 0.0
        )
        for name, accuracy in zip(names, accuracies, strict=True)
    )
    members = tuple(Member((name,), "dense") for name in names)
    return Group(ItemId("q"), Pool(ItemId("q"), tuple(names), "b"), members, scores)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        (
            [0.0, 0.0, 0.0, 0.6, 0.6, 0.6],
            "high",
        ),  # graded 0 and 1.6: the gap of the documents' phase 1
        ([0.0, 0.0, 0.0, 0.3, 0.3, 0.3], "medium"),
        ([1.0, 1.0, 0.0, 0.0], "medium"),
        ([1.0, 1.0, 1.0, 0.0, 0.0], "medium"),  # three right, but only two wrong
        ([1.0, 0.0, 0.0, 0.0], "low"),
        ([1.0, 1.0, 1.0, 1.0, 0.0], "low"),
    ],
)
def test_mining_and_doctor_put_a_group_into_the_same_tier(
    accuracies: list[float], expected: str
) -> None:
    assert (
        signal.tier(accuracies)
        == tier_of(group_of(accuracies))
        == quality.tier_or_flat(np.array(accuracies))
        == expected
    )


def test_a_group_without_spread_is_flat_for_the_doctor_and_low_for_the_curriculum() -> (
    None
):
    assert quality.tier_or_flat(np.array([0.3, 0.3])) == "flat"
    assert tier_of(group_of([0.3, 0.3])) == "low"


def test_flat_is_no_more_than_float_noise() -> None:
    assert signal.is_flat([0.5, 0.5 + 1e-7])
    assert not signal.is_flat([0.5, 0.5 + 1e-5])
    assert signal.is_flat([])


def test_right_is_any_accuracy_and_graded_adds_it() -> None:
    assert [signal.graded(accuracy) for accuracy in (1.0, 0.3, 0.0)] == [2.0, 1.3, 0.0]
    assert signal.all_right([1.0, 1.0])
    assert not signal.all_right([1.0, 0.9])


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.5, 0.5, 0.5], "high"),  # a gap of 1.5 is enough
        ([0.0, 0.0, 0.0, 0.4, 0.4, 0.4], "medium"),
        ([0.0, 0.0, 1e-300, 1e-300], "medium"),  # a gap of 1 is enough
        ([1.0, 1.0], "low"),
        ([1.0], "low"),
    ],
)
def test_the_edges_of_the_tiers(accuracies: list[float], expected: str) -> None:
    assert signal.tier(accuracies) == expected


def test_the_edges_of_right_flat_and_gap() -> None:
    assert signal.is_right(1e-9)
    assert not signal.is_right(0.0)
    assert signal.gap([0.25, 1.0, 0.5]) == 0.75
    assert signal.gap([]) == 0.0
    assert signal.is_flat([0.0, 1e-6]), "a difference of FLAT itself is none"
    assert not signal.is_flat([0.0, 1.5e-6])
    assert signal.all_right([1.0 - 5e-7, 1.0])
    assert not signal.all_right([1.0 - 2e-6, 1.0])
    assert signal.TIERS == {"high": (1.5, 3), "medium": (1.0, 2), "low": (0.0, 0)}
