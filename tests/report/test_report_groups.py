from __future__ import annotations

import pytest

from leverplus.report.data import read_run_files
from leverplus.report.groups import group_figures, group_table


def test_every_stage_has_its_histograms_with_their_numbers_in_the_order_of_the_log(made) -> None:
    found = group_figures(read_run_files(made.folder).groups)
    names = ["rewards-sft", "spread-sft", "rewards-grpo", "spread-grpo", "advantages-grpo"]
    assert [figure.id for figure in found] == names
    rewards, advantages = found[0], found[-1]
    assert (rewards.data[0]["x"], rewards.data[0]["y"]) == ([0.25, 0.75], [30, 42])
    assert rewards.table.rows == [("0 to 0.5", "30"), ("0.5 to 1", "42")]
    assert advantages.data[0]["width"] == [2.0, 2.0]


def test_flat_groups_are_counted_with_their_share(made) -> None:
    assert group_table(read_run_files(made.folder).groups).rows[0] == ("sft", "12", "72", "3", "25.0 %", "2", "1")


@pytest.mark.parametrize("content", ["{", "[]", '{"rewards": 3}', '{"rewards": {"edges": [0], "counts": []}}'])
def test_damaged_counts_are_a_sentence(made, content) -> None:
    (made.folder / "groups-sft.json").write_text(content)
    files = read_run_files(made.folder)
    assert list(files.groups) == ["grpo"]
    assert "groups-sft.json" in files.missing["groups-sft.json"]


def test_counts_that_are_not_there_are_not_zero(made) -> None:
    found = {"sft": {"rewards": {"edges": [0, 1], "counts": [2]}, "spread": {"edges": [0, 1], "counts": [2]}}}
    assert group_table(found).rows == [("sft", "", "", "", "", "", "")]
