"""Words: every text has its tokens, and strange words are told apart from names."""

from __future__ import annotations

import pytest

from leverplus_lab.world.words import (
    ANSWER_END,
    ANSWER_START,
    END,
    PAD,
    PARAPHRASES,
    THINGS,
    UNKNOWN,
    VOCABULARY,
    answer_text,
    answer_tokens,
    name_token,
    question_tokens,
)


def test_no_word_has_two_tokens() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_the_names_of_a_thing_stand_side_by_side() -> None:
    for thing, names in enumerate(THINGS):
        assert (
            tuple(VOCABULARY[name_token(thing, dialect)] for dialect in (0, 1)) == names
        )
    assert 2 * len(THINGS) == ANSWER_END - ANSWER_START


@pytest.mark.parametrize("question", [text for group in PARAPHRASES for text in group])
def test_every_question_is_four_known_words(question: str) -> None:
    tokens = question_tokens(question)
    assert len(tokens) == 4
    assert PAD not in tokens
    assert UNKNOWN not in tokens
    assert question_tokens(question.upper() + "?") == tokens


def test_questions_are_cut_filled_and_read_with_strange_words() -> None:
    assert question_tokens("") == [PAD] * 4
    assert question_tokens("what zzz")[1:] == [UNKNOWN, PAD, PAD]
    assert question_tokens("what does it like so very much") == question_tokens(
        "what does it like"
    )


@pytest.mark.parametrize("answer", ["cookie", "biscuit lorry", "wardrobe closet"])
def test_an_answer_comes_back_from_its_tokens(answer: str) -> None:
    assert answer_text(answer_tokens(answer)) == answer


def test_an_answer_that_is_no_name_is_unknown() -> None:
    assert answer_tokens("red") == [UNKNOWN, END]
    assert answer_tokens("") == [UNKNOWN, END]
    assert answer_tokens("cookie cookie cookie") == answer_tokens("cookie cookie")
