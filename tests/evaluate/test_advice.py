"""The advice: chosen on dev alone, the cheaper of equals, never what dev shows worse; test stands beside it."""

from __future__ import annotations

import random

import pytest

from leverplus.data.types import ItemId
from leverplus.evaluate.advice import advise, candidates
from leverplus.evaluate.predictions import Prediction, Results

N = 40


def results(n: int = N, **right: int) -> Results:
    """Arms by name, `mmr4=20` for 20 right answers of n with 4 shots."""
    items = [ItemId(f"q{number}") for number in range(n)]
    found = Results(items, list(items))
    for name, count in right.items():
        arm, shots = (
            name.rstrip("0123456789"),
            int(name[len(name.rstrip("0123456789")) :]),
        )
        found.add(
            arm,
            shots,
            [
                Prediction(item, (), "a", float(row < count))
                for row, item in enumerate(items)
            ],
        )
    return found


def test_a_free_arm_that_is_better_on_dev_is_advised_and_training_did_not_help() -> (
    None
):
    dev = results(zero_shot0=10, mmr1=20, mmr4=30, learned1=25, learned4=28)
    found = advise(
        dev, results(zero_shot0=9, mmr1=19, mmr4=27, learned1=26, learned4=29)
    )
    assert (found.arm, found.shots, found.dev, found.n) == (
        "mmr",
        4,
        0.75,
        N,
    )
    assert found.training_helped == "no"
    assert found.why.startswith(
        "Use nearest, diverse (MMR) with 4 shots: 75.0 % on 40 dev items."
    )
    assert (
        "The best with training, learned with 4 shots, had 70.0 % there (+5.0 points, "
        in found.why
    )
    assert "so training did not help" in found.why
    assert "On 40 test items: 67.5 % against 72.5 % (-5.0, " in found.why
    assert (found.rival.arm, found.rival.shots) == ("learned", 4)


def test_a_trained_arm_is_set_against_the_best_without_training() -> None:
    found = advise(results(zero_shot0=5, mmr1=10, learned1=30), None)
    assert (found.arm, found.training_helped, found.test) == (
        "learned",
        "yes",
        None,
    )
    assert (
        "The best without training, nearest, diverse (MMR) with 1 shot, had 25.0 % there"
        in found.why
    )
    close = advise(results(mmr1=29, learned1=30), None)
    assert close.training_helped == "open"
    assert "the gain of training may be luck" in close.why


def test_equals_go_to_the_cheaper_one() -> None:
    dev = results(learned1=20, mmr4=20, mmr2=20, mmr_calibrated2=20, label_vote0=20)
    order = [(own.arm, own.shots) for own in candidates(dev)]
    assert order == [
        ("label_vote", 0),
        ("mmr", 2),
        ("mmr", 4),
        ("learned", 1),
    ]
    assert "which does not ask the model" in advise(dev, None).why


def test_an_answer_without_a_model_is_advised_without_shots() -> None:
    """The evaluation repeats it at every number of shots, where it shows nothing."""
    found = advise(results(majority1=30, majority2=30, learned1=20), None)
    assert found.why.startswith(
        "Use the majority answer, which does not ask the model: 75.0 % on 40 dev items."
    )


def test_advice_by_nothing_right_says_so() -> None:
    assert (
        "No answer was right on dev"
        in advise(results(zero_shot0=0, learned1=0), None).why
    )
    assert (
        "No answer was right" not in advise(results(zero_shot0=1, learned1=0), None).why
    )


def test_random_demonstrations_are_a_yardstick_and_never_advised() -> None:
    lucky = advise(
        results(zero_shot0=10, random1=24, random_calibrated1=26, mmr1=22), None
    )
    assert (lucky.arm, lucky.random) == ("mmr", {1: 0.6})
    assert set(lucky.dev_accuracy) == {"zero_shot", "mmr"}
    assert "Random ones had 60.0 % there, but a good draw is luck" in lucky.why
    plain = advise(results(zero_shot0=10, random1=20, mmr1=22), None)
    assert plain.random == {1: 0.5}
    assert "Random" not in plain.why


@pytest.mark.slow
def test_no_arm_that_dev_shows_worse_is_ever_advised_and_oracles_are_no_choice() -> (
    None
):
    for seed in range(50):
        draw = random.Random(seed)
        names = (
            "zero_shot0",
            "nearest_text1",
            "mmr1",
            "mmr2",
            "learned1",
            "learned2",
            "learned_auto2",
            "label_vote0",
        )
        dev = results(
            oracle1=N, oracle_any2=N, **{name: draw.randint(0, N) for name in names}
        )
        found = advise(dev, None)
        best = max(
            dev.accuracy(arm, n).mean()
            for arm in dev.draws
            if "oracle" not in arm
            for n in dev.shots(arm)
        )
        assert found.dev == best
        assert not found.arm.startswith("oracle")


def test_small_cases_have_an_answer() -> None:
    assert advise(results(0), None).arm is None
    assert "no dev items" in advise(results(0), None).why
    one = advise(
        results(1, zero_shot0=1, learned1=0), results(1, zero_shot0=0, learned1=1)
    )
    assert (one.arm, one.training_helped) == ("zero_shot", "no")
    assert (
        advise(results(zero_shot0=3), None).why
        == "Use zero-shot: 7.5 % on 40 dev items."
    )
    alone = advise(results(zero_shot0=3, mmr1=4), None)
    assert alone.training_helped is None
    assert "Next is zero-shot with 7.5 %" in alone.why


def test_all_right_and_all_wrong_ties_end_with_the_cheapest() -> None:
    for count in (0, N):
        found = advise(
            results(zero_shot0=count, mmr1=count, learned1=count),
            results(zero_shot0=1, learned1=1),
        )
        assert found.arm == "zero_shot"
        assert "had the same there" in found.why
        assert found.training_helped == "no"
