from __future__ import annotations

from leverplus.report.curves import REWARDS, TRAINING, curve_figures, finding_row, fired_at, log_table, stage_starts
from leverplus.report.data import logged_number

LOG = [
    {
        "stage": stage,
        "epoch": epoch,
        "step": 5 * epoch,
        "train/loss/total": value,
        "train/nll": value,
        "val/reward": 0.5,
    }
    for stage, epoch, value in (("sft", 1, 3.0), ("sft", 2, 2.0), ("grpo", 1, 1.0), ("grpo", 2, None))
]


def test_stages_follow_each_other_with_a_gap_between() -> None:
    loss = curve_figures(TRAINING, LOG, [])[0]
    assert loss.id == "curve-loss"
    assert loss.data[0]["x"] == [1, 2, None, 3, 4]
    assert loss.data[0]["y"] == [3.0, 2.0, None, 1.0, None]
    assert [note["text"] for note in loss.layout["annotations"]] == ["sft", "grpo"]
    assert stage_starts(LOG) == {0: "sft", 2: "grpo"}


def test_a_metric_nobody_logged_or_that_repeats_a_curve_has_no_chart() -> None:
    assert [figure.id for figure in curve_figures(TRAINING, LOG, [])] == ["curve-loss", "curve-dev"]
    assert curve_figures(REWARDS, LOG, []) == []
    assert [figure.table.head for figure in curve_figures(TRAINING, LOG, [])] == [
        ("epoch", "loss/total"),
        ("epoch", "val/reward"),
    ]


def test_a_finding_is_marked_where_it_fired() -> None:
    assert finding_row({"evidence": {"stage": "grpo", "epoch": 2}}, LOG) == 3
    assert finding_row({"evidence": {"step": 6}}, LOG) == 1
    assert finding_row({"stage": "grpo", "step": 1}, LOG) == 2
    assert finding_row({"evidence": {"stage": "sft", "epoch": 9}}, LOG) is None
    assert finding_row({"evidence": {"kl": 3.0}}, LOG) is None


def test_findings_are_marked_by_their_numbers_and_those_of_one_epoch_share_a_line() -> None:
    found = [{"evidence": {"stage": "grpo", "epoch": 2}}, {"evidence": {}}, {"stage": "grpo", "epoch": 2}]
    for figure in curve_figures(TRAINING, LOG, found):
        marks = [shape for shape in figure.layout["shapes"] if shape["line"]["dash"] == "dash"]
        assert [mark["x0"] for mark in marks] == [4]
        assert figure.layout["annotations"][-1]["text"] == "1, 3"
    assert [fired_at(finding, LOG) for finding in found] == ["grpo, epoch 2", "", "grpo, epoch 2"]


def test_a_missing_number_is_no_zero() -> None:
    assert logged_number({"a": None}, "a") is None
    assert logged_number({}, "a") is None
    assert logged_number({"a": True}, "a") is None
    assert logged_number({"a": 0}, "a") == 0.0
    assert log_table(["train/loss/total"], LOG).rows[-1][1] == ""
