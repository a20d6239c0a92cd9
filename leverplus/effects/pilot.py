"""What a pilot says: what choosing can gain, whether training is worth its calls, and which demonstrations did best.

A pilot asks some demonstrations, drawn by chance, with some training queries, each with each, one demonstration a
prompt: scores (Q, D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leverplus.effects.shares import Floats, PredictedGain, VarianceShares, predicted_gain, variance_shares

SMALLEST_GAIN = 0.005
"""Gains that cannot exceed half a point are not worth training for."""


@dataclass(frozen=True)
class PilotVerdict:
    """The shares of variance, what effects promise, and the most that any choice among these demonstrations gains.

    `most` is the mean over queries of their best score less their mean score: it takes luck for knowledge and needs
    the answers, so no selector that chooses one of as many reaches it. Where no score of a query differed, nothing is
    known but that few queries can (at most 3 / Q of them, the rule of three).
    """

    shares: VarianceShares
    by_effect: PredictedGain
    most: float
    most_ci95: tuple[float, float]

    @property
    def worth_training(self) -> bool:
        """False only where even a choice that knows the answers would have gained less than half a point."""
        return self.most >= SMALLEST_GAIN


def judge_pilot(scores: ArrayLike, *, corpus: int, candidates: int, calls: int, seed: int = 0) -> PilotVerdict:
    """The verdict on scores (Q, D), for a corpus of demonstrations, candidates of a query and calls for training."""
    from leverplus.stats.bootstrap import mean_interval

    table = np.asarray(scores, np.float64)
    shares = variance_shares(table)
    room = room_to_choose(table)
    gain = _within(predicted_gain(shares, corpus=corpus, candidates=candidates, calls=calls, seed=seed), table.mean())
    interval = mean_interval(room) if room.any() else (0.0, min(1.0, 3.0 / len(room)))
    return PilotVerdict(shares, gain, float(room.mean()), interval)


def room_to_choose(scores: Floats) -> Floats:
    """What every query's best score has above its mean, (Q,), of scores (Q, choices)."""
    room: Floats = scores.max(axis=1) - scores.mean(axis=1)
    return room


def _within(found: PredictedGain, mean: float) -> PredictedGain:
    """The prediction takes effects as normal; no score is above 1, so nothing gains more than what is missing to it."""
    left = max(0.0, 1.0 - float(mean))
    low, high = (min(bound, left) for bound in found.ci95)
    return replace(found, gain=min(found.gain, left), ci95=(low, high))


def by_effect(scores: Floats, finer: Floats | None = None) -> NDArray[np.int64]:
    """The columns of scores (Q, D), best mean first; equal ones by the mean of `finer` scores, then by their place."""
    keys = [np.arange(scores.shape[1]), -scores.mean(axis=0).round(12)]
    if finer is not None:
        keys.insert(1, -finer.mean(axis=0))
    return np.lexsort(keys)  # the last key counts most


def different_answers_first(ranked: Sequence[int], answers: Sequence[str]) -> list[int]:
    """Columns of a ranking, the best of every answer first, then the second best of every answer, and so on."""
    seen: dict[str, int] = {}
    turn = []
    for place in ranked:
        turn.append(seen.get(answers[place], 0))
        seen[answers[place]] = turn[-1] + 1
    return [ranked[rank] for rank in np.argsort(turn, kind="stable").tolist()]
