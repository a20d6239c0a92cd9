"""Rewards: turn the measured score of a prompt into the one number that training maximises.

Rewards are computed on read from stored scores, so a new reward never asks the model again. Every reward takes the
evidence of one prompt and the weights, and is clipped to [-5, 5]. A field that nobody measured raises `NotMeasured`.
In the formulas (docs/rewards.md has them as a table) h is `correct` (0 or 1), s the official accuracy, p `gt_prob`,
r the relevance of a wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leverplus.data.types import Score
from leverplus.errors import NotMeasured

LIMIT = 5.0  # no mode reaches it with weights up to 1, except -log mu in `legacy`, which has no bound of its own
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """All that is known about one prompt: its score, the score of its prefix, its log-density, its group.

    `prefix` is the score without the demonstration that was added last; `rivals` are all scores of the group, this one
    included; `expected` is the accuracy that a model trained on the labels of other questions predicts for its answer.
    """

    score: Score
    prefix: Score | None = None
    log_mu: float | None = None
    rivals: tuple[Score, ...] = ()
    expected: float | None = None

    @property
    def gain(self) -> float:
        """How much the last demonstration added to gt_prob; raises when the prefix was not scored."""
        if self.prefix is None:
            raise NotMeasured(
                f"query {self.score.query}: the prompt without its last demonstration was not scored, so its gain is "
                "unknown; score prefixes, or use a reward that needs none, such as reward.mode = 'hard_plus_soft'"
            )
        return self.score.gt_prob - self.prefix.gt_prob


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of a reward. `alpha`, `beta`, `correctness` and `quality` belong to `legacy` and `hybrid`.

    `hard_by_shots` and `soft_by_shots` are factors for prompts of 1, 2, ... demonstrations; the last holds for more.
    """

    hard: float = 1.0
    soft: float = 1.0
    rel: float = 0.1
    alpha: float = 0.5
    beta: float = 1.0
    correctness: str = "01"
    quality: str = "gain"
    hard_by_shots: tuple[float, ...] = ()
    soft_by_shots: tuple[float, ...] = ()

    def for_shots(self, shots: int) -> Weights:
        """The weights of a prompt with this many demonstrations (0 counts as 1)."""
        return replace(
            self,
            hard=self.hard * _factor(self.hard_by_shots, shots),
            soft=self.soft * _factor(self.soft_by_shots, shots),
        )


def _factor(
    factors: tuple[float, ...],
    shots: int,
) -> float:
    if not factors:
        return 1.0
    position = min(
        max(shots, 1), len(factors)
    )  # counted from 1; longer prompts take the last factor
    return factors[position - 1]


Reward = Callable[[Evidence, Weights], float]


def _clip(value: float) -> float:
    return min(max(value, -LIMIT), LIMIT)


def hard_plus_soft(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_h h + w_s s."""
    score = evidence.score
    return _clip(weights.hard * score.correct + weights.soft * score.accuracy)


def hard_plus_soft_v2(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """2 w_h h + w_s s: a wider gap between right and wrong."""
    return hard_plus_soft(evidence, replace(weights, hard=2.0 * weights.hard))


def separated(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """2 w_h + w_s s when correct, w_s s when not; the same numbers as `hard_plus_soft_v2` since h is 0 or 1."""
    base = 2.0 * weights.hard if evidence.score.correct else 0.0
    return _clip(base + weights.soft * evidence.score.accuracy)


def hard_only(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_h h."""
    return _clip(weights.hard * evidence.score.correct)


def soft_only(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_s s: the official accuracy."""
    return _clip(weights.soft * evidence.score.accuracy)


def expected_accuracy(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_s e: the accuracy predicted for the answer from labels of other questions, free of these annotators' noise."""
    if evidence.expected is None:
        raise NotMeasured(
            f"query {evidence.score.query}: no model of expected accuracy was trained on the labels; use reward.mode = "
            "'soft_only' outside of a run"
        )
    return _clip(weights.soft * evidence.expected)


def gt_prob(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_s p: the probability of the reference answers, dense even where accuracy ties."""
    return _clip(weights.soft * evidence.score.gt_prob)


def log_prob(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_s log(p / largest p of the group): softmax of it gives the shares of p, also where all p are tiny (long answers).

    These are the targets of REPLUG (Shi et al. 2023) and LLM-R (Wang et al. 2023).
    """
    best = max((rival.gt_prob for rival in evidence.rivals), default=0.0)
    own = evidence.score.gt_prob
    if best <= 0.0:
        return 0.0
    return _clip(weights.soft * math.log(own / best)) if own > 0.0 else -LIMIT


def choice_prob(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_s q, q the probability of the true label among all labels, which decides a classification."""
    return _clip(weights.soft * evidence.score.choice_prob)


def hard_plus_gtprob(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_h h + w_s p."""
    return _clip(
        weights.hard * evidence.score.correct + weights.soft * evidence.score.gt_prob
    )


def hard01_plus_gtprob_separated(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """2 w_h + w_s p when correct, w_s p when not."""
    return hard_plus_gtprob(evidence, replace(weights, hard=2.0 * weights.hard))


def hard_plus_gtprob_plus_rel(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """w_h h + w_s p + w_r (1 - h) r: wrong answers are told apart by how near they came."""
    score = evidence.score
    relevance = weights.rel * (1.0 - score.correct) * score.relevance
    return _clip(
        weights.hard * score.correct + weights.soft * score.gt_prob + relevance
    )


def legacy(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """alpha * quality + beta * corr, quality = the gain of the last demonstration, or -log mu; corr = h, or 2h - 1."""
    score = evidence.score
    correct = (
        float(score.correct)
        if weights.correctness == "01"
        else 2.0 * score.correct - 1.0
    )
    # without weight the quality is not computed: it raises where neither prefix nor log-density was measured
    quality = _quality(evidence, weights) if weights.alpha else 0.0
    return _clip(weights.alpha * quality + weights.beta * correct)


def _quality(
    evidence: Evidence,
    weights: Weights,
) -> float:
    if weights.quality == "gain":
        return evidence.gain
    if evidence.log_mu is None:
        raise NotMeasured(
            f"query {evidence.score.query}: the log-probability of a sequence under the policy that sampled it is not "
            "known; use reward.quality = 'gain', or sequences that a policy sampled"
        )
    return -evidence.log_mu


def hybrid(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """alpha * q + (1 - alpha) (h + 0.5 s), where q is ten times the gain, bounded to [0, 1]."""
    score = evidence.score
    correct = score.correct + 0.5 * score.accuracy
    quality = min(1.0, max(0.0, 10.0 * evidence.gain))
    return _clip(weights.alpha * quality + (1.0 - weights.alpha) * correct)


def rank(
    evidence: Evidence,
    weights: Weights,
) -> float:
    """The share of the other prompts of its group that a prompt beats, in [0, 1]; ties count one half.

    Prompts are compared by correctness, then by gt_prob.
    """
    rivals = evidence.rivals
    if not rivals:
        raise NotMeasured(
            f"query {evidence.score.query}: a rank needs the scores of the whole group"
        )
    if len(rivals) == 1:
        return _clip(0.5 * weights.soft)
    own = (evidence.score.correct, evidence.score.gt_prob)
    beaten = -0.5  # the group holds the prompt itself, which ties with itself
    for rival in rivals:
        other = (rival.correct, rival.gt_prob)
        if other < own:
            beaten += 1.0
        elif other == own:
            beaten += 0.5
    return _clip(weights.soft * beaten / (len(rivals) - 1))


def average_ranks(values: Array) -> Array:
    """Ranks of (n,) values, 0 for the lowest; tied values share the mean of the ranks they cover."""
    values = np.asarray(values, dtype=np.float64)
    below = (values[None, :] < values[:, None]).sum(axis=1)  # (n,)
    equal = (values[None, :] == values[:, None]).sum(
        axis=1
    )  # (n,), the value itself included
    return np.asarray(below + (equal - 1) / 2.0, dtype=np.float64)


def normalise(
    values: Sequence[float] | Array,
    method: str,
    clamp: float = 3.0,
) -> Array:
    """Normalises the rewards of one group by `method`: none, z_score, z_score_clamp (to [-clamp, clamp]) or rank.

    The z-scores divide by the n - 1 deviation and leave a group without spread as it is. `rank` gives [-1, 1], ties
    averaged, and 0 for a group without spread.
    """
    array = np.asarray(values, dtype=np.float64)
    if method == "none":
        return array
    if method == "rank":
        if len(array) < 2:
            return np.zeros_like(array)
        return 2.0 * average_ranks(array) / (len(array) - 1) - 1.0
    if method not in ("z_score", "z_score_clamp"):
        raise ValueError(
            f"unknown normalisation '{method}'; known: none, z_score, z_score_clamp, rank"
        )
    spread = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    if spread <= 1e-12:
        return array
    scaled = (array - array.mean()) / spread
    limit = clamp if method == "z_score_clamp" else math.inf
    return np.asarray(np.clip(scaled, -limit, limit), dtype=np.float64)


def combine(
    components: Sequence[Array],
    weights: Sequence[float],
    method: str,
    clamp: float = 3.0,
) -> Array:
    """Several rewards of one group, each normalised on its own and then summed with its weight.

    Normalising first keeps a component with a wide range from drowning one with a narrow range (group-decoupled
    normalisation, GDPO, arXiv 2601.05242).
    """
    if len(components) != len(weights) or not components:
        raise ValueError(f"{len(components)} components but {len(weights)} weights")
    parts = []
    for component, weight in zip(components, weights, strict=True):
        parts.append(weight * normalise(component, method, clamp))  # (G,)
    return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


def adaptive_weights(
    groups: Sequence[Sequence[Array]],
    base: Sequence[float],
    floor: float = 1e-6,
) -> list[float]:
    """Weights that give every component the same spread inside groups: base / mean within-group deviation.

    `groups[i][c]` holds component c of group i. The sum of `base` is kept; a component flat in every group gets 0.
    """
    if not groups:
        raise NotMeasured("adaptive weights need at least one group")
    raw = []
    for component, weight in enumerate(base):
        spread = float(np.mean([np.std(group[component]) for group in groups]))
        raw.append(weight / spread if spread > floor else 0.0)
    total = math.fsum(raw)
    if total == 0.0:  # every component is flat: there is nothing to adapt to
        return list(base)
    return [weight * math.fsum(base) / total for weight in raw]
