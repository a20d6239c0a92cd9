"""Training curves from the run log, with the doctor's findings marked where they fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.report.data import number
from leverplus.report.figures import ACCENT, GREY, SPARE, Figure, plain
from leverplus.report.tables import Table

Line = Mapping[str, Any]

TRAINING = {
    "loss": ("Loss", ("train/loss/total",)),
    "dev": ("Reward on dev", ("val/reward", *(f"val/reward@{n}" for n in range(9)))),
    "nll": ("Negative log-likelihood, nats a sequence", ("train/nll",)),
    "kl": ("KL, nats a sequence", ("train/kl", "train/kl_prox")),
    "entropy": ("Entropy of a step, nats", ("train/entropy",)),
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
COLOURS = (ACCENT, "#2f7fc1", "#2a9d8f", "#8f6bc4", "#c79a1b", GREY, *SPARE)


def curve_figures(
    groups: Mapping[str, tuple[str, Sequence[str]]], log: Sequence[Line], findings: Sequence[Line]
) -> list[Figure]:
    """One chart a group of metrics that the log holds; a chart that would repeat another's curve is left out."""
    figures: list[Figure] = []
    drawn: list[list[float | None]] = []
    for name, (title, keys) in groups.items():
        columns = {key: [number(line, key) for line in log] for key in keys}
        columns = {key: column for key, column in columns.items() if any(value is not None for value in column)}
        columns = {key: column for key, column in columns.items() if column not in drawn}
        if columns:
            drawn.extend(columns.values())
            figures.append(_curves(name, title, columns, log, findings))
    return figures


def _curves(
    name: str, title: str, columns: Mapping[str, list[float | None]], log: Sequence[Line], findings: Sequence[Line]
) -> Figure:
    epochs = list(range(1, len(log) + 1))
    starts = stage_starts(log)
    data = []
    for place, (key, column) in enumerate(columns.items()):
        x: list[float | None] = []
        y: list[float | None] = []
        for epoch, value in zip(epochs, column, strict=True):
            if epoch > 1 and epoch - 1 in starts:  # a gap between stages
                x.append(None)
                y.append(None)
            x.append(epoch)
            y.append(value)
        data.append(
            {
                "name": key.removeprefix("train/").removeprefix("val/"),
                "x": x,
                "y": y,
                "mode": "lines+markers" if len(log) < 60 else "lines",
                "line": {"color": COLOURS[place % len(COLOURS)], "width": 2 if place == 0 else 1.3},
                "marker": {"size": 4},
            }
        )
    shapes, notes = [], []
    if len(starts) > 1:
        for row, stage in starts.items():
            shapes.append(_upright(row + 0.5, GREY, "dot"))
            notes.append(_note(row + 0.5, plain(stage), "left", 1.0))
    for finding in findings:
        fired = finding_row(finding, log)
        if fired is not None:
            shapes.append(_upright(fired + 1, "#c62828", "dash"))
            notes.append(_note(fired + 1, plain(str(finding.get("code", "finding"))), "right", 0.9))
    layout = {
        "xaxis": {"title": {"text": "epoch"}, "zeroline": False, "range": [0.5, len(log) + 0.5]},
        "yaxis": {},
        "shapes": shapes,
        "annotations": notes,
    }
    return Figure(f"curve-{name}", title, data, layout, height=290)


def _upright(x: float, colour: str, dash: str) -> dict[str, Any]:
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
    place: dict[str, Any] = {**(evidence if isinstance(evidence, Mapping) else {}), **finding}
    stage, epoch, step = place.get("stage"), number(place, "epoch"), number(place, "step")
    if epoch is None and step is None:
        return None
    for row, line in enumerate(log):
        if stage is not None and line.get("stage") != stage:
            continue
        if epoch is not None and number(line, "epoch") == epoch:
            return row
        if epoch is None and step is not None and (number(line, "step") or 0.0) >= step:
            return row
    return None


def log_table(groups: Mapping[str, tuple[str, Sequence[str]]], log: Sequence[Line]) -> Table:
    """The numbers behind the curves, an epoch a row."""
    keys = [key for _, names in groups.values() for key in names if any(number(line, key) is not None for line in log)]
    rows = []
    for line in log:
        values = (number(line, key) for key in keys)
        rows.append(
            (f"{line.get('stage', '')} {line.get('epoch', '')}", *("" if v is None else f"{v:.4g}" for v in values))
        )
    return Table(("epoch", *(key.removeprefix("train/") for key in keys)), rows)
