"""How any reward with its weights is spread over measured sequences: of a store, an imported group file or RL data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.catalog import LEGACY, load
from leverplus.errors import DataError, MissingFile, RecipeError
from leverplus.maths.signal import FLAT, is_right
from leverplus.recipe.recipe import apply_override
from leverplus.recipe.schema import read_section
from leverplus.recipe.training import RewardConfig
from leverplus.scoring.group_file import FORMAT, load_groups, read_json_value
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART
from leverplus.store.records import unseal
from leverplus.training.data.from_search import compete, component_values, evidence_of
from leverplus.types import Group, Member, Pool

SQLITE = b"SQLite format 3\x00"
BINS = 20  # bars of the histogram


def reward_of(mode: str, weights: Sequence[str]) -> RewardConfig:
    """The `[reward]` section of a mode and `key=value` weights; every problem is named."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for text in weights:
        apply_override(values, f"reward.{text.removeprefix('reward.')}", problems)
    config = read_section(RewardConfig, {**values.get("reward", {}), "mode": mode}, "reward.", problems)
    if config is None or problems:
        raise RecipeError("--reward and --weights", problems)
    return config


def groups_of(path: Path) -> Iterable[Group]:
    """The groups that a file holds, one query at a time where it is a store."""
    if path.is_dir():
        return load_groups(path)
    if _starts_like_a_store(path):
        return _of_store(path)
    value = read_json_value(path)
    if isinstance(value, Mapping) and value.get("format") == FORMAT:
        return load_groups(path)
    found: list[Group] | None = load(LEGACY, "groups", "reader")(value, str(path))
    if found is None:
        raise DataError(f"{path} holds no rewards of sequences; give a score store, RL data, or an imported folder")
    return found


def _starts_like_a_store(path: Path) -> bool:
    if not path.is_file():
        raise MissingFile(f"there is no file {path}")
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def _of_store(path: Path) -> Iterable[Group]:
    part = slice(CONTEXT_PART, CONTEXT_PART + QUERY_PART)  # of a key: rows come sorted by it, so queries together
    with ScoreStore(path, must_exist=True) as store:
        for context in store.contexts():
            for _, rows in groupby(store.rows(context), key=lambda row: row.key[part]):
                scores = tuple(unseal(context.digest, row) for row in rows)
                shown = tuple(dict.fromkeys(item for score in scores for item in score.demos))  # each once, in order
                pool = Pool(scores[0].query, shown, "store")  # a store does not know pools: what was shown stands in
                members = tuple(Member(score.demos, "store") for score in scores)
                yield Group(scores[0].query, pool, members, scores)


@dataclass
class Spread:
    """Rewards of members, right and wrong apart, and how far they lie apart inside the groups that compete."""

    right: list[float] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    flat: int = 0
    by_shots: dict[int, list[float]] = field(default_factory=dict)

    def add(self, group: Group, config: RewardConfig) -> None:
        """The lists of one query; those of equal length compete, single ones teach nothing and are left out."""
        known = {score.demos: score for score in group.scores}
        for indices in compete(group, same_shots=True):
            if len(indices) < 2:
                continue
            members = [group.members[place] for place in indices]
            scores = [group.scores[place] for place in indices]
            values = component_values(evidence_of(members, scores, known), config.mode, config)  # (members,)
            for value, score in zip(values.tolist(), scores, strict=True):
                own = self.right if is_right(score.accuracy) else self.wrong
                own.append(value)
            self.by_shots.setdefault(len(members[0].demos), []).extend(values.tolist())
            self.flat += bool(np.ptp(values) <= FLAT)
            self.deviations.append(float(values.std(ddof=1)))

    def rows(self) -> list[tuple[str, float | int]]:
        """The measures in order; right and wrong only where there are some."""
        every = np.array([*self.right, *self.wrong])
        quarters = np.quantile(every, (0.0, 0.25, 0.5, 0.75, 1.0))
        found: list[tuple[str, float | int]] = [
            ("groups", len(self.deviations)),
            ("sequences", len(every)),
            ("mean", float(every.mean())),
            ("standard deviation", float(every.std())),
            *zip(("smallest", "first quarter", "median", "third quarter", "largest"), quarters.tolist(), strict=True),
            ("distinct values", len(np.unique(every.round(9)))),
            ("groups without spread", self.flat),
            ("share of groups without spread", self.flat / len(self.deviations)),
            ("mean deviation inside a group (n - 1)", float(np.mean(self.deviations))),
        ]
        for name, values in (("right", self.right), ("wrong", self.wrong)):
            if values:
                found += [(f"{name} sequences", len(values)), (f"mean of {name} ones", float(np.mean(values)))]
        if self.right and self.wrong:
            found.append(("gap: least right - best wrong", min(self.right) - max(self.wrong)))
        found += [(f"mean at {shots} shots", float(np.mean(v))) for shots, v in sorted(self.by_shots.items())]
        return found

    def histogram(self) -> list[tuple[float, float, int, int]]:
        """Even bins from the smallest to the largest reward: edges, right and wrong sequences in each."""
        every = [*self.right, *self.wrong]
        edges = np.histogram_bin_edges(every, BINS)
        counts = [np.histogram(values, edges)[0].tolist() for values in (self.right, self.wrong)]
        return [(float(a), float(b), r, w) for a, b, r, w in zip(edges[:-1], edges[1:], *counts, strict=True)]


def measure_spread(path: Path, config: RewardConfig) -> Spread:
    """The spread of one reward over a file; a value that the reward needs and nobody measured is named."""
    found = Spread()
    for group in groups_of(path):
        found.add(group, config)
    if not found.deviations:
        raise DataError(f"{path} holds no two sequences of equal length for any query, so no reward can be compared")
    return found
