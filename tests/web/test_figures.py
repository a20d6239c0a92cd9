"""Charts draw the numbers of the record, and their tables hold the same."""

from __future__ import annotations

import json

import pytest

from leverplus.evaluate.record import Advice, EvaluationRecord, Misses
from leverplus.web import figures
from leverplus.web.figures import Figure, Series


def series(figure: Figure, name: str) -> Series:
    return next(own for own in figure.series if own.name == name)


def test_accuracies_have_their_intervals_and_every_arm_a_series_and_a_row(
    record: EvaluationRecord,
) -> None:
    figure = figures.accuracy_figure(record)
    own = record.arms["learned"]
    drawn = series(figure, "learned")
    assert (drawn.x, drawn.role) == ([1, 2], "learned")
    assert list(drawn.y) == [100 * own.shots[1], 100 * own.shots[2]]
    low, high = own.ci95[2] or (0.0, 0.0)
    assert drawn.ends[1] == (100 * low, 100 * high)
    cells = {row[0]: row[1:] for row in figure.table.rows}
    assert cells["learned"][0] == ""
    assert cells["learned"][2] == (
        f"{100 * own.shots[2]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    )
    assert cells["zero-shot"][1:] == ("", "")
    assert len(figure.series) == len(record.arms) == len(cells)
    assert not any(own.hidden for own in figure.series)


def test_the_arm_that_is_advised_is_shown_at_once(record: EvaluationRecord) -> None:
    arms = {**record.arms, "label_vote": record.arms["zero_shot"]}
    quiet = record.model_copy(update={"arms": arms})
    assert series(figures.accuracy_figure(quiet), "label vote").hidden
    told = quiet.model_copy(update={"advice": Advice(arm="label_vote")})
    assert not series(figures.accuracy_figure(told), "label vote").hidden


def test_what_is_within_noise_stands_apart_in_the_forest_and_its_table(
    record: EvaluationRecord,
) -> None:
    first = record.comparisons[0]
    vague = {"arm": "effects", "diff": 0.01, "ci95": (-0.1, 0.12), "p_adjusted": 0.8}
    rows = [*record.comparisons, first.model_copy(update=vague)]
    figure, other = figures.forest_figures(rows)
    assert (figure.id, other.id) == ("forest-1", "forest-2")
    clear, noise = figure.series
    places = sorted([*clear.y, *noise.y])
    assert places == list(range(len(record.comparisons)))
    assert figure.table.muted == set(noise.y)
    for place, (row, cells) in enumerate(
        zip(record.comparisons, figure.table.rows, strict=True)
    ):
        drawn = noise if row.within_noise else clear
        at = list(drawn.y).index(place)
        assert drawn.x[at] == 100 * row.diff
        assert drawn.ends[at] == (100 * row.ci95[0], 100 * row.ci95[1])
        assert float(cells[2]) == pytest.approx(100 * row.diff, abs=0.05)
        assert cells[7] == f"{row.helped} / {row.harmed}"
        assert cells[-1] == row.verdict
    assert other.table.rows[0][-1] == "within noise"
    assert [len(own.x) for own in other.series] == [0, 1]


def test_cost_stands_at_the_calls_that_training_took(record: EvaluationRecord) -> None:
    figure = figures.cost_figure(record)
    mean = record.arms["learned"].mean or 0.0
    assert series(figure, "learned").x == [1234]
    assert series(figure, "learned").y == [100 * mean]
    assert series(figure, "random").x == [0]
    assert ("learned", "1,234", f"{100 * mean:.1f}") in figure.table.rows


def test_regret_says_how_many_items_it_was_measured_on() -> None:
    parts = {"pool": 0.1, "count": 0.05, "choice": 0.2, "order": 0.0, "total": 0.35}
    figure = figures.regret_figure({1: Misses(n=36, **parts), 2: Misses(n=30, **parts)})
    assert figure.title == "Points lost, by where, n = 36 and 30"
    assert figure.table.rows[0] == (
        *("1 shot", "36", "10.0", "5.0", "20.0", "0.0", "35.0"),
    )
    assert [own.name for own in figure.series] == ["pool", "count", "choice", "order"]
    assert series(figure, "choice").y == [20.0, 20.0]


def test_the_gap_table_keeps_its_columns_where_an_arm_lacks_one(
    record: EvaluationRecord,
) -> None:
    closed = {"label_vote": {"mean": 0.5}, "learned": {"1": 0.25}, "empty": {}}
    table = figures.gap_table(record.model_copy(update={"gap_closed": closed}))
    assert table.head == ("who chooses", "0 shots", "1 shot", "2 shots", "mean")
    assert list(table.rows) == [
        ("label vote", "", "", "", "50 %"),
        ("learned", "", "25 %", "", ""),
    ]


LOG = [
    {"stage": "sft", "epoch": 1, "step": 10, "train/loss/total": 2.0, "val/reward": 1},
    {"stage": "sft", "epoch": 2, "step": 20, "train/loss/total": float("nan")},
    {"stage": "grpo", "epoch": 1, "step": 5, "train/loss/total": 1.0, "train/kl": 0.5},
]


def test_curves_leave_gaps_and_leave_out_what_was_not_measured_or_repeats() -> None:
    log = [{**line, "val/reward@1": line.get("val/reward")} for line in LOG]
    loss, dev, kl = figures.curve_figures(log, [])
    assert [own.title for own in (loss, dev)] == ["Loss", "Reward on dev"]
    assert (loss.series[0].x, loss.series[0].y) == ([1, 2, 3], [2.0, None, 1.0])
    assert [own.name for own in dev.series] == ["reward"], "the same curve once"
    assert loss.table.rows == [("sft 1", "2"), ("sft 2", ""), ("grpo 1", "1")]
    assert kl.series[0].y == [None, None, 0.5]
    json.dumps(figures.figure_values([loss, dev, kl]), allow_nan=False)


@pytest.mark.parametrize(
    ("finding", "row", "words"),
    [
        ({"evidence": {"stage": "grpo", "epoch": 1}}, 2, "grpo, epoch 1"),
        ({"epoch": 2}, 1, "sft, epoch 2"),
        ({"stage": "sft", "step": 15}, 1, "sft, epoch 2"),
        ({"stage": "rce", "epoch": 1}, None, ""),
        ({"evidence": "none", "epoch": True}, None, ""),
    ],
)
def test_a_finding_is_marked_where_it_fired(
    finding: dict[str, object], row: int | None, words: str
) -> None:
    assert figures.finding_row(finding, LOG) == row
    assert figures.fired_at(finding, LOG) == words
    marks = figures.curve_figures(LOG, [{}, finding])[0].marks
    assert [mark for mark in marks if mark[2] == "stage"] == [
        (0.5, "sft", "stage"),
        (2.5, "grpo", "stage"),
    ]
    fired = [mark for mark in marks if mark[2] == "finding"]
    assert fired == ([] if row is None else [(row + 1, "2", "finding")])


def test_histograms_stand_at_the_middle_of_their_bins() -> None:
    bins = {"edges": [0.0, 0.5, 1.0], "counts": [30, 42]}
    groups = {"sft": {"groups": 12, "sequences": 72, "flat": 3, "rewards": bins}}
    (figure,) = figures.group_figures(groups)
    assert figure.id == "rewards-sft"
    assert (figure.series[0].x, figure.series[0].y) == ([0.25, 0.75], [30, 42])
    assert figure.table.rows == [("0 to 0.5", "30"), ("0.5 to 1", "42")]
    table = figures.group_table(groups)
    assert list(table.rows) == [("sft", "12", "72", "3", "", "")]
