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
        arm, shots = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
        if "__" in name:  # BM25 ends in digits
            arm, shots = name.split("__")
        found.add(
            arm,
            int(shots),
            [
                Prediction(item, (), "a", float(row < count))
                for row, item in enumerate(items)
            ],
        )
    return found


def test_a_free_arm_that_is_better_on_dev_is_advised_and_training_did_not_help() -> (
    None
):
    dev = results(zero_shot0=10, mmr1=20, mmr4=36, learned1=25, learned4=28)
    found = advise(
        dev, results(zero_shot0=9, mmr1=19, mmr4=27, learned1=26, learned4=29)
    )
    assert (found.arm, found.shots, found.dev, found.n) == ("mmr", 4, 0.9, N)
    assert found.training_helped == "no"
    assert found.why.startswith(
        "Use nearest, diverse (MMR) with 4 shots: 90.0 % on 40 dev items; corrected for choosing among 5 about "
    )
    assert "had 70.0 % there (+20.0 points, " in found.why
    assert "so training did not help" in found.why
    assert "On 40 test items: 67.5 % against 72.5 % (-5.0, " in found.why
    assert "within noise" in found.why
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


@pytest.mark.parametrize(
    ("ahead", "behind"), [("mmr1", "learned1"), ("learned1", "mmr1")]
)
def test_a_lead_that_may_be_luck_leaves_open_whether_training_helps(
    ahead: str, behind: str
) -> None:
    close = advise(results(**{ahead: 30, behind: 29}), None)
    assert close.arm == ahead[:-1]
    assert close.training_helped == "open"
    assert "whether training helps is open" in close.why
    assert "did not help" not in close.why


def scattered(n: int = 60, **right: int) -> Results:
    """Like `results`, each arm right on items of its own."""
    rng = random.Random(3)
    found = results(n, **right)
    for by_shots in found.draws.values():
        for shots, (draw,) in by_shots.items():
            scores = [own.accuracy for own in draw]
            rng.shuffle(scores)
            own = zip(found.items, scores, strict=True)
            by_shots[shots] = [
                [Prediction(item, (), "a", score) for item, score in own]
            ]
    return found


def test_a_lone_peak_gives_way_to_an_arm_that_is_good_at_all_its_shots() -> None:
    steady = {"cover4": 27, "cover8": 29, "cover16": 28}
    found = advise(scattered(**steady, bm25__4=18, bm25__8=30, bm25__16=19), None)
    assert (found.arm, found.shots) == ("cover", 8)
    assert found.worth("cover", 8) > found.worth("bm25", 8)
    assert (
        "Uncorrected, nearest by words (BM25) with 8 shots is ahead with 50.0 %, but that is more luck"
        in found.why
    )


def test_of_many_equal_ways_the_first_is_not_believed() -> None:
    counts = {
        f"arm{letter}1": 12 + row // 2 for row, letter in enumerate("abcdefghijklmn")
    }
    found = advise(scattered(40, **counts), None)
    own = found.dev_corrected[found.arm][1]
    assert found.dev == 0.45
    assert own.estimate < 0.41
    assert own.ci95[0] < 0.375 < own.ci95[1]


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
    assert found.dev_accuracy["majority"] == {1: 0.75}
    assert found.why.startswith(
        "Use the majority answer, which does not ask the model: 75.0 % on 40 dev items; "
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
    assert "Examples drawn by chance had 60.0 % there (-5.0 points, " in lucky.why
    assert "whether choosing gains anything over chance is open" in lucky.why
    assert "drawn by chance" not in advise(results(random1=10, mmr1=22), None).why
    worse = advise(results(random1=30, mmr1=22), None)
    assert "choosing like this harms" in worse.why


def wrote(**answers: str) -> Results:
    """Arms that write the same for every item; "cat" is right."""
    items = [ItemId(f"q{number}") for number in range(N)]
    found = Results(items, list(items))
    for name, answer in answers.items():
        right = float(answer == "cat")
        found.add(
            name[:-1],
            int(name[-1]),
            [Prediction(item, (), answer, right) for item in items],
        )
    return found


def test_a_model_that_is_right_in_too_many_words_is_told_from_one_that_knows_nothing() -> (
    None
):
    chatty = advise(wrote(zero_shot0="It is a Cat.", mmr1="cat"), None).why
    assert (
        "For 40 of 40 items zero-shot wrote the right answer among other words"
        in chatty
    )
    other = advise(wrote(zero_shot0="a concatenation", mmr1="cat"), None).why
    assert "Zero-shot was never right, which may be the form" in other
    assert "wrote" not in advise(wrote(zero_shot0="cat", mmr1="cat"), None).why


def test_what_is_advised_has_the_best_corrected_figure_and_oracles_are_no_choice() -> (
    None
):
    names = (
        *("zero_shot0", "nearest_text1", "mmr1", "mmr2", "learned1", "learned2"),
        *("learned_auto2", "label_vote0"),
    )
    for seed in range(20):
        draw = random.Random(seed)
        counts = {name: draw.randint(0, N) for name in names}
        found = advise(results(oracle1=N, oracle_any2=N, **counts), None)
        every = []
        for arm, by_shots in found.dev_corrected.items():
            assert "oracle" not in arm
            every += [own.estimate for own in by_shots.values()]
        assert found.worth(found.arm, found.shots) == max(every)


def test_small_cases_have_an_answer() -> None:
    assert advise(results(0), None).arm is None
    assert "no dev items" in advise(results(0), None).why
    one = advise(
        results(1, zero_shot0=1, learned1=0), results(1, zero_shot0=0, learned1=1)
    )
    assert (one.arm, one.training_helped) == ("zero_shot", "open")
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
        assert found.training_helped == "open"
