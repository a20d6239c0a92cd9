"""Which logged name means what: found in the table names.toml, held out or not, and only with values it can have."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from leverplus.errors import WrongUsage

Values = Mapping[str, float | None]

_HELD_OUT = re.compile(
    r"^(?:(?:eval|evaluation|val|valid|validation|dev|test|held out)(?:/|\s)|(?:验证集?|测试集?)\s*/?)\s*(?=\S)"
)
# train/reward, metrics/train/reward, train_reward (with a blank by now)
_TRAINING = re.compile(
    r"^(?:(?:train|training|metrics|global|extra|fields|logs?|stats|scalars|values|训练集?)\s*/\s*)+"
    r"|^(?:train|training)\s+|^训练集?"
)
_BY_ITS_END = {"reward", "kl", "entropy", "lr", "grad_norm", "clip_ratio/region_mean", "length", "accuracy"}
"""Metrics that are known by the end of a path, as in grpo_actor/update/entropy/avg; a loss may be that of anything."""
# parts of a path that make its end another thing: timing_s/reward, critic/lr, prompt/length, reward/std
_OTHER = re.compile(
    r"\b(?:tim(?:e|ing)|perf|speed|memory|config|args|critic|value|values|vf|rm|reference|ref|prompt|input|corr|std|var|min"
    r"|max|best|target|eval|evaluation|val|valid|validation|dev|test|held)\b"
)
PLACES = ("step", "epoch", "elapsed")
"""Names that say when a line was written; they are no metrics."""
HELD_OUT = {"loss/total": "val/loss", "reward": "val/reward", "accuracy": "val/accuracy", "test_reward": "val/reward",
            "group_reward": "val/group_reward"}  # fmt: skip
"""Metrics that are also read in their held-out form, and its name."""


@dataclass(frozen=True)
class LogLine:
    """One line of a log, under the names it was logged with; a value that was not finite is None.

    `resumed` says that the log tells, before this line, of a training that went on from a checkpoint.
    """

    values: Values
    resumed: bool = False


Runs = dict[str, list[LogLine]]
"""The lines of several trainings by label; one alone has an empty label."""


@dataclass(frozen=True)
class NameReading:
    """What was taken for what: ours -> the logged name, and logged names whose values the meaning cannot have."""

    names: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@cache
def table() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Our name -> (unit, names of others in their plain form), in the order of the file."""
    text = resources.files("leverplus.doctor.logs").joinpath("names.toml").read_text(encoding="utf-8")
    return {ours: (row["unit"], tuple(row["names"])) for ours, row in tomllib.loads(text).items()}


@cache
def _exact() -> dict[str, tuple[str, int]]:
    """A plain name -> our name and its place in the list, for names without wildcards."""
    found = {}
    for ours, (_, names) in table().items():
        for place, name in enumerate(names):
            if "*" not in name:
                found[name] = (ours, place)
    return found


def plain_name(name: str) -> str:
    """A logged name as the table writes names."""
    counted = re.sub(r"个数|数量", "数", name.strip().lower())  # two more ways to say a number of things
    return re.sub(r"\s*/\s*", "/", re.sub(r"[_\-.\s]+", " ", counted.replace("\\", "/")))


@cache
def meaning(name: str) -> tuple[str, int] | None:
    """Our name for a logged one and how telling that name is (0 is best); None where it means nothing to us."""
    cleaned = plain_name(name)
    bare = _TRAINING.sub("", cleaned)
    for tried in (cleaned, bare):
        found = _look_up(tried)
        if found is not None:
            return found
    rest = _HELD_OUT.sub("", bare, count=1)
    held = _look_up(rest) if rest != bare else None
    if held is None or held[0] not in HELD_OUT:
        return _by_its_end(bare)
    return HELD_OUT[held[0]], held[1]


def _by_its_end(path: str) -> tuple[str, int] | None:
    """What the last part of a path means, where the parts before do not make it another thing; any other name wins."""
    *before, last = re.sub(r"/(?:mean|avg|average)$", "", path).split("/")
    found = _look_up(last) if before else None
    if found is None or found[0] not in _BY_ITS_END or any(_OTHER.search(part) for part in before):
        return None
    return found[0], found[1] + 1000 * len(before)


def _look_up(name: str) -> tuple[str, int] | None:
    known = _exact().get(name)
    if known is not None:
        return (HELD_OUT["test_reward"], known[1]) if known[0] == "test_reward" else known
    for ours, (_, names) in table().items():
        for place, pattern in enumerate(names):
            if "*" in pattern and fnmatchcase(name, pattern):
                return (HELD_OUT[ours] if ours == "test_reward" else ours), place
    return None


def user_names(text: str | None) -> dict[str, str]:
    """`reward=my_reward,kl=k` -> {our name: logged name}; ours may be written with _ for /, or as others log them."""
    chosen: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        ours, sign, theirs = part.partition("=")
        if not sign or not theirs.strip():
            raise WrongUsage(f"--map wants NAME=COLUMN pairs with commas between them, not {part.strip()!r}")
        chosen[_ours(ours.strip())] = theirs.strip()
    return chosen


def _ours(name: str) -> str:
    known = {plain_name(own.replace("/", " ")): own for own in (*table(), *HELD_OUT.values()) if own != "test_reward"}
    found = known.get(plain_name(name.replace("/", " ")))
    meant = meaning(name) if found is None else None
    if found is None and meant is None:
        usual = "reward, kl, loss, val_loss, val_reward, accuracy, val_accuracy, entropy, lr, grad_norm, length, step"
        raise WrongUsage(f"--map: there is no metric {name!r}; metrics are {usual}")
    return found or (meant[0] if meant else "")


def read_names(lines: Sequence[LogLine], chosen: Mapping[str, str]) -> NameReading:
    """What every logged name is taken for; the user's choice first, then the most telling name of each meaning."""
    logged = list(dict.fromkeys(name for line in lines for name in line.values))
    chosen = {ours: _as_logged(name, logged) for ours, name in chosen.items()}
    missing = [name for name in chosen.values() if name not in logged]
    if missing:
        raise WrongUsage(f"--map: nothing is logged as {missing[0]!r}; logged are {', '.join(logged[:30])}")
    candidates: dict[str, list[tuple[int, str]]] = {}
    for name in logged:
        found = None if name in chosen.values() else meaning(name)
        if found is not None and found[0] not in chosen:
            candidates.setdefault(found[0], []).append((found[1], name))
    names, refused = dict(chosen), {}
    for ours, rivals in candidates.items():
        for _, name in sorted(rivals):
            if _possible(ours, [line.values[name] for line in lines if name in line.values]):
                names[ours] = name
                break
            refused[name] = ours
    return NameReading(names, refused)


def _as_logged(name: str, logged: Sequence[str]) -> str:
    """A name as the log writes it, where the user wrote fit.score for fit/score, or the like."""
    like = [own for own in logged if plain_name(own.replace("/", " ")) == plain_name(name.replace("/", " "))]
    return like[0] if name not in logged and len(like) == 1 else name


def _possible(ours: str, values: Sequence[float | None]) -> bool:
    """Whether the values have the unit of the metric."""
    known = [value for value in values if value is not None]
    unit = table()[ours][0] if ours in table() else "any"
    if unit == "share":
        return all(0.0 <= value <= 100.0 for value in known)  # as a share, or as a percentage
    return unit != "positive" or all(value >= 0.0 for value in known)


def scale_of(ours: str, values: Sequence[float | None]) -> float:
    """What to multiply the values by: 0.01 for a share that is written as a percentage."""
    base = next((own for own, held in HELD_OUT.items() if held == ours and own in table()), ours)
    if base not in table() or table()[base][0] != "share":
        return 1.0
    return 0.01 if any(value is not None and value > 1.0 + 1e-9 for value in values) else 1.0


def finite(value: object) -> float | None:
    """A logged number, None where it was not finite or no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
