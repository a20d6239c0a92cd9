from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.errors import NotMeasured, ScoringError
from leverplus.store.keys import KEY_SIZE, Context, item_digest, key_range, score_key
from leverplus.types import Item, ItemId

PARTS = {"task": "world", "task_version": "1", "metric": "vqa", "postprocess": "line"}
FINGERPRINT = {"model": "tiny", "revision": "a", "template": "Q: {q}", "decoding": "greedy"}
ITEM = Item(ItemId("i1"), "what colour?", ("red", "red", "blue"), "train", image="i1.png", image_id="p1")


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_the_task_changes_the_context(name: str) -> None:
    assert Context.of(FINGERPRINT, **PARTS).digest != Context.of(FINGERPRINT, **{**PARTS, name: "x"}).digest


@pytest.mark.parametrize("name", FINGERPRINT)
def test_every_part_of_the_fingerprint_changes_the_context(name: str) -> None:
    changed = {**FINGERPRINT, name: "x"}
    assert Context.of(FINGERPRINT, **PARTS).digest != Context.of(changed, **PARTS).digest


def test_the_order_in_which_a_fingerprint_is_written_does_not_matter() -> None:
    turned = dict(reversed(FINGERPRINT.items()))
    assert Context.of(FINGERPRINT, **PARTS) == Context.of(turned, **PARTS)


def test_a_context_without_a_task_version_is_refused() -> None:
    with pytest.raises(ScoringError, match="task_version"):
        Context.of(FINGERPRINT, **{**PARTS, "task_version": ""})
    with pytest.raises(ScoringError, match="fingerprint"):
        Context.of({}, **PARTS)


@pytest.mark.parametrize(
    "changed",
    [
        replace(ITEM, id=ItemId("i2")),
        replace(ITEM, question="what color?"),
        replace(ITEM, answers=("red", "red", "green")),
        replace(ITEM, answers=("red", "red")),
    ],
)
def test_a_query_digest_covers_id_question_and_every_reference(changed: Item) -> None:
    assert item_digest(ITEM, "abc", role="query") != item_digest(changed, "abc", role="query")


@pytest.mark.parametrize("role", ["query", "demo"])
def test_a_digest_covers_the_picture(role: str) -> None:
    assert item_digest(ITEM, "abc", role=role) != item_digest(ITEM, "abd", role=role)


def test_a_demo_digest_covers_the_shown_answer_and_nothing_that_is_not_shown() -> None:
    same_shown = replace(ITEM, answers=("red",), split="dev", image="elsewhere.png")
    other_shown = replace(ITEM, answers=("blue", "blue", "red"))
    assert item_digest(ITEM, "abc", role="demo") == item_digest(same_shown, "abc", role="demo")
    assert item_digest(ITEM, "abc", role="demo") != item_digest(other_shown, "abc", role="demo")


def test_an_item_has_different_digests_as_query_and_as_demo() -> None:
    single = replace(ITEM, answers=("red",))
    assert item_digest(single, "abc", role="query") != item_digest(single, "abc", role="demo")


def test_an_item_without_answers_cannot_be_a_demo() -> None:
    with pytest.raises(NotMeasured):
        item_digest(replace(ITEM, answers=()), "abc", role="demo")


def test_texts_that_run_together_do_not_share_a_digest() -> None:
    one, other = replace(ITEM, question='a","b'), replace(ITEM, id=ItemId('i1","a'), question="b")
    assert item_digest(one, "", role="demo") != item_digest(other, "", role="demo")


def test_every_order_of_three_demonstrations_has_its_own_key(maker) -> None:
    assert len({maker.key("q", *order) for order in permutations(("a", "b", "c"))}) == 6


@given(st.lists(st.lists(st.integers(0, 20), max_size=4, unique=True).map(tuple), unique=True, max_size=30))
def test_different_sequences_have_different_keys(sequences) -> None:
    digests = [bytes([number]) * 16 for number in range(21)]
    keys = {score_key(digests[0], digests[1], [digests[i] for i in sequence]) for sequence in sequences}
    assert len(keys) == len(sequences)


def test_key_order_groups_the_records_of_a_query(maker) -> None:
    keys = {maker.key(query, f"d{i}"): query for query in ("q1", "q2", "q3") for i in range(20)}
    ordered = [keys[key] for key in sorted(keys)]
    changes = sum(a != b for a, b in pairwise(ordered))
    assert changes == 2
    assert all(key.startswith(key_range(maker.context.digest, maker.digest(query))) for key, query in keys.items())


def test_a_key_is_made_of_whole_digests_only() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        score_key(b"c" * 16, b"q" * 16, [b"short"])


def test_the_key_of_a_known_prompt_never_changes() -> None:
    """A changed key function would make every stored score unreachable; then MIGRATIONS must say so."""
    context = Context.of(FINGERPRINT, **PARTS)
    demo = item_digest(replace(ITEM, id=ItemId("i2")), "def", role="demo")
    key = score_key(context.digest, item_digest(ITEM, "abc", role="query"), [demo])
    assert len(key) == KEY_SIZE
    assert key.hex() == "1aa373b11eaebe6ee522b93f9fee5412ef29c88b"
