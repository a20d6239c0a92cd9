"""How any reward with its weights is spread over measured sequences: of a store, an imported group file or RL data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.catalog import LEGACY, load
from leverplus.data.settings import read_section
from leverplus.data.types import Group, ItemId, Member, Pool
from leverplus.errors import DataError, RecipeError
from leverplus.learn.data.from_search import compete, component_values, evidence_of
from leverplus.learn.maths.signal import FLAT, is_right
from leverplus.learn.settings import RewardConfig
from leverplus.run.recipe import apply_override
from leverplus_doctor.quality import stored_scores
from leverplus_doctor.read import SQLITE

Array = NDArray[np.float64]
QUARTERS = ("smallest", "first quarter", "median", "third quarter", "largest")


def reward_of(mode: str, weights: Sequence[str]) -> RewardConfig:
    """The `[reward]` section of a mode and `key=value` weights; every problem is named."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for text in weights:
        apply_override(values, f"reward.{text.removeprefix('reward.')}", problems)
    section = {**values.get("reward", {}), "mode": mode}
    config = read_section(RewardConfig, section, "reward.", problems)
    if config is None or problems:
        raise RecipeError("--reward and --weights", problems)
    return config


def groups_of(path: Path) -> Iterable[Group]:
    """The groups that a file holds, one query at a time where it is a store."""
    if path.is_file() and path.read_bytes()[: len(SQLITE)] == SQLITE:
        return _of_store(path)
    groups: Iterable[Group] | None = load(LEGACY, "groups", "reader")(path)
    if groups is None:
        raise DataError(
            f"{path} holds no rewards of sequences; give a score store, RL data, or an imported folder"
        )
    return groups


def _of_store(path: Path) -> Iterator[Group]:
    for scores in stored_scores(path):
        query = scores[0].query
        shown: dict[ItemId, None] = {}
        members = []
        for score in scores:
            shown |= dict.fromkeys(score.demos)
            members.append(Member(score.demos, "store"))
        # a store does not know pools: what was shown stands in
        pool = Pool(query, tuple(shown), "store")
        yield Group(query, pool, tuple(members), tuple(scores))


class Spread:
    """The rewards of the lists that compete: those of equal length for one query. Single ones teach nothing."""

    def __init__(self, groups: Iterable[Group], config: RewardConfig) -> None:
        self.competing: list[Array] = []
        """Reward, whether right, and number of demonstrations of so many members, (members, 3)."""
        for group in groups:
            known = {score.demos: score for score in group.scores}
            for places in compete(group, same_shots=True):
                if len(places) < 2:
                    continue
                members = []
                scores = []
                right = []
                shots = []
                for place in places:
                    score = group.scores[place]
                    members.append(group.members[place])
                    scores.append(score)
                    right.append(is_right(score.accuracy))
                    shots.append(len(score.demos))
                evidence = evidence_of(members, scores, known)
                rewards = component_values(evidence, config.mode, config)  # (members,)
                self.competing.append(np.stack([rewards, right, shots], axis=1))

    def rows(self) -> dict[str, float]:
        """The measures in order; right and wrong only where there are some."""
        every = np.concatenate(self.competing)
        reward, right, shots = every.T
        flat = 0
        deviations = []
        for own in self.competing:
            flat += bool(np.ptp(own[:, 0]) <= FLAT)
            deviations.append(own[:, 0].std(ddof=1))
        rows: dict[str, float] = {
            "groups": len(self.competing),
            "sequences": len(every),
            "mean": float(reward.mean()),
            "standard deviation": float(reward.std()),
        }
        for place, name in enumerate(QUARTERS):
            rows[name] = float(np.quantile(reward, place / 4))
        rows["distinct values"] = len(np.unique(reward.round(9)))
        rows["groups without spread"] = flat
        rows["share of groups without spread"] = flat / len(self.competing)
        rows["mean deviation inside a group (n - 1)"] = float(np.mean(deviations))
        good = reward[right == 1]
        bad = reward[right == 0]
        for name, rewards in (("right", good), ("wrong", bad)):
            if len(rewards):
                rows[f"{name} sequences"] = len(rewards)
                rows[f"mean of {name} ones"] = float(rewards.mean())
        if len(good) and len(bad):
            rows["gap: least right - best wrong"] = float(good.min() - bad.max())
        for count in np.unique(shots).tolist():
            mean = reward[shots == count].mean()
            rows[f"mean at {count:.0f} shots"] = float(mean)
        return rows

    def histogram(self) -> list[tuple[float, float, int, int]]:
        """Even bins from the smallest to the largest reward: edges, right and wrong sequences in each."""
        reward, right, _ = np.concatenate(self.competing).T
        edges = np.histogram_bin_edges(reward, 20)
        good, _ = np.histogram(reward[right == 1], edges)
        bad, _ = np.histogram(reward[right == 0], edges)
        ends = edges.tolist()
        counts = zip(good.tolist(), bad.tolist(), strict=True)
        bins = zip(pairwise(ends), counts, strict=True)
        return [(*own, *both) for own, both in bins]


def measure_spread(path: Path, config: RewardConfig) -> Spread:
    """The spread of one reward over a file; a value that the reward needs and nobody measured is named."""
    spread = Spread(groups_of(path), config)
    if not spread.competing:
        raise DataError(
            f"{path} holds no two sequences of equal length for any query, so no reward can be compared"
        )
    return spread
