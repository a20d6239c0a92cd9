"""Documented mistakes, made again on purpose where a recipe asks for them (`[mistakes]`); the doctor must find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from leverplus.policies.build import build_policy
from leverplus.recipe.mistakes import MistakesSection
from leverplus.training.checkpoint import load_checkpoint, load_weights, save_checkpoint, tensors_of
from leverplus.training.data.rows import Row
from leverplus.training.seeds import derive_seed
from leverplus.types import Group, Item, ItemId, Pool


def spoil_pools(
    section: MistakesSection, pools: Sequence[Pool], queries: Sequence[Item], demonstrations: Sequence[Item]
) -> list[Pool]:
    """Pools whose last candidate is on the query's picture, or the first two demonstrations for dev and test queries.

    The earlier code gave every query at test the first two rows of the training set.
    """
    fixed = tuple(item.id for item in demonstrations[:2])
    pictures: dict[str | None, list[ItemId]] = {}
    for item in demonstrations if section.own_picture else ():
        pictures.setdefault(item.image_id, []).append(item.id)
    spoilt = []
    for pool, query in zip(pools, queries, strict=True):
        if section.test_pool == "two_fixed" and query.split != "train":
            spoilt.append(Pool(pool.query, fixed, "two fixed demonstrations"))
            continue
        twin = next((item for item in pictures.get(query.image_id, ()) if item != query.id), None)
        spoilt.append(pool if twin is None else replace(pool, candidates=(*pool.candidates[:-1], twin)))
    return spoilt


def spoil_groups(section: MistakesSection, groups: Sequence[Group]) -> list[Group]:
    """Groups in which every member stands twice, as overlapping beams and low temperatures made them."""
    if section.members == "once":
        return list(groups)
    return [replace(group, members=group.members * 2, scores=group.scores * 2) for group in groups]


def spoil_rows(section: MistakesSection, rows: Sequence[Row]) -> list[Row]:
    """Rows whose labels are the parity of the positions, in a pair of candidates of their own at every step."""
    if section.labels == "position":
        return list(rows)
    spoilt = []
    for row in rows:
        pairs = 2 * torch.arange(row.sequences.shape[1])
        parity = torch.where(row.sequences >= 0, row.sequences % 2 + pairs, row.sequences)
        spoilt.append(replace(row, sequences=parity))
    return spoilt


def convert_checkpoint(section: MistakesSection, folder: Path) -> None:
    """Lose every second tensor of a checkpoint on the way to another format, leaving what a new selector starts with.

    The earlier converter renamed attention tensors to names that no model had, and the loader did not mind.
    """
    if section.conversion == "whole":
        return
    policy, description = load_checkpoint(folder)
    seed = derive_seed(0, "conversion")
    fresh = tensors_of(build_policy(policy.config, description["dims"], items=description["items"], seed=seed))
    kept = tensors_of(policy)
    for name in sorted(kept)[::2]:
        kept[name] = fresh[name]
    load_weights(policy, kept, str(folder))
    save_checkpoint(folder, policy, description["recipe_hash"], description.get("extra") or {})
