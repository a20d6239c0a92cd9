"""Agreement of checkpoints, on a real run."""

from __future__ import annotations

import re

import pytest

from leverplus.evaluation.predictions import read_predictions
from leverplus.experiment.opening import load_run
from leverplus.report.build import build_report
from leverplus.report.checkpoints import MOST, agreement_figure, compared_queries, epochs_shown

NAMES = ["sft-epoch001", "sft-epoch002", "sft-epoch003", "sft"]


@pytest.fixture(scope="module")
def run(tiny_run):
    return load_run(tiny_run.folder, tiny_run.store)


@pytest.fixture(scope="module")
def items(run):
    return [run.task.item(item) for item in read_predictions(run.folder / "predictions.parquet").items]


def test_a_checkpoint_agrees_wholly_with_itself_and_the_table_holds_what_is_drawn(run, items) -> None:
    figure = agreement_figure(run, run.folder / "checkpoints", NAMES, items, chosen="sft", shots=2)
    before, final = figure.data
    assert before["x"] == ["sft 1", "sft 2", "sft 3"]
    assert before["y"][0] is None
    assert all(0.0 <= value <= 1.0 for value in (*before["y"][1:], *final["y"]))
    assert max(final["y"]) == 1.0  # the one evaluated is one of these epochs
    cells = [row[4] for row in figure.table.rows]
    assert cells == [f"{value:.2f}" for value in final["y"]]


def test_the_evaluated_checkpoint_picks_what_the_predictions_say(run, items) -> None:
    from leverplus.policies.items import choose_demos
    from leverplus.training.checkpoint import load_checkpoint

    results = read_predictions(run.folder / "predictions.parquet")
    pools, table = run.pools(items)
    picks = choose_demos(load_checkpoint(run.folder / "checkpoints" / "sft")[0].eval(), table, pools, 2)
    assert picks == [prediction.demos for prediction in results.draws["learned"][2][0]]


def test_without_two_checkpoints_there_is_nothing_to_compare(run, items) -> None:
    folder = run.folder / "checkpoints"
    assert agreement_figure(run, folder, ["sft-epoch001", "sft"], items, chosen="sft", shots=2) is None
    assert agreement_figure(run, folder, NAMES, items, chosen="elsewhere", shots=2) is None


def test_many_checkpoints_are_thinned_from_the_first_to_the_last() -> None:
    names = [f"sft-epoch{n:03d}" for n in range(1, 201)]
    shown = epochs_shown([*names, "sft"])
    assert len(shown) == len(set(shown)) == MOST
    assert (shown[0], shown[-1]) == (names[0], names[-1])


def test_the_same_queries_are_compared_whatever_their_order(items) -> None:
    assert compared_queries(items[::-1]) == compared_queries(items)


def test_the_report_of_a_real_run_shows_groups_and_agreement(run, tmp_path) -> None:
    import shutil

    folder = shutil.copytree(run.folder, tmp_path / "run")
    text = build_report(load_run(folder, run.store_path)).read_text(encoding="utf-8")
    drawn = re.findall(r'data-figure="([\w-]+)"', text)
    assert {"agreement", "rewards-sft", "spread-sft"} <= set(drawn)
    assert len(text.encode()) < 5_000_000
    shutil.rmtree(folder / "checkpoints" / "sft-epoch001")
    shutil.rmtree(folder / "checkpoints" / "sft-epoch002")
    text = build_report(load_run(folder, run.store_path)).read_text(encoding="utf-8")
    assert "There are not two checkpoints whose picks could be compared." in text
