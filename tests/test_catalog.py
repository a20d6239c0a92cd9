"""The catalog: every row leads to a part, and a wrong name is answered with the nearest known one."""

from __future__ import annotations

import pytest

from leverplus import catalog
from leverplus.errors import UnknownName

TABLES = {
    name: table
    for name, table in vars(catalog).items()
    if name.isupper() and isinstance(table, dict)
}
ROWS = [(table, name) for table, rows in TABLES.items() for name in rows]


def test_the_tables_that_others_rely_on_are_there_and_filled() -> None:
    promised = "REWARDS ADVANTAGES LOSSES SAMPLERS POLICIES EMBEDDERS BACKENDS TASKS STAGES CHECKS"
    assert set(promised.split()) <= set(TABLES)
    assert all(TABLES.values())


@pytest.mark.parametrize(("table", "name"), ROWS, ids=lambda value: value)
def test_every_row_leads_to_a_part(table: str, name: str) -> None:
    part = catalog.load(TABLES[table], name, "part")
    assert part is not None
    module, attribute = TABLES[table][name].split(":")
    assert callable(part) or table == "POLICIES", (
        f"{module}:{attribute} cannot be called"
    )


@pytest.mark.parametrize(("table", "name"), ROWS, ids=lambda value: value)
def test_a_slip_of_the_pen_is_answered_with_a_known_name(table: str, name: str) -> None:
    with pytest.raises(UnknownName, match="did you mean '") as caught:
        catalog.load(TABLES[table], f"{name}x", "part")
    assert f"'{name}x'" in str(caught.value)


def test_the_nearest_name_is_the_one_offered() -> None:
    with pytest.raises(UnknownName) as caught:
        catalog.load(catalog.REWARDS, "gt_porb", "reward")
    assert (
        str(caught.value)
        == "there is no reward called 'gt_porb'; did you mean 'gt_prob'?"
    )


def test_a_name_that_resembles_nothing_is_answered_with_all_of_them() -> None:
    with pytest.raises(UnknownName) as caught:
        catalog.load(catalog.ADVANTAGES, "qqqqqq", "advantage")
    assert all(name in str(caught.value) for name in catalog.ADVANTAGES)
