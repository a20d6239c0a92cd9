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
FIRED = "#c62828"
COLOURS = (ACCENT, "#2f7fc1", "#2a9d8f", "#8f6bc4", "#c79a1b", GREY, *SPARE)


def curve_figures(
    groups: Mapping[str, tuple[str, Sequence[str]]], log: Sequence[Line], findings: Sequence[Line]
) -> list[Figure]:
    """One chart a group of metrics that the log holds, with their numbers; one that would repeat another is left out.

    A finding is marked by its number in the list of findings, at the epoch it fired.
    """
    figures: list[Figure] = []
    drawn: list[list[float | None]] = []
    for name, (title, keys) in groups.items():
        columns = {key: [number(line, key) for line in log] for key in keys}
        columns = {key: column for key, column in columns.items() if any(value is not None for value in column)}
        columns = {key: column for key, column in columns.items() if column not in drawn}
        if columns:
            drawn.extend(columns.values())
            data = [_curve(place, key, column, log) for place, (key, column) in enumerate(columns.items())]
            layout = {
                "xaxis": {
                    "title": {"text": "epoch"},
                    "zeroline": False,
                    "range": [0.5, len(log) + 0.5],
                    "tick0": 1,
                    "dtick": -(-len(log) // 10),
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
        if row > 0 and row in starts:  # a gap between stages
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
            notes.append(_note(row + 0.5, plain(stage), "left", 1.0))
    fired: dict[int, list[str]] = {}
    for place, finding in enumerate(findings, 1):
        row_fired = finding_row(finding, log)
        if row_fired is not None:
            fired.setdefault(row_fired, []).append(str(place))
    for row, numbers in sorted(fired.items()):
        shapes.append(_upright(row + 1, FIRED, "dash"))
        badge = {"bgcolor": FIRED, "font": {"color": "#fff"}, "yanchor": "bottom"}  # below, clear of the stages' names
        notes.append({**_note(row + 1, ", ".join(numbers), "center", 0.0), **badge})
    return {"shapes": shapes, "annotations": notes}


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


def fired_at(finding: Line, log: Sequence[Line]) -> str:
    """Where a finding fired, in words; "" if it names no epoch of the log."""
    row = finding_row(finding, log)
    return "" if row is None else f"{log[row].get('stage', '')}, epoch {log[row].get('epoch', row + 1)}"


def log_table(keys: Sequence[str], log: Sequence[Line]) -> Table:
    """The numbers behind curves, an epoch a row; empty where there is none."""
    rows = []
    for line in log:
        values = (number(line, key) for key in keys)
        rows.append(
            (f"{line.get('stage', '')} {line.get('epoch', '')}", *("" if v is None else f"{v:.4g}" for v in values))
        )
    return Table(("epoch", *(key.removeprefix("train/") for key in keys)), rows)
