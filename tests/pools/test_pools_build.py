from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leverplus import catalog
from leverplus.embedders.base import Vectors
from leverplus.errors import DataError, LeverError, RecipeError, UnknownName
from leverplus.pools import build as build_module
from leverplus.pools.build import build_pools, builder_hash, forbidden_positions
from leverplus.pools.similarity import cosine, rows, similarity
from leverplus.recipe.pools import PoolSection
from leverplus.types import Item, ItemId

KINDS = tuple(catalog.SAMPLERS)
EMBEDDER = {"model": "clip", "revision": "1"}


def build(section, queries, query_vectors, items, item_vectors, *, seed=0):
    return build_pools(section, queries, query_vectors, items, item_vectors, seed=seed, fingerprint=EMBEDDER)


def brute_force(section, query, vector, items, item_vectors):
    """The pool of a deterministic kind by sorting everything, one query at a time."""
    allowed = [i for i, item in enumerate(items) if item.id != query.id and item.image_id != query.image_id]
    vectors = rows(item_vectors, allowed)
    text, image = cosine(vector.text, vectors.text)[0], cosine(vector.image, vectors.image)[0]
    both = similarity(vector, vectors, section.text_weight)[0]

    def best(order_by, among):
        return sorted(among, key=lambda k: -order_by[k])

    everyone = range(len(allowed))
    if section.kind == "two_stage":
        order = best(text, best(image, everyone)[: section.first_stage])
    elif section.kind == "mmr":
        shortlist = best(both, everyone)[: section.first_stage]
        likeness = similarity(vectors, vectors, section.text_weight)
        order = [shortlist[0]]
        while len(order) < section.size:
            rest = [k for k in shortlist if k not in order]
            gain = [
                section.mmr_lambda * both[k] - (1.0 - section.mmr_lambda) * max(likeness[c, k] for c in order)
                for k in rest
            ]
            order.append(rest[int(np.argmax(gain))])
    else:
        order = best({"nearest_text": text, "nearest_image": image}.get(section.kind, both), everyone)
    return tuple(items[allowed[k]].id for k in order[: section.size])


@pytest.mark.parametrize("kind", KINDS)
@given(count=st.integers(20, 60), size=st.integers(1, 14), per_image=st.integers(1, 5), seed=st.integers(0, 2**40))
@settings(max_examples=12, deadline=None)
def test_a_pool_has_exactly_k_distinct_ids_without_the_query_and_its_picture(
    make_set, kind, *, count, size, per_image, seed
):
    items, vectors = make_set(count, seed=seed % 1000, per_image=per_image)
    by_id = {item.id: item for item in items}
    pools = build(
        PoolSection(kind=kind, size=size, first_stage=max(size, 15)), items, vectors, items, vectors, seed=seed
    )
    assert [pool.query for pool in pools] == [item.id for item in items]
    for pool, query in zip(pools, items, strict=True):
        assert len(pool.candidates) == len(set(pool.candidates)) == size
        assert all(by_id[candidate].image_id != query.image_id for candidate in pool.candidates)
        assert query.id not in pool.candidates


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_gets_the_same_pool_alone_in_company_and_in_any_block(make_set, monkeypatch, kind):
    items, item_vectors = make_set(90)
    queries, query_vectors = make_set(23, split="test", seed=5)
    section = PoolSection(kind=kind, size=10, first_stage=20)
    together = build(section, queries, query_vectors, items, item_vectors)
    for row in range(23):
        alone = build(section, queries[row : row + 1], rows(query_vectors, [row]), items, item_vectors)
        assert alone == [together[row]]
    backwards = np.arange(23)[::-1]
    monkeypatch.setattr(build_module, "QUERIES_AT_ONCE", 4)
    turned = build(section, [queries[i] for i in backwards], rows(query_vectors, backwards), items, item_vectors)
    assert turned[::-1] == together


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("random", "mix")])
@pytest.mark.parametrize("text_weight", [0.3, 0.5])
def test_a_pool_equals_brute_force(make_set, kind, text_weight):
    items, vectors = make_set(61, seed=3)
    section = PoolSection(kind=kind, size=9, first_stage=17, text_weight=text_weight)
    for row, pool in enumerate(build(section, items[:20], rows(vectors, slice(20)), items, vectors)):
        assert pool.candidates == brute_force(section, items[row], rows(vectors, [row]), items, vectors)


@pytest.mark.parametrize("kind", ["two_stage", "mmr"])
def test_a_first_stage_larger_than_what_is_allowed_lets_nothing_forbidden_through(make_set, kind):
    items, vectors = make_set(12, per_image=6)
    for pool in build(PoolSection(kind=kind, size=6, mmr_lambda=0.0), items, vectors, items, vectors):
        own = items[[item.id for item in items].index(pool.query)].image_id
        assert {item.id for item in items if item.image_id != own} == set(pool.candidates)


def test_a_mixed_pool_is_nearest_by_question_then_by_picture_then_random(make_set):
    items, vectors = make_set(80, seed=8)
    section = PoolSection(kind="mix", size=16)
    nearest = {
        kind: build(dataclasses.replace(section, kind=f"nearest_{kind}"), items, vectors, items, vectors)
        for kind in ("text", "image")
    }
    fillers = set()
    for row, pool in enumerate(build(section, items, vectors, items, vectors)):
        by_text = nearest["text"][row].candidates[:4]
        assert pool.candidates[:4] == by_text
        assert pool.candidates[4:8] == tuple(i for i in nearest["image"][row].candidates if i not in by_text)[:4]
        fillers |= set(pool.candidates[8:])
    assert len(fillers) == 80


def test_random_pools_are_uniform_over_what_is_allowed(make_set):
    items, vectors = make_set(12, per_image=3)
    section = PoolSection(kind="random", size=3)
    counts = dict.fromkeys((item.id for item in items), 0)
    draws = 3000
    for seed in range(draws):
        for candidate in build(section, items[4:5], rows(vectors, [4]), items, vectors, seed=seed)[0].candidates:
            counts[candidate] += 1
    assert [counts[item.id] for item in items[3:6]] == [0, 0, 0]
    expected = draws * 3 / 9
    chi_square = sum((counts[item.id] - expected) ** 2 / expected for item in items[:3] + items[6:])
    assert chi_square < 26.1  # 0.999 quantile with 8 degrees of freedom; draws without replacement vary less


def test_the_seed_and_the_query_decide_a_random_pool(make_set):
    items, vectors = make_set(60, per_image=1)
    section = PoolSection(kind="random", size=8)
    first = build(section, items, vectors, items, vectors, seed=1)
    assert first == build(section, items, vectors, items, vectors, seed=1)
    other = build(section, items, vectors, items, vectors, seed=2)
    assert all(a.candidates != b.candidates for a, b in zip(first, other, strict=True))
    assert len({pool.candidates for pool in first}) == 60


def test_every_parameter_the_embedder_and_the_seed_change_the_builder():
    section = PoolSection()
    changed = {
        "kind": "mix", "size": 32, "text_weight": 0.4, "mix_random": 0.6, "mix_text": 0.3, "mix_image": 0.3,
        "first_stage": 201, "mmr_lambda": 0.5, "ann_above": 7,
    }  # fmt: skip
    assert set(changed) == {field.name for field in dataclasses.fields(section)}
    hashes = {
        builder_hash(dataclasses.replace(section, **{name: value}), EMBEDDER, 0) for name, value in changed.items()
    }
    hashes |= {builder_hash(section, EMBEDDER, 0), builder_hash(section, EMBEDDER, 1)}
    hashes |= {
        builder_hash(section, {**EMBEDDER, "revision": "2"}, 0),
        builder_hash(section, EMBEDDER, 0, approximate=True),
    }
    assert len(hashes) == len(changed) + 4
    assert builder_hash(section, dict(reversed(EMBEDDER.items())), 0) == builder_hash(section, EMBEDDER, 0)


def test_training_and_test_pools_of_one_section_have_one_builder(make_set):
    items, item_vectors = make_set(40)
    queries, query_vectors = make_set(5, split="test")
    section = PoolSection(size=8)
    train, test = (
        build(section, q, v, items, item_vectors) for q, v in ((items, item_vectors), (queries, query_vectors))
    )
    assert {pool.builder for pool in train + test} == {builder_hash(section, EMBEDDER, 0)}


def test_settings_that_shape_a_kind_change_its_pools(make_set):
    items, vectors = make_set(90, per_image=1)
    for kind, changes in {
        "nearest_both": {"text_weight": 0.9}, "corpus": {"text_weight": 0.1}, "mix": {"mix_text": 0.9},
        "two_stage": {"first_stage": 60}, "mmr": {"mmr_lambda": 0.1},
    }.items():  # fmt: skip
        section = PoolSection(kind=kind, size=12, first_stage=24)
        before = build(section, items, vectors, items, vectors)
        after = build(dataclasses.replace(section, **changes), items, vectors, items, vectors)
        assert sum(a.candidates != b.candidates for a, b in zip(before, after, strict=True)) > 45, kind


def test_other_questions_on_the_query_picture_are_found_with_and_without_an_image_id():
    def item(name, image_id=None, image=None):
        return Item(ItemId(name), "?", ("a",), "train", image=image, image_id=image_id)

    items = [item("a", "p"), item("b"), item("c", "p"), item("d", image="x.png"), item("e", image="x.png"), item("f")]
    queries = [items[0], items[1], items[3], item("new", "p"), item("new", "q"), item("new")]
    assert [found.tolist() for found in forbidden_positions(queries, items)] == [[0, 2], [1], [3, 4], [0, 2], [], []]


def test_a_set_that_is_too_small_is_refused_with_the_largest_possible_size(make_set):
    items, vectors = make_set(12, per_image=3)
    with pytest.raises(LeverError, match=r"pool of 10 .* of 12 demonstrations only 9 .*pool\.size to at most 9"):
        build(PoolSection(size=10), items, vectors, items, vectors)
    assert len(build(PoolSection(size=9), items, vectors, items, vectors)) == 12
    items, vectors = make_set(3, per_image=3)
    with pytest.raises(LeverError, match=r"only 0 .* nor on its picture; give more demonstrations"):
        build(PoolSection(size=2), items, vectors, items, vectors)


def test_no_queries_give_no_pools(make_set):
    items, vectors = make_set(12)
    assert build(PoolSection(size=4), [], rows(vectors, slice(0)), items, vectors) == []


def test_text_tasks_have_pools_and_kinds_that_need_pictures_are_refused(make_set):
    items, vectors = make_set(30)
    blind = Vectors(image=None, text=vectors.text, answer=vectors.answer)
    for section in (
        PoolSection(kind="random", size=5), PoolSection(kind="nearest_text", size=5),
        PoolSection(kind="mmr", size=5, text_weight=1.0), PoolSection(kind="corpus", size=5, text_weight=1.0),
        PoolSection(kind="mix", size=5, mix_image=0.0),
    ):  # fmt: skip
        assert len(build(section, items, blind, items, blind)) == 30
    by_question = build(PoolSection(kind="nearest_text", size=5), items, blind, items, blind)
    by_default = build(PoolSection(size=5), items, blind, items, blind)
    assert [pool.candidates for pool in by_default] == [pool.candidates for pool in by_question]
    for kind in ("nearest_image", "nearest_both", "mix", "two_stage", "mmr"):
        with pytest.raises(LeverError, match="pictures are compared"):
            build(PoolSection(kind=kind, size=5), items, blind, items, blind)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(np.nan, "must be finite and of length 1"), (np.float32(3.0), "must be finite and of length 1")],
)
def test_vectors_that_are_not_unit_vectors_are_refused(make_set, damage, message):
    items, vectors = make_set(30)
    text = vectors.text.copy()
    text[7, 2] = damage
    with pytest.raises(DataError, match=message):
        build(PoolSection(size=5), items, vectors, items, dataclasses.replace(vectors, text=text))


def test_vectors_of_other_items_and_repeated_ids_are_refused(make_set):
    items, vectors = make_set(30)
    with pytest.raises(DataError, match="29 queries but 30 text vectors"):
        build(PoolSection(size=5), items[1:], vectors, items, vectors)
    with pytest.raises(DataError, match="train-0 occurs twice"):
        build(PoolSection(size=5), items, vectors, [*items[:-1], items[0]], vectors)


def test_settings_that_cannot_be_met_are_refused_before_anything_is_searched(make_set):
    items, vectors = make_set(30)
    with pytest.raises(RecipeError, match="first_stage = 4: must be at least"):
        build(PoolSection(kind="two_stage", size=5, first_stage=4), items, vectors, items, vectors)
    with pytest.raises(UnknownName, match="did you mean 'nearest_text'"):
        build(PoolSection(kind="nearest_txt", size=5), items, vectors, items, vectors)


def test_many_questions_on_one_picture_share_one_list_of_what_is_forbidden() -> None:
    items = [Item(ItemId(f"i{n}"), "what", ("a",), "train", "one.png", "one") for n in range(300)]
    apart = Item(ItemId("i5"), "what", ("a",), "train", "two.png", "two")  # same id, shown on another picture
    found = forbidden_positions([*items, apart], items)
    assert len({id(positions) for positions in found[:-1]}) == 1
    assert found[0].tolist() == list(range(300))
    assert found[-1].tolist() == [5]
    without = [Item(ItemId(f"i{n}"), "what", ("a",), "train") for n in range(3)]
    assert [positions.tolist() for positions in forbidden_positions(without, without)] == [[0], [1], [2]]
