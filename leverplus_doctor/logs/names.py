"""Which logged name means what, and from the lines of a log to a series that checks can read.

Names are found in the table names.toml, held out or not, and only with values they can have.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from leverplus.errors import WrongUsage
from leverplus_doctor.records import Epoch, Series

Values = Mapping[str, float | None]
Meaning = tuple[str, int]
"""Our name of a metric, and how telling the logged name is (0 is best)."""

_LISTED = Path(__file__).with_name("names.toml")
TABLE = tomllib.loads(_LISTED.read_text("utf-8"))
"""Our name -> the unit of its values and the names of others in their plain form."""
_EXACT: dict[str, Meaning] = {}
_PATTERNS: dict[str, Meaning] = {}
for _ours, _row in TABLE.items():
    for _place, _name in enumerate(_row["names"]):
        _known = _PATTERNS if "*" in _name else _EXACT
        _known.setdefault(_name, (_ours, _place))

PLACES = ("step", "epoch", "elapsed")
"""Names that say when a line was written; they are no metrics."""
_HELD_OUT = re.compile(
    r"^(?:(?:eval|evaluation|val|valid|validation|dev|test|held out)(?:/|\s)|(?:验证集?|测试集?)\s*/?)\s*(?=\S)"
)
_HELD_OUT_METRICS = {
    "loss/total": "val/loss",
    "reward": "val/reward",
    "accuracy": "val/accuracy",
    "group_reward": "val/group_reward",
    "val/reward": "val/reward",
}
# train/reward, metrics/train/reward, train_reward (with a blank by now)
_TRAINING = re.compile(
    r"^(?:(?:train|training|metrics|global|extra|fields|logs?|stats|scalars|values|训练集?)\s*/\s*)+"
    r"|^(?:train|training)\s+|^训练集?"
)
# known by the end of a path, as in grpo_actor/update/entropy/avg; a loss may be that of anything
_BY_ITS_END = {
    "reward",
    "kl",
    "entropy",
    "lr",
    "grad_norm",
    "clip_ratio/region_mean",
    "length",
    "accuracy",
}
# parts of a path that make its end another thing: timing_s/reward, critic/lr, prompt/length, reward/std
_OTHER = re.compile(
    r"\b(?:tim(?:e|ing)|perf|speed|memory|config|args|critic|value|values|vf|rm|reference|ref|prompt|input|corr|std|var|min"
    r"|max|best|target|eval|evaluation|val|valid|validation|dev|test|held)\b"
)
_BY_REWARDS = {
    "reward",
    "kl",
    "kl_prox",
    "loss/pg",
    "adv/std",
    "adv/max",
    "clip_ratio/region_mean",
    "ratio/mean",
    "frac_reward_zero_std",
    "val/reward",
}
"""Metrics that only a training by rewards has."""
_ENVIRONMENT = re.compile("rollout/|charts/|losses/|ep_rew_mean|episodic_return", re.I)
"""In names that trainings of agents in environments log."""


@dataclass(frozen=True)
class LogLine:
    """One line of a log, under the names it was logged with; a value that was not finite is None.

    `resumed` says that the log tells, before this line, of a training that went on from a checkpoint.
    """

    values: Values
    resumed: bool = False


_NO_METRIC: Meaning = ("", 0)
Runs = dict[str, list[LogLine]]
"""The lines of several trainings by label; one alone has an empty label."""


def plain_name(name: str) -> str:
    """A logged name as the table writes names.

    >>> plain_name("Train\\\\Mean_Reward")
    'train/mean reward'
    """
    plain = name.strip().lower().replace("\\", "/")
    # two more ways to say a number of things
    plain = re.sub(r"个数|数量", "数", plain)
    plain = re.sub(r"[_\-.\s]+", " ", plain)
    return re.sub(r"\s*/\s*", "/", plain)


@cache
def meaning(name: str) -> Meaning | None:
    """Our name for a logged one and how telling that name is; None where it means nothing to us.

    >>> meaning("eval/accuracy")
    ('val/accuracy', 0)
    """
    cleaned = plain_name(name)
    bare = _TRAINING.sub("", cleaned)
    found = _look_up(cleaned) or _look_up(bare)
    if found is not None:
        return found
    rest = _HELD_OUT.sub("", bare, count=1)
    # where nothing was taken away this was looked for before
    held = _look_up(rest)
    if held is not None and held[0] in _HELD_OUT_METRICS:
        return _HELD_OUT_METRICS[held[0]], held[1]
    # else by the last part of a path, where the parts before do not make it another thing; any other name wins
    path = re.sub(r"/(?:mean|avg|average)$", "", bare)
    *before, last = path.split("/")
    found = _look_up(last)
    if not before or found is None or _OTHER.search("/".join(before)):
        return None
    ours, place = found
    if ours not in _BY_ITS_END:
        return None
    return ours, place + 1000 * len(before)


def _look_up(name: str) -> Meaning | None:
    """A name of the table, or else the first pattern of the table that it fits."""
    if name in _EXACT:
        return _EXACT[name]
    for pattern, known in _PATTERNS.items():
        if fnmatchcase(name, pattern):
            return known
    return None


def user_names(text: str | None) -> dict[str, str]:
    """`reward=my_reward,kl=k` -> {our name: logged name}; ours may be written with _ for /, or as others log them."""
    chosen: dict[str, str] = {}
    for part in filter(str.strip, (text or "").split(",")):
        ours, _, theirs = part.partition("=")
        if not theirs.strip():
            raise WrongUsage(
                f"--map wants NAME=COLUMN pairs with commas between them, not {part.strip()!r}"
            )
        meant, _ = meaning(ours) or _NO_METRIC
        for name in reversed([*TABLE, *_HELD_OUT_METRICS.values()]):
            if _alike(name, ours):
                meant = name
        if not meant:
            raise WrongUsage(
                f"--map: there is no metric {ours.strip()!r}; metrics are reward, kl, loss, val_loss, val_reward, accuracy, "
                "val_accuracy, entropy, lr, grad_norm, length, step"
            )
        chosen[meant] = theirs.strip()
    return chosen


def _alike(left: str, right: str) -> bool:
    """Whether two names differ in their signs only: fit.score and fit/score."""
    return plain_name(left.replace("/", " ")) == plain_name(right.replace("/", " "))


def read_names(lines: Sequence[LogLine], chosen: Mapping[str, str]) -> dict[str, str]:
    """Ours -> the logged name that is taken for it: the user's choice, else the most telling one with such values."""
    logged: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.values.items():
            own = logged.setdefault(name, [])
            if value is not None:
                own.append(value)
    names = {}
    for ours, name in chosen.items():
        names[ours] = name
        if name in logged:
            continue
        like = [own for own in logged if _alike(own, name)]
        if not like:
            raise WrongUsage(
                f"--map: nothing is logged as {name!r}; logged are {', '.join([*logged][:30])}"
            )
        names[ours] = like[0]
    taken = set(names.values())
    rivals = []
    for name, values in logged.items():
        found = meaning(name)
        if found is None or name in taken:
            continue
        ours, place = found
        unit = _unit(ours)
        low = min(values, default=0)
        high = max(values, default=0)
        # a share may be written as a percentage
        if unit == "any" or (low >= 0.0 and (unit != "share" or high <= 100.0)):
            rivals.append((place, name, ours))
    for _, name, ours in sorted(rivals):
        names.setdefault(ours, name)
    return names


def _unit(ours: str) -> str:
    """Which values a metric can have: share, positive or any."""
    row = TABLE.get(ours.replace("val/accuracy", "accuracy"), {})
    return str(row.get("unit", "any"))


def finite(value: object) -> float | None:
    """A logged number, None where it was not finite or no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not math.isfinite(value):
        return None
    return float(value)


def series_from(
    lines: Sequence[LogLine], label: str, chosen: Mapping[str, str]
) -> tuple[Series | None, dict[str, str]]:
    """The series of a log and what its names were taken for; None where nothing in it means anything to us."""
    names = read_names(lines, chosen)
    metrics = {ours: name for ours, name in names.items() if ours not in PLACES}
    if not metrics:
        return None, names
    # a loss is the entropy with or without its sign
    if "entropy/loss" in metrics:
        metrics.setdefault("entropy", metrics["entropy/loss"])
    percentages = set()
    for ours, name in metrics.items():
        logged = [line.values.get(name) or 0.0 for line in lines]
        if _unit(ours) == "share" and max(logged) > 1.0 + 1e-9:
            percentages.add(ours)
    places, unit = _places(lines, names)
    epochs: list[Epoch] = []
    marks: list[int] = []
    before = LogLine({})
    for place, line in zip(places, lines, strict=True):
        resumed = line.resumed or _went_back(before, line, names)
        before = line
        values: dict[str, float | None] = {}
        for ours, name in metrics.items():
            value = line.values.get(name)
            if value is not None and ours in percentages:
                value *= 0.01
            if value is not None and ours == "entropy":
                value = abs(value)
            if name in line.values:
                values[ours] = value
        if not values:
            continue
        last = epochs[-1] if epochs else Epoch(None, {})
        apart = values.keys().isdisjoint(last.values)
        if last.epoch == place and not resumed and apart:
            # an evaluation logged beside its step
            epochs[-1] = Epoch(place, {**last.values, **values})
            continue
        if resumed and epochs:
            marks.append(len(epochs))
        epochs.append(Epoch(place, values))
    measured = {name for line in epochs for name in line.values}
    stage = _stage(measured, " ".join(names.values()))
    series = Series(stage, tuple(epochs), label, unit=unit, marks=tuple(marks))
    return series, names


def _places(
    lines: Sequence[LogLine], names: Mapping[str, str]
) -> tuple[list[int], str]:
    """The step (or else epoch) of every line and which of both it is; counted where neither is logged."""
    name = names.get("step") or names.get("epoch") or ""
    places: list[int] = []
    for line in lines:
        value = line.values.get(name)
        if value is None:
            # not logged on this line: one more than before
            value = places[-1] + 1 if places else 1
        places.append(int(value))
    if "step" in names or not name:
        return places, "step"
    if len(set(places)) < len(lines) / 2:
        # fractions of an epoch say less than the order of the lines
        return list(range(1, len(lines) + 1)), "step"
    return places, "epoch"


def _went_back(before: LogLine, line: LogLine, names: Mapping[str, str]) -> bool:
    """Whether the number of the step fell, or the clock began again."""
    for ours in ("step", "elapsed"):
        name = names.get(ours, "")
        earlier = before.values.get(name)
        later = line.values.get(name)
        if earlier is not None and later is not None and later < earlier:
            return True
    return False


def _stage(measured: set[str], logged: str) -> str:
    """What kind of training logged these metrics; agents in environments train by ppo."""
    if "pair/margin" in measured:
        return "dpo"
    agents = _ENVIRONMENT.search(logged) is not None
    by_agents = agents and "entropy" in measured and "loss/total" not in measured
    if not measured & _BY_REWARDS and not by_agents:
        return "sft"
    if agents:
        return "ppo"
    return "grpo"
