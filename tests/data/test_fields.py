"""Named inputs: one rendering, kept by items, bundles and queries."""

from __future__ import annotations

import numpy as np

from leverplus.bundle.bundle import draft_demo
from leverplus.bundle.demo import Query
from leverplus.bundle.store import DemoStore
from leverplus.data.fields import render_fields
from leverplus.data.types import Item, ItemId
from leverplus.scores.keys import item_digest

INPUTS = {"question": "Where is Lisbon?", "context": "Lisbon is in Portugal."}


def test_a_query_with_inputs_is_the_same_query_as_its_rendering_and_keeps_lines() -> (
    None
):
    query = Query.of(None, fields=INPUTS)
    assert query.item.question == render_fields(INPUTS)
    assert query.item.fields == INPUTS
    assert query.digest == Query.of(render_fields(INPUTS)).digest
    assert (
        Query.of("Where is Lisbon?", fields={"context": "Lisbon is in Portugal."}).item
        == query.item
    )


def test_stored_keys_change_with_fields_only_where_there_are_some() -> None:
    plain = Item(ItemId("1"), "q", ("a",), "train")
    keys = [
        item_digest(own, "", role="query")
        for own in (plain, Item(ItemId("1"), "q", ("a",), "train", fields={}))
    ]
    assert keys[0] == keys[1]
    assert (
        item_digest(
            Item(ItemId("1"), "q", ("a",), "train", fields={"x": "q"}), "", role="query"
        )
        != keys[0]
    )


def test_a_bundle_keeps_the_inputs_of_a_demonstration(tmp_path) -> None:
    draft = draft_demo(0, {"fields": INPUTS, "answer": "Portugal"})
    plain = Item(ItemId("plain"), "q", ("a",), "train")
    store = DemoStore(tmp_path / "demos.sqlite", create=True)
    with store.change():
        store.add([draft, (plain, None)], np.zeros((2, 3), np.float32))
    kept = store.items([0, 1])
    assert (kept[0].fields, kept[0].question) == (INPUTS, render_fields(INPUTS))
    assert kept == {0: draft[0], 1: plain}
