from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.errors import ScoringError, StoreError
from leverplus.store.records import decode, encode, problem_of, seal, unseal
from leverplus.types import Reference, Score

CONTEXT = b"c" * 16
KEY = b"cccc" + b"k" * 16
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
share = st.floats(0, 1)


@st.composite
def scores(draw) -> Score:
    ids = draw(st.lists(text, min_size=1, max_size=5, unique=True))
    answers = draw(st.lists(text, min_size=1, max_size=4, unique=True))
    measured = draw(st.booleans())
    accuracy = draw(share)
    logprob = st.floats(-1e300, 0) | st.floats(-100, 0, width=32)
    return Score(
        query=ids[0],
        demos=tuple(ids[1:]),
        raw=draw(st.just("") | text),
        answer=draw(text),
        accuracy=accuracy,
        correct=accuracy > 0,
        references=tuple(
            Reference(answer, draw(st.integers(1, 10)), draw(logprob) if measured else None) for answer in answers
        ),
        token_f1=draw(share),
        edit_similarity=draw(share),
        tokens=draw(st.integers(0, 2**40)),
        seconds=draw(st.floats(0, 1e6)),
    )


@given(scores())
def test_a_score_reads_back_exactly_as_it_was_measured(score: Score) -> None:
    assert unseal(CONTEXT, seal(CONTEXT, KEY, score)) == score


def test_log_probabilities_that_fit_float32_take_half_the_room(maker) -> None:
    def size(logprob: float) -> int:
        return len(encode(maker.score("q", references=tuple(Reference(a, 1, logprob) for a in "abcd"))))

    assert size(-0.1) - size(-0.5) == 4 * 4


def test_numpy_numbers_are_stored_as_plain_ones(maker) -> None:
    score = maker.score(
        "q", tokens=np.int64(3), accuracy=np.float64(1), references=(Reference("a", np.int64(2), np.float32(-0.1)),)
    )
    back = unseal(CONTEXT, seal(CONTEXT, KEY, score))
    assert type(back.tokens) is int
    assert type(back.references[0].count) is int
    assert back.references[0].logprob == float(np.float32(-0.1))


REFUSED = {
    "shown twice": {"demos": ("a", "b", "a")},
    "among its own": {"demos": ("a", "q")},
    "no reference answers": {"references": ()},
    "listed twice": {"references": (Reference("a", 1, -1.0), Reference("a", 1, -1.0))},
    "reference answer is empty": {"references": (Reference("", 1, -1.0),)},
    "nobody gave any": {"references": (Reference("a", 0, -1.0),)},
    "count -1": {"references": (Reference("a", -1, -1.0),)},
    "is nan, expected a finite": {"references": (Reference("a", 1, math.nan),)},
    "is -inf": {"references": (Reference("a", 1, -math.inf),)},
    "is 0.25, expected a finite": {"references": (Reference("a", 1, 0.25),)},
    "1 of 2 references": {"references": (Reference("a", 1, -1.0), Reference("b", 1, None))},
    "accuracy is 1.5": {"accuracy": 1.5},
    "accuracy is nan": {"accuracy": math.nan},
    "token_f1 is -0.1": {"token_f1": -0.1},
    "edit_similarity is nan": {"edit_similarity": math.nan},
    "correct is False": {"correct": False},
    "correct is True with accuracy 0.0": {"accuracy": 0.0},
    "empty answer": {"answer": ""},
    "-1 tokens": {"tokens": -1},
    "inf seconds": {"seconds": math.inf},
    "not valid Unicode": {"raw": "\ud800"},
    "query id is empty": {"query": ""},
    "demonstration id is empty": {"demos": ("",)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_score_that_cannot_be_true_is_refused_with_the_reason(maker, reason: str) -> None:
    values = {**vars(maker.score("q", "a")), **REFUSED[reason]}
    with pytest.raises(ScoringError, match=reason):
        seal(CONTEXT, KEY, Score(**values))


def test_an_empty_answer_that_is_wrong_is_a_measurement_like_any_other(maker) -> None:
    assert problem_of(maker.score("q", raw="", answer="", accuracy=0.0, correct=False)) is None


def test_a_key_of_another_context_is_refused(maker) -> None:
    with pytest.raises(ScoringError, match="another context"):
        seal(b"x" * 16, KEY, maker.score("q"))
    with pytest.raises(ScoringError, match="another context"):
        seal(CONTEXT, KEY + b"k", maker.score("q"))


def test_any_changed_byte_of_a_record_is_noticed(maker) -> None:
    row = seal(CONTEXT, KEY, maker.score("q", "a", "b"))
    for at in range(len(row.payload)):
        damaged = row.payload[:at] + bytes([row.payload[at] ^ 1]) + row.payload[at + 1 :]
        with pytest.raises(StoreError, match="lever store verify"):
            unseal(CONTEXT, row._replace(payload=damaged))
    for change in ({"key": b"cccc" + b"l" * 16}, {"tokens": 121}, {"seconds": 0.03}):
        with pytest.raises(StoreError, match="changed after"):
            unseal(CONTEXT, row._replace(**change))
    with pytest.raises(StoreError, match="changed after"):
        unseal(b"d" * 16, row)


def test_bytes_that_are_no_payload_are_an_error_and_not_a_score(maker) -> None:
    row = seal(CONTEXT, KEY, maker.score("q"))
    for payload in (b"", row.payload[:10], row.payload[:-5], row.payload[:-1] + b",1]"):
        with pytest.raises(StoreError, match="was changed"):
            unseal(CONTEXT, row._replace(payload=payload))


@pytest.mark.parametrize("value", [None, "text", 1, 2.5, b"bytes", 2**70])
@pytest.mark.parametrize("name", ["key", "payload", "tokens", "seconds", "checksum"])
def test_a_row_of_a_damaged_file_may_hold_anything_and_is_refused(maker, name, value) -> None:
    row = seal(CONTEXT, KEY, maker.score("q"))
    with pytest.raises(StoreError, match="was changed"):
        unseal(CONTEXT, row._replace(**{name: value}))


def test_a_damaged_count_of_references_takes_no_memory(maker) -> None:
    row = seal(CONTEXT, KEY, maker.score("q", references=(Reference("red", 1, None),)))
    huge = row.payload[:1] + struct.pack("<I", 2**32 - 1) + row.payload[5:]
    with pytest.raises(StoreError, match="was changed"):
        unseal(CONTEXT, row._replace(payload=huge))


def test_what_it_cost_is_not_part_of_what_was_measured(maker) -> None:
    assert encode(maker.score("q", tokens=1, seconds=1.0)) == encode(maker.score("q", tokens=2, seconds=2.0))
    row = seal(CONTEXT, KEY, maker.score("q"))
    assert decode(row._replace(tokens=7)).tokens == 7
