"""Exact match, label accuracy, token F1, edit similarity, and the tables that name them."""

import difflib

import pytest

from leverplus.catalog import METRICS
from leverplus.data.metrics import cut_named, metric_named
from leverplus.data.metrics.text import (
    edit_similarity,
    exact_match,
    label_accuracy,
    token_f1,
)
from leverplus.errors import NotMeasured, UnknownName


def test_exact_match_accepts_any_reference_after_normalisation() -> None:
    assert exact_match("The two dogs.", ["cats", "2 dogs"]) == 1.0
    assert exact_match("two", ["2 dogs"]) == 0.0


def test_exact_match_compares_what_normalises_to_nothing_as_it_stands() -> None:
    """The letter A of a multiple choice is an article to the official normalisation."""
    assert exact_match("a", ["A"]) == 1.0
    assert exact_match("...", ["A"]) == 0.0
    assert exact_match("the", ["A"]) == 0.0
    assert exact_match("", ["A", "b"]) == 0.0


def test_label_accuracy_knows_one_right_label() -> None:
    assert label_accuracy(" Positive.", ["positive"]) == 1.0
    assert label_accuracy("negative", ["positive", "negative", "positive"]) == 0.0
    assert label_accuracy("very positive", ["positive"]) == 0.0
    assert label_accuracy("-", ["+"]) == 0.0
    assert label_accuracy("+", ["+"]) == 1.0


def test_token_f1_counts_shared_tokens_with_their_multiplicity() -> None:
    # given: red red car (3 tokens), wanted: red car park (3 tokens), shared: red, car
    assert token_f1("Red, red car!", ["red car park"]) == pytest.approx(
        2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3)
    )
    assert token_f1("red", ["blue", "a red car", "red"]) == 1.0
    assert token_f1("", ["red"]) == 0.0
    assert token_f1("", [""]) == 0.0


def test_edit_similarity_is_the_best_difflib_ratio() -> None:
    assert edit_similarity("abcd", ["bcde", "xyz"]) == pytest.approx(0.75)
    assert edit_similarity(" ABC", ["abc "]) == 1.0
    long = "ab" * 150
    assert (
        edit_similarity(long, [long + "c"])
        == difflib.SequenceMatcher(None, long, long + "c", autojunk=False).ratio()
    )


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_refuses_an_item_without_references(name: str) -> None:
    with pytest.raises(NotMeasured, match="at least one reference"):
        metric_named(name)("red", [])


def test_an_unknown_name_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(UnknownName, match="did you mean 'vqa_accuracy'"):
        metric_named("vqa_acuracy")
    with pytest.raises(
        UnknownName, match="known: caption, fenced, json, line, plain, vqa, vqa_stem"
    ):
        cut_named("zzz")


@pytest.mark.parametrize(
    ("name", "raw", "answer"),
    [
        ("plain", "  red, blue \n", "red, blue"),
        ("vqa", " red, blue", "red"),
        ("vqa", "red\nQuestion: what", "red"),
        ("vqa", "red Short answer: blue", "red"),
        ("vqa", "dogAnswer", "dog"),
        ("vqa", "1,000 Question", "1,000"),
        ("vqa", "\n red", "red"),
        ("vqa", "Answer: red", ""),
        ("caption", ' "a dog" Output: a cat', "a dog"),
        ("caption", "a “big” dog\nCaption: x", "a big dog"),
        ("caption", "it's a dog, running", "it's a dog, running"),
    ],
)
def test_answers_are_cut_from_raw_text_as_declared(
    name: str, raw: str, answer: str
) -> None:
    assert cut_named(name)(raw) == answer
    assert cut_named(name)(answer) == answer
