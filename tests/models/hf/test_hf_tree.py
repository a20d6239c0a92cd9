"""The tree of prompts: what is shared is held once, every prompt is found again along its branch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leverplus.models.hf.reader import share_cost
from leverplus.models.hf.tree import Node, Prompt, grow, picture_codes, picture_places


def prompt(codes: Sequence[int]) -> Prompt:
    return Prompt(np.array(codes, dtype=np.int64), np.arange(len(codes))[None], ())


def paths(
    nodes: Sequence[Node], before: tuple[Node, ...] = ()
) -> dict[int, tuple[Node, ...]]:
    found: dict[int, tuple[Node, ...]] = {}
    for node in nodes:
        if node.prompt is not None:
            assert not node.children
            found[node.prompt] = (*before, node)
        found |= paths(node.children, (*before, node))
    return found


def shape(nodes: Sequence[Node]) -> list[tuple[int, int, int | None]]:
    return [(node.start, node.stop, node.prompt) for node in nodes]


def test_a_tree_by_hand() -> None:
    head, one, other = [7] * 4, [1, 2, 3, 4], [5, 6, 8, 9]
    prompts = [
        prompt(head + one + [10, 11]),
        prompt(head + one + [12]),
        prompt(head + other + [10]),
        prompt([3, 3]),
    ]
    roots = grow(prompts, grain=4)
    assert shape(roots) == [(0, 4, None), (0, 2, 3)]
    below = roots[0].children
    assert shape(below) == [(4, 8, None), (4, 9, 2)]
    assert shape(below[0].children) == [(8, 10, 0), (8, 9, 1)]
    spent = [0.0] * 4
    assert sorted(share_cost(roots, spent)) == [0, 1, 2, 3]
    assert spent == [4 / 3 + 2 + 2, 4 / 3 + 2 + 1, 4 / 3 + 5, 2]


def test_different_pictures_never_look_alike() -> None:
    one, other = picture_codes(0, 30), picture_codes(1, 30)
    assert not set(one) & set(other)
    slots, places = picture_places(np.concatenate([one, other]))
    assert slots.tolist() == [0] * 30 + [1] * 30
    assert places.tolist() == [*range(30), *range(30)]
    assert len(grow([prompt([5, *one, 6]), prompt([5, *other, 6])], grain=4)) == 2


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=12
    ),
    st.integers(1, 4),
)
def test_every_prompt_is_found_along_its_branch_and_branches_pay(
    rows: list[list[int]], grain: int
) -> None:
    prompts = [prompt(row) for row in rows]
    roots = grow(prompts, grain=grain)
    found = paths(roots)
    assert sorted(found) == list(range(len(rows)))
    for number, path in found.items():
        joined: list[int] = []
        for node in path:
            joined += prompts[node.example].codes[node.start : node.stop].tolist()
        assert joined == rows[number]
        assert path[-1].length >= 1
        assert all(node.length >= grain for node in path[:-1])
        assert all(len(node.children) >= 2 for node in path[:-1])
    spent = [0.0] * len(rows)
    share_cost(roots, spent)
    nodes = {id(node): node for path in found.values() for node in path}
    computed = sum(node.length for node in nodes.values())
    assert np.isclose(sum(spent), computed)
    assert computed <= sum(map(len, rows))
