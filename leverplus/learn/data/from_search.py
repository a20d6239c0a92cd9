"""Rows from searched groups: rewards are computed from stored scores, so another reward never asks the model again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from leverplus import catalog
from leverplus.data.types import Demos, Group, Member, Score
from leverplus.errors import DataError
from leverplus.learn.data.rows import Row
from leverplus.learn.data.search import best_of_each_length
from leverplus.learn.maths import rewards
from leverplus.learn.maths.rewards import Evidence, Weights
from leverplus.learn.policies.base import PAD, STOP, may_stop
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import RewardConfig

Array = NDArray[np.float64]
Expect = Callable[[Score], float]
"""The expected accuracy of a score's answer, for the reward of that name."""


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of scored groups, everywhere in a run with the same table, reward and rule of stopping."""

    table: ItemTable
    reward: RewardConfig
    stop: str = "never"
    max_shots: int = 8
    expect: Expect | None = None

    def __call__(
        self,
        groups: Sequence[Group],
        imitate: int = 0,
    ) -> list[Row]:
        """Rows of all lists of every group, or only of the `imitate` best of every length."""
        chosen = best_of_each_length(groups, imitate) if imitate else groups
        return rows_from_groups(
            chosen,
            self.table,
            self.reward,
            stop=self.stop,
            max_shots=self.max_shots,
            whole=groups,
            expect=self.expect,
        )


def weights_of(config: RewardConfig) -> Weights:
    """The weights a `[reward]` section names."""
    return Weights(
        hard=config.hard_weight,
        soft=config.soft_weight,
        rel=config.rel_weight,
        alpha=config.alpha,
        beta=config.beta,
        correctness=config.correctness,
        quality=config.quality,
        hard_by_shots=config.hard_by_shots,
        soft_by_shots=config.soft_by_shots,
    )


def evidence_of(
    members: Sequence[Member],
    scores: Sequence[Score],
    known: Mapping[Demos, Score],
    expect: Expect | None = None,
) -> list[Evidence]:
    """What a reward may look at, member by member: its own score, that without its last demonstration, its rivals'.

    `known` holds all scores of the query, in which the score without the last demonstration is looked up.
    """
    rivals = tuple(scores)
    found = []
    for member, score in zip(members, scores, strict=True):
        before = known.get(member.before) if member.demos else None
        expected = None if expect is None else expect(score)
        found.append(Evidence(score, before, member.log_mu, rivals, expected))
    return found


def component_values(
    evidence: Sequence[Evidence],
    mode: str,
    config: RewardConfig,
) -> Array:
    """The rewards (G,) of competing members under one mode, not normalised."""
    reward = catalog.load(catalog.REWARDS, mode, "reward")
    weights = weights_of(config)
    found = []
    for one in evidence:
        shots = len(one.score.demos)
        found.append(reward(one, weights.for_shots(shots)))
    return np.array(found, dtype=np.float64)


def compete(
    group: Group,
    same_shots: bool,
) -> list[list[int]]:
    """Which members of a group compete, by their places: those of equal length with each other, or all."""
    if not same_shots:
        return [list(range(len(group.members)))]
    lengths: dict[int, list[int]] = {}
    for index, member in enumerate(group.members):
        lengths.setdefault(len(member.demos), []).append(index)
    return [lengths[length] for length in sorted(lengths) if length > 0]


def rows_from_groups(
    groups: Sequence[Group],
    table: ItemTable,
    reward: RewardConfig,
    *,
    stop: str = "never",
    max_shots: int = 8,
    whole: Sequence[Group] | None = None,
    expect: Expect | None = None,
) -> list[Row]:
    """Rows of every group. Where the selector may stop (`select.stop`), a list shorter than `max_shots` ends in STOP.

    All lengths compete if it may stop at all; the empty list takes part only where it may be chosen.

    `whole` are the groups these were chosen from: the scores of prefixes are looked up there. `expect` is what the
    reward "expected_accuracy" takes for the accuracy of a score's answer.
    """
    same_shots = reward.compare == "same_shots"
    if reward.compare == "auto":
        same_shots = stop == "never"
    modes = reward.components or (reward.mode,)
    # first the components of all rows: adaptive weights look at how far each spreads over all of them
    pending: list[tuple[Group, list[int], list[Array]]] = []
    for group, source in zip(groups, whole or groups, strict=True):
        known = {score.demos: score for score in source.scores}
        for competing in compete(group, same_shots):
            places = []
            for place in competing:
                if group.members[place].demos or may_stop(stop, 0):
                    places.append(place)
            members = [group.members[place] for place in places]
            scores = [group.scores[place] for place in places]
            evidence = evidence_of(members, scores, known, expect)
            components = []  # each (G,)
            for mode in modes:
                components.append(component_values(evidence, mode, reward))
            pending.append((group, places, components))
    weights = list(reward.component_weights) or [1.0] * len(modes)
    if reward.adaptive and pending:
        spread = [components for _, _, components in pending]
        weights = rewards.adaptive_weights(spread, weights)
    rows = []
    for group, places, components in pending:
        values = rewards.combine(
            components,
            weights=weights,
            method=reward.normalise,
            clamp=reward.clamp,
        )  # (G,)
        rows.append(
            _row(
                group,
                places,
                values,
                table,
                stop=stop,
                max_shots=max_shots,
            )
        )
    return rows


def rows_by(
    groups: Sequence[Group],
    table: ItemTable,
    value: Callable[[Score], float],
    *,
    stop: str,
    max_shots: int,
) -> list[Row]:
    """Rows of groups whose answers nobody judged: the reward is what `value` says, the accuracy is NaN."""
    rows = []
    for group in groups:
        for places in compete(group, same_shots=True):
            values = np.array([value(group.scores[place]) for place in places])
            rows.append(
                _row(
                    group,
                    places,
                    values,
                    table,
                    stop=stop,
                    max_shots=max_shots,
                    judged=False,
                )
            )
    return rows


def _row(
    group: Group,
    places: Sequence[int],
    values: Array,
    table: ItemTable,
    *,
    stop: str,
    max_shots: int,
    judged: bool = True,
) -> Row:
    """The members of a group at these places, with these rewards, as tensors."""
    positions = {item: position for position, item in enumerate(group.pool.candidates)}
    sequences = []
    log_mu = []
    accuracy = []
    for place in places:
        member = group.members[place]
        sequence = []
        for demo in member.demos:
            if demo not in positions:
                raise DataError(
                    f"query {group.query}: demonstration {demo} is not in its pool; rebuild the groups"
                )
            sequence.append(positions[demo])
        if len(sequence) < max_shots and may_stop(stop, len(sequence)):
            sequence.append(STOP)
        sequences.append(sequence)
        log_mu.append(math.nan if member.log_mu is None else member.log_mu)
        accuracy.append(group.scores[place].accuracy if judged else math.nan)
    longest = max((len(sequence) for sequence in sequences), default=0)
    padded = [sequence + [PAD] * (longest - len(sequence)) for sequence in sequences]
    pool_rows = [table.row(item) for item in group.pool.candidates]
    shape = (len(sequences), longest)
    return Row(
        query=group.query,
        query_row=table.row(group.query),
        pool_rows=torch.tensor(pool_rows, dtype=torch.long),
        sequences=torch.tensor(padded, dtype=torch.long).reshape(shape),
        rewards=torch.tensor(values, dtype=torch.float32),
        log_mu=torch.tensor(log_mu, dtype=torch.float32),
        accuracy=torch.tensor(accuracy, dtype=torch.float32),
    )
