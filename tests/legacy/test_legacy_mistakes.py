"""Mistakes that a recipe asks for are made, and nothing else is touched."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from leverplus.legacy.mistakes import convert_checkpoint, spoil_groups, spoil_pools, spoil_rows
from leverplus.policies.build import build_policy
from leverplus.recipe.mistakes import MistakesSection
from leverplus.recipe.selection import PolicyConfig
from leverplus.training.checkpoint import load_checkpoint, save_checkpoint, tensors_of
from leverplus.training.data.rows import Row
from leverplus.types import Group, Item, ItemId, Member, Pool, Score

DEMOS = [Item(ItemId(f"d{n}"), "q?", ("a",), "train", image_id=f"p{n // 2}") for n in range(6)]
STRANGER = Item(ItemId("t0"), "q?", ("a",), "test", image_id="other")


def pool(query: Item) -> Pool:
    return Pool(query.id, tuple(item.id for item in DEMOS[2:5]), "random")


def test_without_a_mistake_everything_stays_as_it_is() -> None:
    healthy = MistakesSection()
    assert not healthy.any
    pools = [pool(DEMOS[0]), pool(STRANGER)]
    assert spoil_pools(healthy, pools, [DEMOS[0], STRANGER], DEMOS) == pools


def test_two_fixed_demonstrations_are_all_that_is_offered_at_test() -> None:
    spoilt = spoil_pools(
        MistakesSection(test_pool="two_fixed"), [pool(DEMOS[0]), pool(STRANGER)], [DEMOS[0], STRANGER], DEMOS
    )
    assert spoilt[0] == pool(DEMOS[0])
    assert spoilt[1].candidates == ("d0", "d1")
    assert spoilt[1].builder != spoilt[0].builder


def test_another_question_on_the_picture_of_a_query_can_be_among_its_candidates() -> None:
    section = MistakesSection(own_picture=True)
    one, other = spoil_pools(section, [pool(DEMOS[0]), pool(STRANGER)], [DEMOS[0], STRANGER], DEMOS)
    assert one.candidates == ("d2", "d3", "d1")
    assert other == pool(STRANGER)


def test_members_can_stand_twice() -> None:
    score = Score(ItemId("d0"), (ItemId("d2"),), "a", "a", 1.0, True, (), 1.0, 1.0, 1, 0.0)
    group = Group(ItemId("d0"), pool(DEMOS[0]), (Member((ItemId("d2"),), "random"),), (score,))
    (twice,) = spoil_groups(MistakesSection(members="twice"), [group])
    assert (len(twice.members), len(twice.scores)) == (2, 2)
    assert spoil_groups(MistakesSection(), [group]) == [group]


def test_labels_become_parities_that_stay_in_the_pool_and_never_repeat_in_a_list() -> None:
    sequences = torch.tensor([[4, 2], [3, 1], [5, -1]])
    row = Row(ItemId("d0"), 0, torch.arange(6), sequences, torch.ones(3), torch.full((3,), math.nan), torch.ones(3))
    (spoilt,) = spoil_rows(MistakesSection(labels="modulo"), [row])
    assert spoilt.sequences.tolist() == [[0, 2], [1, 3], [1, -1]]
    assert spoil_rows(MistakesSection(), [row])[0].sequences.tolist() == sequences.tolist()


def test_a_conversion_loses_every_second_tensor_and_still_loads(tmp_path: Path) -> None:
    policy = build_policy(PolicyConfig(hidden=8), {"image": 4, "text": 4, "answer": 4}, seed=3)
    save_checkpoint(tmp_path / "sft", policy, "hash", {"stage": "sft"})
    convert_checkpoint(MistakesSection(), tmp_path / "sft")
    before, description = load_checkpoint(tmp_path / "sft")
    convert_checkpoint(MistakesSection(conversion="half"), tmp_path / "sft")
    after, described = load_checkpoint(tmp_path / "sft")
    one, other = tensors_of(before), tensors_of(after)
    changed = [name for name in sorted(one) if not torch.equal(one[name], other[name])]
    assert changed
    assert set(changed) <= set(sorted(one)[::2])
    assert described == description
