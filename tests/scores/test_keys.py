"""Keys and records: whatever could change an answer changes the key, and a changed byte of a record is noticed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.data.types import Item, ItemId, Reference, Score
from leverplus.errors import NotMeasured, ScoringError, StoreError
from leverplus.scores.keys import Context, item_digest, key_range, score_key
from leverplus.scores.records import encode, seal, unseal

PARTS = {"task": "world", "task_version": "1", "metric": "vqa", "cut": "line"}
FINGERPRINT = {"model": "tiny", "revision": "a", "template": "Q: {q}"}
ITEM = Item(
    ItemId("i1"), "what colour?", ("red", "red", "blue"), "train", "i1.png", "p1"
)
CONTEXT = b"c" * 16
KEY = b"cccc" + b"k" * 16


def test_every_part_of_the_task_and_of_the_fingerprint_changes_the_context() -> None:
    digests = {Context.of(FINGERPRINT, **PARTS).digest}
    for name in PARTS:
        digests.add(Context.of(FINGERPRINT, **{**PARTS, name: "x"}).digest)
    for name in FINGERPRINT:
        digests.add(Context.of({**FINGERPRINT, name: "x"}, **PARTS).digest)
    assert len(digests) == 1 + len(PARTS) + len(FINGERPRINT)
    with pytest.raises(ScoringError, match="task_version"):
        Context.of(FINGERPRINT, **{**PARTS, "task_version": ""})
    with pytest.raises(ScoringError, match="fingerprint"):
        Context.of({}, **PARTS)


def test_a_query_digest_covers_all_that_judges_and_a_demo_digest_what_is_shown() -> (
    None
):
    def digest(role, **changes) -> bytes:
        return item_digest(replace(ITEM, **changes), "abc", role=role)

    changes = [
        {},
        {"id": ItemId("i2")},
        {"question": "what color?"},
        {"answers": ("red", "red", "green")},
        {"answers": ("red", "red")},
        {"fields": {"unit": "m"}},
    ]
    assert len({digest("query", **own) for own in changes}) == len(changes)
    shown = digest("demo")
    assert shown == digest("demo", answers=("red",), split="dev", image="else.png")
    assert shown != digest("demo", answers=("blue", "blue", "red"))
    with pytest.raises(NotMeasured):
        digest("demo", answers=())


def test_every_order_of_three_demonstrations_has_its_own_key(maker) -> None:
    assert len({maker.key("q", *order) for order in permutations(("a", "b", "c"))}) == 6


def test_key_order_groups_the_records_of_a_query(maker) -> None:
    keys = {}
    for query in ("q1", "q2", "q3"):
        for number in range(20):
            key = maker.key(query, f"d{number}")
            assert key.startswith(key_range(maker.context.digest, maker.digest(query)))
            keys[key] = query
    ordered = [keys[key] for key in sorted(keys)]
    assert sum(a != b for a, b in pairwise(ordered)) == 2


def test_the_key_of_a_known_prompt_never_changes() -> None:
    """A changed key function would make every stored score unreachable; then FORMAT must change."""
    context = Context.of({**FINGERPRINT, "decoding": "greedy"}, **PARTS)
    demo = item_digest(replace(ITEM, id=ItemId("i2")), "def", role="demo")
    key = score_key(context.digest, item_digest(ITEM, "abc", role="query"), [demo])
    assert key.hex() == "43a1ede11eaebe6ee522161b802802e3e940e910"


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
share = st.floats(0, 1)


@st.composite
def scores(draw) -> Score:
    ids = draw(st.lists(text, min_size=1, max_size=5, unique=True))
    logprob = st.none() | st.floats(-1e300, 0) | st.floats(-100, 0, width=32)
    accuracy = draw(share)
    references = draw(st.lists(st.tuples(text, st.integers(0, 10), logprob)))
    return Score(
        query=ids[0],
        demos=tuple(ids[1:]),
        raw=draw(st.just("") | text),
        answer=draw(text),
        accuracy=accuracy,
        correct=accuracy > 0,
        references=tuple(Reference(*values) for values in references),
        token_f1=draw(share),
        edit_similarity=draw(share),
        tokens=draw(st.integers(0, 2**40)),
        seconds=draw(st.floats(0, 1e6)),
    )


@pytest.mark.slow
@given(scores())
def test_a_score_reads_back_exactly_as_it_was_measured(score: Score) -> None:
    assert unseal(CONTEXT, seal(CONTEXT, KEY, score)) == score


REFUSED = {
    "is nan, expected a finite": {"references": (Reference("a", 1, math.nan),)},
    "is -inf": {"references": (Reference("a", 1, -math.inf),)},
    "is 0.25, expected a finite": {"references": (Reference("a", 1, 0.25),)},
    "-1 tokens": {"tokens": -1},
    "inf seconds": {"seconds": math.inf},
    "not valid Unicode": {"raw": "\ud800"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_score_that_cannot_be_true_is_refused_with_the_reason(maker, reason) -> None:
    with pytest.raises(ScoringError, match=reason):
        seal(CONTEXT, KEY, replace(maker.score("q", "a"), **REFUSED[reason]))


def test_any_changed_byte_of_a_record_is_noticed(maker) -> None:
    row = seal(CONTEXT, KEY, maker.score("q", "a", "b"))
    changes = [{"tokens": 121}, {"seconds": 0.03}, {"key": KEY[:-1] + b"l"}]
    changes += [{"payload": "text"}, {"payload": b""}]
    for at, byte in enumerate(row.payload):
        damaged = row.payload[:at] + bytes([byte ^ 1]) + row.payload[at + 1 :]
        changes.append({"payload": damaged})
    for change in changes:
        with pytest.raises(StoreError, match=r"changed after.*lever store verify"):
            unseal(CONTEXT, row._replace(**change))
    with pytest.raises(StoreError, match="changed after"):
        unseal(b"d" * 16, row)


def test_what_it_cost_is_not_part_of_what_was_measured(maker) -> None:
    cheap, dear = (maker.score("q", tokens=own, seconds=own) for own in (1, 2))
    assert encode(cheap) == encode(dear)
