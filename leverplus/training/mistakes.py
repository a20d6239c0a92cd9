"""Where training asks for the mistakes of `[mistakes]`; `legacy/mistakes.py` makes them, where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leverplus.catalog import LEGACY, load
from leverplus.recipe.mistakes import MistakesSection
from leverplus.training.data.rows import Row
from leverplus.types import Group, Item, Pool


def spoil_pools(
    section: MistakesSection, pools: Sequence[Pool], queries: Sequence[Item], demonstrations: Sequence[Item]
) -> list[Pool]:
    """The pools as `mistakes.test_pool` and `mistakes.own_picture` leave them."""
    spoilt: list[Pool] = load(LEGACY, "spoil_pools", "mistake")(section, pools, queries, demonstrations)
    return spoilt


def spoil_groups(section: MistakesSection, groups: Sequence[Group]) -> list[Group]:
    """The groups as `mistakes.members` leaves them."""
    spoilt: list[Group] = load(LEGACY, "spoil_groups", "mistake")(section, groups) if section.any else list(groups)
    return spoilt


def spoil_rows(section: MistakesSection, rows: Sequence[Row]) -> list[Row]:
    """The rows of sft as `mistakes.labels` leaves them."""
    spoilt: list[Row] = load(LEGACY, "spoil_rows", "mistake")(section, rows) if section.any else list(rows)
    return spoilt


def convert_checkpoint(section: MistakesSection, folder: Path) -> None:
    """The checkpoint as `mistakes.conversion` leaves it."""
    if section.any:
        load(LEGACY, "convert_checkpoint", "mistake")(section, folder)
