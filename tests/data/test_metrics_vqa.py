"""Official VQA accuracy: hand-worked values, the evaluator's quirks, and a literal restatement of its definition."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.data.metrics.vqa import normalise_answer, vqa_accuracy
from leverplus.errors import NotMeasured


@pytest.mark.parametrize(
    ("matching", "expected"),
    [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (9, 1.0)],
)
def test_ten_annotators_give_the_five_official_values(
    matching: int, expected: float
) -> None:
    references = ["red"] * matching + ["blue"] * (10 - matching)
    assert vqa_accuracy("red", references) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (["red"], 0.0),  # nobody is left to agree with
        (["red", "red"], 1 / 3),
        (["red", "red", "red"], 2 / 3),
        (["red", "red", "red", "red"], 1.0),
        (["red", "red", "blue"], (1 / 3 + 1 / 3 + 2 / 3) / 3),
        (["red", "blue", "red", "red", "green"], (2 / 3 + 1 + 2 / 3 + 2 / 3 + 1) / 5),
    ],
)
def test_other_numbers_of_annotators_follow_the_same_formula(
    references: list[str], expected: float
) -> None:
    assert vqa_accuracy("red", references) == pytest.approx(expected, abs=1e-15)


def test_a_question_without_references_is_not_scored() -> None:
    with pytest.raises(NotMeasured, match="at least one reference"):
        vqa_accuracy("red", [])


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Dog.", "dog"),
        ("an  apple\n", "apple"),
        ("Two", "2"),
        ("none", "0"),
        ("dont know", "don't know"),
        ("it's", "it's"),
        ("somebody'd", "somebodyd"),
        ("Im", "im"),
        ("black-white", "black white"),
        ("black - white", "black white"),
        ("yes, sir", "yes sir"),
        ("yes,sir", "yes sir"),
        ("1,000", "1000"),
        ("1,000 b/c", "1000 bc"),  # a comma between digits makes every mark vanish
        ("b/c /", "bc"),  # a mark that touches a space once vanishes everywhere
        ("3.5", "3.5"),
        ("3.", "3"),
        ("no.5", "no.5"),  # kept: only the digit after the point counts
        ("u.s.a.", "usa"),
        ("." * 40 + "x", "." * 8 + "x"),  # at most 32 points are removed
        (
            "what's up: 5:30",
            "what's up: 5:30",
        ),  # colon and apostrophe are no punctuation there
        ("a", ""),
    ],
)
def test_normalisation_follows_the_official_rules(text: str, normalised: str) -> None:
    assert normalise_answer(text) == normalised


def test_answers_are_normalised_only_where_annotators_disagree() -> None:
    assert vqa_accuracy("The dog.", ["dog"] * 9 + ["a dog"]) == 1.0
    assert vqa_accuracy("The dog.", ["dog"] * 10) == 0.0
    assert vqa_accuracy(" dog\n", ["dog"] * 10) == 1.0
    assert vqa_accuracy("dog", ["dog", "dog "] * 5) == 1.0
    assert vqa_accuracy("Dog", ["dog", "dog "] * 5) == 0.0


def _by_definition(answer: str, references: list[str]) -> float:
    """Each annotator is left out in turn; the answer is held against the others."""
    plain = [
        text.replace("\n", " ").replace("\t", " ").strip()
        for text in [answer, *references]
    ]
    if len(set(plain[1:])) > 1:
        plain = [normalise_answer(text) for text in plain]
    accuracies = []
    for left_out in range(len(references)):
        others = [text for index, text in enumerate(plain[1:]) if index != left_out]
        accuracies.append(min(1, float(sum(text == plain[0] for text in others)) / 3))
    return float(sum(accuracies)) / len(accuracies)


WORDS = st.sampled_from(
    [
        "red",
        "Red",
        "the red",
        "red.",
        " red",
        "two",
        "2",
        "a",
        "",
        "1,000",
        "dont",
        "don't",
    ]
)


@pytest.mark.slow
@given(WORDS, st.lists(WORDS, min_size=1, max_size=12))
def test_the_value_is_bitwise_that_of_leaving_each_annotator_out(
    answer: str, references: list[str]
) -> None:
    assert vqa_accuracy(answer, references) == _by_definition(answer, references)


@pytest.mark.slow
def test_a_hundred_thousand_answers_are_scored_in_two_seconds() -> None:
    references = [[f"word {i % 50}", "other"] * 5 for i in range(1000)]
    start = time.perf_counter()
    for index in range(100_000):
        vqa_accuracy(f"word {index % 60}", references[index % 1000])
    assert time.perf_counter() - start < 2.0


def test_the_metrics_are_imported_without_torch() -> None:
    code = "import sys; from leverplus.metrics import vqa_accuracy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
