"""Results from different conditions are not compared, and the sentence says what differs."""

from __future__ import annotations

import pytest
from handmade import context, item_ids

from leverplus.data.types import Item, ItemId, Pool
from leverplus.errors import EvaluationError
from leverplus.evaluate.conditions import (
    conditions_of,
    require_same,
    require_unseen,
)
from leverplus.evaluate.record import ArmResult, EvaluationRecord
from leverplus.evaluate.runs import guard_test


def conditions(
    template: str = "plain", n: int = 3, builder: str = "b", split: str = "test"
) -> dict[str, object]:
    ids = item_ids(n)
    return conditions_of(
        context(template), split, ids, [Pool(item, (), builder) for item in ids]
    )


def test_the_order_of_items_does_not_matter() -> None:
    ids = item_ids(3)
    pools = [Pool(item, (), "b") for item in ids]
    assert conditions_of(context(), "test", ids, pools) == conditions_of(
        context(), "test", ids[::-1], pools
    )


@pytest.mark.parametrize(
    ("other", "phrase"),
    [
        (
            conditions(template="chat"),
            r"its prompt or its decoding \(template plain and template chat\)",
        ),
        (conditions(n=4), "the items"),
        (conditions(builder="c"), r"how candidate pools are built \(b and c\)"),
        (conditions(split="dev"), r"the split \(test and dev\)"),
    ],
)
def test_the_sentence_says_what_differs(other: dict[str, object], phrase: str) -> None:
    with pytest.raises(
        EvaluationError,
        match=f"one and two cannot be compared, because they differ in .*{phrase}",
    ):
        require_same(["one", "two"], [conditions(), other])


def test_equal_conditions_are_compared() -> None:
    require_same(["one", "two"], [conditions(), conditions()])


def item(name: str, image: str | None) -> Item:
    return Item(ItemId(name), "what?", ("x",), "test", image, image)


def test_items_on_a_picture_that_a_demonstration_shows_are_refused() -> None:
    demonstrations = [item("d1", "i1"), item("d2", "i2"), item("d3", None)]
    require_unseen(
        [item("q1", "d1"), item("i2", None)], demonstrations
    )  # an id is not a picture
    require_unseen([item("q1", "i3"), item("q2", None)], demonstrations)
    with pytest.raises(
        EvaluationError,
        match=r"1 of 2 evaluated items share their picture .* such as q2",
    ):
        require_unseen([item("q1", "i3"), item("q2", "i2")], demonstrations)
    with pytest.raises(EvaluationError, match="such as d3"):
        require_unseen([item("d3", None)], demonstrations)


def test_the_mark_of_a_choice_on_test_outlives_the_next_look() -> None:
    arms = {"learned": ArmResult(shots={1: 0.5})}
    earlier = EvaluationRecord(n=3, arms=arms, checkpoint="sft")
    assert guard_test("test", "sft", None, False) is False
    assert guard_test("test", "sft", earlier, False) is False
    assert guard_test("dev", "all", None, False) is False
    with pytest.raises(EvaluationError, match="'sft-epoch001' after another one"):
        guard_test("test", "sft-epoch001", earlier, False)
    assert guard_test("test", "sft-epoch001", earlier, True) is True
    marked = earlier.model_copy(update={"chosen_on_test": True})
    assert guard_test("test", "sft", marked, False) is True
