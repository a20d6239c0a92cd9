"""From the lines of a log to a series that checks can read: names translated, places and resumptions found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leverplus.doctor.logs.names import PLACES, LogLine, NameReading, read_names, scale_of
from leverplus.doctor.records import Epoch, Series

POLICY_GRADIENT = {"reward", "kl", "kl_prox", "loss/pg", "adv/std", "adv/max", "clip_ratio/region_mean", "ratio/mean",
                   "frac_reward_zero_std", "val/reward"}  # fmt: skip
"""Metrics that only a training by rewards has."""
ENVIRONMENT = ("rollout/", "charts/", "losses/", "ep_rew_mean", "episodic_return")
"""Beginnings of names that trainings of agents in environments log."""


def series_from(lines: Sequence[LogLine], label: str, chosen: Mapping[str, str]) -> tuple[Series | None, NameReading]:
    """The series of a log and what its names were taken for; None where nothing in it means anything to us."""
    reading = read_names(lines, chosen)
    metrics = {ours: name for ours, name in reading.names.items() if ours not in PLACES}
    if not metrics:
        return None, reading
    if "entropy/loss" in metrics and "entropy" not in metrics:
        metrics["entropy"] = metrics["entropy/loss"]  # a loss is the entropy with or without its sign
    scales = {}
    for ours, name in metrics.items():
        scales[ours] = scale_of(ours, [line.values.get(name) for line in lines])
    places, unit = _places(lines, reading)
    epochs: list[Epoch] = []
    marks: list[int] = []
    for place, line, before in zip(places, lines, [None, *lines[:-1]], strict=True):
        resumed = line.resumed or (before is not None and _went_back(before, line, reading))
        values = {}
        for ours, name in metrics.items():
            if name in line.values:
                values[ours] = _scaled(ours, line.values[name], scales[ours])
        if epochs and values and epochs[-1].epoch == place and not resumed and not set(values) & set(epochs[-1].values):
            epochs[-1] = Epoch(place, {**epochs[-1].values, **values})  # an evaluation logged beside its step
        elif values:
            if resumed and epochs:
                marks.append(len(epochs))
            epochs.append(Epoch(place, values))
    found = {name for line in epochs for name in line.values}
    series = Series(_stage(found, reading), tuple(epochs), label, unit=unit, marks=tuple(marks))
    return series, reading


def _scaled(ours: str, value: float | None, scale: float) -> float | None:
    if value is None:
        return None
    return abs(value) if ours == "entropy" else value * scale


def _places(lines: Sequence[LogLine], reading: NameReading) -> tuple[list[int], str]:
    """The step (or else epoch) of every line and which of both it is; counted where neither is logged."""
    name = reading.names.get("step") or reading.names.get("epoch")
    places: list[int] = []
    for line in lines:
        value = None if name is None else line.values.get(name)
        if value is None:  # not logged on this line: one more than before
            value = places[-1] + 1 if places else 1
        places.append(int(value))
    if name is not None and "step" not in reading.names and len(set(places)) < len(lines) / 2:
        return list(range(1, len(lines) + 1)), "step"  # fractions of an epoch say less than the order of the lines
    return places, "epoch" if name is not None and "step" not in reading.names else "step"


def _went_back(before: LogLine, line: LogLine, reading: NameReading) -> bool:
    """Whether the number of the step fell, or the clock began again."""
    for ours in ("step", "elapsed"):
        name = reading.names.get(ours)
        earlier, later = (None, None) if name is None else (before.values.get(name), line.values.get(name))
        if earlier is not None and later is not None and later < earlier:
            return True
    return False


def _stage(found: set[str], reading: NameReading) -> str:
    """What kind of training logged these metrics; agents in environments train by ppo."""
    if "pair/margin" in found:
        return "dpo"
    names = [name.lower() for name in reading.names.values()]
    agents = any(part in name for name in names for part in ENVIRONMENT)
    if not found & POLICY_GRADIENT and not (agents and "entropy" in found and "loss/total" not in found):
        return "sft"
    return "ppo" if agents else "grpo"
