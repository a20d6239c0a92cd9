"""The first stage: exactly K allowed candidates, the same for a query in any company, equal to sorting everything."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leverplus import catalog
from leverplus.arms import corpus as corpus_module
from leverplus.arms.corpus import Corpus, Queries, forbidden_positions
from leverplus.arms.pools import build_pools, builder_hash
from leverplus.arms.settings import PoolSection
from leverplus.arms.similarity import MMR_LAMBDA, cosine, rows
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId, Pool
from leverplus.encode.base import Vectors
from leverplus.errors import DataError, LeverError, RecipeError, UnknownName

KINDS = tuple(catalog.SAMPLERS)
EMBEDDER = {"model": "clip", "revision": "1"}
RULES = AnswerRules("exact")


def unit(count: int, width: int, seed: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).standard_normal((count, width))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def make_set(
    count: int, *, split: str = "train", seed: int = 0, per_image: int = 3
) -> tuple[list[Item], Vectors]:
    """Several questions on a picture, drawn from a handful so that they tie exactly."""
    asked = np.random.default_rng(seed).integers(0, max(2, count // 4), count)
    items = []
    for row in range(count):
        picture = f"{split}-{row // per_image}"
        question = f"question {asked[row]}"
        name = ItemId(f"{split}-{row}")
        items.append(Item(name, question, ("yes",), split, image_id=picture))
    text = unit(count, 12, seed + 1)[asked]
    image = unit(count, 8, seed + 2)[np.arange(count) // per_image]
    return items, Vectors(image=image, text=text, answer=np.zeros_like(text))


Set = tuple[list[Item], Vectors]


def build(section: PoolSection, queries: Set, items: Set, seed: int = 0) -> list[Pool]:
    asked = Queries(*queries, forbidden_positions(queries[0], items[0]))
    corpus = Corpus.of_items(*items, RULES)
    return build_pools(section, asked, corpus, seed=seed, fingerprint=EMBEDDER)


def some(own: Set, part: slice) -> Set:
    return own[0][part], rows(own[1], part)


def brute_force(
    section: PoolSection, query: Item, vector: Vectors, items: list[Item], all_: Vectors
) -> tuple[str, ...]:
    """The pool of a kind without chance by sorting everything, one query at a time."""
    allowed = []
    for place, item in enumerate(items):
        if item.id != query.id and item.image_id != query.image_id:
            allowed.append(place)
    vectors = rows(all_, allowed)
    assert vectors.image is not None
    assert vector.image is not None
    text = cosine(vector.text, vectors.text)[0]
    image = cosine(vector.image, vectors.image)[0]
    both = section.text_weight * text + (1 - section.text_weight) * image
    by_kind = {"nearest_text": text, "nearest_image": image, "two_stage": image}

    def best(order_by: NDArray[np.float64], among: list[int]) -> list[int]:
        return sorted(among, key=lambda k: -order_by[k])

    order = best(by_kind.get(section.kind, both), list(range(len(allowed))))
    if section.kind == "two_stage":
        order = best(text, order[: section.first_stage])
    if section.kind == "mmr":
        like = section.text_weight * cosine(vectors.text, vectors.text)
        like = like + (1 - section.text_weight) * cosine(vectors.image, vectors.image)
        rest, order = order[: section.first_stage], []
        while len(order) < section.size:
            gain = []
            for k in rest:
                near = max((like[c, k] for c in order), default=0.0)
                gain.append(MMR_LAMBDA * both[k] - (1.0 - MMR_LAMBDA) * near)
            order.append(rest.pop(int(np.argmax(gain))))
    return tuple(items[allowed[k]].id for k in order[: section.size])


@pytest.mark.parametrize("kind", KINDS)
@given(
    count=st.integers(20, 60),
    size=st.integers(1, 14),
    per_image=st.integers(1, 5),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=12, deadline=None)
def test_a_pool_has_exactly_k_distinct_ids_without_the_query_and_its_picture(
    kind: str, count: int, size: int, per_image: int, seed: int
) -> None:
    own = make_set(count, seed=seed % 1000, per_image=per_image)
    by_id = {item.id: item for item in own[0]}
    section = PoolSection(kind=kind, size=size, first_stage=max(size, 15))
    for pool, query in zip(build(section, own, own, seed), own[0], strict=True):
        assert pool.query == query.id
        assert len(set(pool.candidates)) == len(pool.candidates) == size
        pictures = {by_id[candidate].image_id for candidate in pool.candidates}
        assert query.image_id not in pictures


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_gets_the_same_pool_alone_in_company_and_in_any_block(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, queries = make_set(90), make_set(23, split="test", seed=5)
    section = PoolSection(kind=kind, size=10, first_stage=20)
    together = build(section, queries, items)
    for row in range(23):
        assert build(section, some(queries, slice(row, row + 1)), items) == [
            together[row]
        ]
    monkeypatch.setattr(corpus_module, "COMPARED_AT_ONCE", 4 * 90)
    turned = build(section, some(queries, slice(None, None, -1)), items)
    assert turned[::-1] == together
    assert {pool.builder for pool in together} == {builder_hash(section, EMBEDDER, 0)}


@pytest.mark.parametrize("text_weight", [0.3, 0.5])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("random", "mix")]
)
def test_a_pool_equals_brute_force(kind: str, text_weight: float) -> None:
    items, vectors = make_set(61, seed=3)
    section = PoolSection(kind=kind, size=9, first_stage=17, text_weight=text_weight)
    pools = build(section, some((items, vectors), slice(20)), (items, vectors))
    for row, pool in enumerate(pools):
        own = items[row], rows(vectors, [row])
        assert pool.candidates == brute_force(section, *own, items, vectors)


@pytest.mark.parametrize(
    ("size", "counts"),
    [(64, (16, 16)), (16, (4, 4)), (7, (2, 2)), (5, (1, 1)), (1, (0, 0))],
)
def test_a_mixed_pool_is_a_quarter_by_question_a_quarter_by_picture_and_random(
    size: int, counts: tuple[int, int]
) -> None:
    own = make_set(80, seed=8)
    by_text = build(PoolSection("nearest_text", 70), own, own)
    by_image = build(PoolSection("nearest_image", 70), own, own)
    fillers: set[str] = set()
    for row, pool in enumerate(build(PoolSection("mix", size), own, own)):
        first = by_text[row].candidates[: counts[0]]
        others = [name for name in by_image[row].candidates if name not in first]
        assert pool.candidates[: sum(counts)] == (*first, *others[: counts[1]])
        fillers |= set(pool.candidates[sum(counts) :])
    assert len(fillers) > 40


def test_random_pools_are_uniform_and_follow_the_seed_and_the_query() -> None:
    own = make_set(12, per_image=3)
    section, draws = PoolSection("random", 3), 1500
    counts = dict.fromkeys((item.id for item in own[0]), 0)
    for seed in range(draws):
        for candidate in build(section, some(own, slice(4, 5)), own, seed)[
            0
        ].candidates:
            counts[candidate] += 1
    assert [counts[item.id] for item in own[0][3:6]] == [0, 0, 0]
    expected = draws * 3 / 9
    allowed = [counts[item.id] for item in own[0][:3] + own[0][6:]]
    chi_square = sum((count - expected) ** 2 / expected for count in allowed)
    assert chi_square < 26.1  # 0.999 quantile with 8 degrees of freedom
    many = make_set(60, per_image=1)
    first = build(PoolSection("random", 8), many, many, 1)
    assert first == build(PoolSection("random", 8), many, many, 1)
    assert len({pool.candidates for pool in first}) == 60
    other = build(PoolSection("random", 8), many, many, 2)
    assert all(a.candidates != b.candidates for a, b in zip(first, other, strict=True))


def test_every_parameter_the_embedder_and_the_seed_change_the_builder() -> None:
    section = PoolSection()
    changed = {"kind": "mix", "size": 32, "text_weight": 0.4, "first_stage": 201}
    assert set(changed) == {field.name for field in dataclasses.fields(section)}
    hashes = {builder_hash(section, EMBEDDER, 0), builder_hash(section, EMBEDDER, 1)}
    for name, value in changed.items():
        other = dataclasses.replace(section, **{name: value})
        hashes.add(builder_hash(other, EMBEDDER, 0))
    hashes.add(builder_hash(section, {**EMBEDDER, "revision": "2"}, 0))
    assert len(hashes) == len(changed) + 3


def test_text_tasks_have_pools_and_kinds_that_need_pictures_are_refused() -> None:
    items, vectors = make_set(30)
    blind = items, Vectors(image=None, text=vectors.text, answer=vectors.answer)
    for kind in ("random", "nearest_text", "corpus"):
        assert len(build(PoolSection(kind, 5), blind, blind)) == 30
    assert len(build(PoolSection("mmr", 5, text_weight=1.0), blind, blind)) == 30
    for kind in ("nearest_image", "nearest_both", "mix", "two_stage", "mmr"):
        with pytest.raises(LeverError, match="pictures are compared"):
            build(PoolSection(kind, 5), blind, blind)


def test_what_cannot_be_built_is_refused_with_what_to_do() -> None:
    own = make_set(12, per_image=3)
    largest = r"pool of 10 .* of 12 demonstrations only 9 .*pool\.size to at most 9"
    with pytest.raises(LeverError, match=largest):
        build(PoolSection(size=10), own, own)
    few = make_set(3, per_image=3)
    with pytest.raises(
        LeverError, match=r"only 0 .* picture; give more demonstrations"
    ):
        build(PoolSection(size=2), few, few)
    with pytest.raises(RecipeError, match="first_stage = 4: must be at least"):
        build(PoolSection("two_stage", 5, first_stage=4), own, own)
    with pytest.raises(UnknownName, match="did you mean 'nearest_text'"):
        build(PoolSection("nearest_txt", 5), own, own)
    assert build(PoolSection(size=4), some(own, slice(0)), own) == []


@pytest.mark.parametrize("damage", [np.nan, 3.0])
def test_vectors_that_do_not_fit_and_repeated_ids_are_refused(damage: float) -> None:
    items, vectors = make_set(30)
    text = vectors.text.copy()
    text[7, 2] = damage
    with pytest.raises(DataError, match="must be finite and of length 1"):
        Corpus.of_items(items, dataclasses.replace(vectors, text=text), RULES)
    with pytest.raises(DataError, match="29 items but 30 text vectors"):
        Corpus.of_items(items[1:], vectors, RULES)
    with pytest.raises(DataError, match="train-0 occurs twice"):
        forbidden_positions(items, [*items[:-1], items[0]])


def test_other_questions_on_the_query_picture_are_found_with_and_without_an_image_id() -> (
    None
):
    def item(name: str, image_id: str | None = None, image: str | None = None) -> Item:
        return Item(ItemId(name), "?", ("a",), "train", image=image, image_id=image_id)

    pictures = [item("d", image="x.png"), item("e", image="x.png")]
    items = [item("a", "p"), item("b"), item("c", "p"), *pictures, item("f")]
    strangers = [item("new", "p"), item("new", "q"), item("new"), item("b", "p")]
    found = forbidden_positions([items[0], items[1], items[3], *strangers], items)
    wanted = [[0, 2], [1], [3, 4], [0, 2], [], [], [0, 1, 2]]
    assert [positions.tolist() for positions in found] == wanted
    assert found[0] is found[3], "queries on one picture share one array"
