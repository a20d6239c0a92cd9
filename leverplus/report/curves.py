"""Training curves from the run log, with the doctor's findings marked where they fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.report.data import logged_number
from leverplus.report.figures import ACCENT, GREY, SPARE, Figure, chart_text
from leverplus.report.tables import Table

Line = Mapping[str, Any]

# Name of a chart -> its title, and the metrics of the run log that it draws.
TRAINING = {
    "loss": ("Loss", ("train/loss/total",)),
    "dev": ("Reward on dev", ("val/reward", *(f"val/reward@{n}" for n in range(9)))),
    "nll": ("Negative log-likelihood, nats per sequence", ("train/nll",)),
    "kl": ("KL, nats per sequence", ("train/kl", "train/kl_prox")),
    "entropy": ("Entropy per step, nats", ("train/entropy",)),
    "changed": ("Share of probe picks that changed in the epoch", ("train/picks/changed_frac",)),
}
REWARDS = {
    "rewards": ("Rewards of the groups", ("train/reward/oracle_in_group", "train/reward", "train/reward_std")),
    "flat": (
        "Flat groups, share",
        ("train/frac_reward_zero_std", "train/frac_reward_all_zero", "train/frac_reward_all_one"),
    ),
    "advantages": ("Advantages", ("train/adv/max", "train/adv/std", "train/adv/frac_active")),
}
FIRED = "#c62828"
COLOURS = (ACCENT, "#2f7fc1", "#2a9d8f", "#8f6bc4", "#c79a1b", GREY, *SPARE)


def curve_figures(
    groups: Mapping[str, tuple[str, Sequence[str]]], log: Sequence[Line], findings: Sequence[Line]
) -> list[Figure]:
    """One chart per group of metrics that the log holds, with their numbers; a curve that repeats another is left out.

    A finding is marked by its number in the list of findings, at the epoch it fired.
    """
    figures: list[Figure] = []
    drawn: list[list[float | None]] = []
    for name, (title, keys) in groups.items():
        columns: dict[str, list[float | None]] = {}
        for key in keys:
            column = [logged_number(line, key) for line in log]
            measured = any(value is not None for value in column)
            if measured and column not in drawn:
                columns[key] = column
        if not columns:
            continue
        drawn.extend(columns.values())
        data = [_curve(place, key, column, log) for place, (key, column) in enumerate(columns.items())]
        layout = {
            "xaxis": {
                "title": {"text": "epoch"},
                "zeroline": False,
                "range": [0.5, len(log) + 0.5],
                "tick0": 1,
                "dtick": -(-len(log) // 10),  # rounded up: about ten ticks
            },
            "yaxis": {},
            **_marks(log, findings),
        }
        figures.append(Figure(f"curve-{name}", title, data, layout, log_table(list(columns), log), height=290))
    return figures


def _curve(place: int, key: str, column: Sequence[float | None], log: Sequence[Line]) -> dict[str, Any]:
    starts = stage_starts(log)
    x: list[float | None] = []
    y: list[float | None] = []
    for row, value in enumerate(column):
        if row > 0 and row in starts:  # plotly draws a gap, here between stages, where a value is None
            x.append(None)
            y.append(None)
        x.append(row + 1)
        y.append(value)
    return {
        "name": key.removeprefix("train/").removeprefix("val/"),
        "x": x,
        "y": y,
        "mode": "lines+markers" if len(log) < 60 else "lines",
        "line": {"color": COLOURS[place % len(COLOURS)], "width": 2 if place == 0 else 1.3},
        "marker": {"size": 4},
    }


def _marks(log: Sequence[Line], findings: Sequence[Line]) -> dict[str, Any]:
    """Lines at the beginnings of stages, and at the epochs at which findings fired."""
    shapes, notes = [], []
    starts = stage_starts(log)
    if len(starts) > 1:
        for row, stage in starts.items():
            shapes.append(_upright(row + 0.5, GREY, "dot"))
            notes.append(_note(row + 0.5, chart_text(stage), "left", 1.0))
    fired: dict[int, list[str]] = {}
    for place, finding in enumerate(findings, 1):
        row_fired = finding_row(finding, log)
        if row_fired is not None:
            fired.setdefault(row_fired, []).append(str(place))
    for row, numbers in sorted(fired.items()):
        shapes.append(_upright(row + 1, FIRED, "dash"))
        note = _note(row + 1, ", ".join(numbers), "center", 0.0)
        # At the bottom, because the names of the stages stand at the top.
        note |= {"bgcolor": FIRED, "font": {"color": "#fff"}, "yanchor": "bottom"}
        notes.append(note)
    return {"shapes": shapes, "annotations": notes}


def _upright(x: float, colour: str, dash: str) -> dict[str, Any]:
    """A vertical line over the whole height of a chart."""
    line = {"color": colour, "width": 1.2, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _note(x: float, text: str, anchor: str, y: float) -> dict[str, Any]:
    return {"x": x, "y": y, "yref": "paper", "text": text, "showarrow": False, "xanchor": anchor, "yanchor": "top"}


def stage_starts(log: Sequence[Line]) -> dict[int, str]:
    """The rows of the log at which a stage begins, with its name."""
    starts: dict[int, str] = {}
    for row, line in enumerate(log):
        if row == 0 or line.get("stage") != log[row - 1].get("stage"):
            starts[row] = str(line.get("stage", ""))
    return starts


def finding_row(finding: Line, log: Sequence[Line]) -> int | None:
    """The row of the log at which a finding fired, from the stage, epoch or step it names; None if it names none."""
    evidence = finding.get("evidence")
    place: dict[str, Any] = dict(evidence) if isinstance(evidence, Mapping) else {}
    place.update(finding)
    stage, epoch, step = place.get("stage"), logged_number(place, "epoch"), logged_number(place, "step")
    if epoch is None and step is None:
        return None
    for row, line in enumerate(log):
        if stage is not None and line.get("stage") != stage:
            continue
        if epoch is not None and logged_number(line, "epoch") == epoch:
            return row
        if epoch is None and step is not None and (logged_number(line, "step") or 0.0) >= step:
            return row
    return None


def fired_at(finding: Line, log: Sequence[Line]) -> str:
    """Where a finding fired, in words; "" if it names no epoch of the log."""
    row = finding_row(finding, log)
    if row is None:
        return ""
    return f"{log[row].get('stage', '')}, epoch {log[row].get('epoch', row + 1)}"


def log_table(keys: Sequence[str], log: Sequence[Line]) -> Table:
    """The numbers behind curves, one row per epoch; a cell is empty where the log has no number."""
    rows = []
    for line in log:
        cells = [f"{line.get('stage', '')} {line.get('epoch', '')}"]
        for key in keys:
            value = logged_number(line, key)
            cells.append("" if value is None else f"{value:.4g}")
        rows.append(tuple(cells))
    names = [key.removeprefix("train/") for key in keys]
    return Table(("epoch", *names), rows)
