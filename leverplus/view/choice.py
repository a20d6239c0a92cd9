"""Explains a selector's choice: the probability of each candidate at every step, and the lists beam search finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leverplus.errors import LeverError
from leverplus.report.figures import ACCENT, GREY, Figure, chart_text
from leverplus.report.tables import Table
from leverplus.types import Demos, Item, ItemId

if TYPE_CHECKING:
    from leverplus.policies.base import Encoded, Policy
    from leverplus.selector.selector import Selector

MOST_SHOWN = 6  # candidates listed per step
BEAM_WIDTH = 5


@dataclass(frozen=True)
class ChoiceStep:
    """One step: the probability of every candidate in the order of the pool (0 for those used), and what was taken.

    `entropy` is in nats; exp(entropy) is the number of candidates it amounts to.
    """

    probabilities: tuple[float, ...]
    taken: int
    entropy: float

    def best(self, count: int = MOST_SHOWN) -> list[int]:
        """The likeliest candidates, best first, and the one that was taken wherever it stands."""
        order = sorted(range(len(self.probabilities)), key=lambda place: -self.probabilities[place])[:count]
        if self.taken not in order:
            order[-1] = self.taken
        return order


@dataclass(frozen=True)
class ChosenBeam:
    """A list of demonstrations that beam search found, and its probability under the policy."""

    demos: Demos
    probability: float


@dataclass(frozen=True)
class ExplainedChoice:
    """The greedy choice for one query over its pool, and the likeliest lists that beam search finds."""

    pool: Demos
    demos: Demos
    steps: tuple[ChoiceStep, ...]
    beams: tuple[ChosenBeam, ...]


def explain_pooled(selector: Selector, query: Item, shots: int) -> ExplainedChoice:
    """How a selector chooses `shots` demonstrations for a query, by the same pools and decoding as in evaluation."""
    most = min(selector.policy.config.max_shots, selector.run.recipe.pool.size)
    if not 1 <= shots <= most:
        raise LeverError(f"this selector chooses 1 to {most} demonstrations, not {shots}")
    pools, table = selector.run.pools([query])
    candidates = pools[0].candidates
    encoded = selector.policy.eval().prepare(table.features([query.id], [candidates]))
    return _explain_encoded(selector.policy, encoded, candidates, shots)


def explain_served(selector: Selector, query: Item, shots: int) -> ExplainedChoice:
    """The same for the candidates that `Selector.select` serves a query from."""
    if selector.check_shots(shots) == 0:
        raise LeverError("choose at least 1 demonstration")
    encoded, rows = selector.read(query)
    candidates = tuple(selector.run.demonstrations[row].id for row in rows)
    return _explain_encoded(selector.policy, encoded, candidates, min(shots, len(candidates)))


def _explain_encoded(policy: Policy, encoded: Encoded, candidates: Demos, shots: int) -> ExplainedChoice:
    import torch

    from leverplus.policies.base import sequence_logprobs
    from leverplus.policies.decode import beam, greedy

    with torch.no_grad():
        positions = greedy(policy, encoded, shots).positions  # (1, 1, S)
        table = sequence_logprobs(policy, encoded, positions, allow_stop=False).table  # (1, 1, S, K)
        probabilities = table[0, 0].exp().tolist()
        picks = beam(policy, encoded, shots, BEAM_WIDTH)
    taken = [int(place) for place in positions[0, 0].tolist()]
    steps = []
    for row, place in zip(probabilities, taken, strict=True):
        steps.append(ChoiceStep(tuple(row[: len(candidates)]), place, _entropy(row)))
    beams = []
    for places, logprob in zip(picks.positions[0].tolist(), picks.logprobs[0].tolist(), strict=True):
        if logprob > -math.inf:  # a pool that is too small leaves beams empty
            beams.append(ChosenBeam(_ids_at(candidates, places), math.exp(logprob)))
    return ExplainedChoice(candidates, _ids_at(candidates, taken), tuple(steps), tuple(beams))


def _ids_at(candidates: Demos, places: Sequence[int]) -> Demos:
    """The ids of candidates by their places in the pool; -1 is no place."""
    return tuple(ItemId(candidates[place]) for place in places if place >= 0)


def _entropy(row: Sequence[float]) -> float:
    """In nats; a candidate of probability 0 adds nothing."""
    return -sum(p * math.log(p) for p in row if p > 0.0)


def step_figures(choice: ExplainedChoice) -> list[Figure]:
    """One bar chart per step: the probability of every candidate of the pool, the one taken in colour."""
    figures = []
    for number, step in enumerate(choice.steps, 1):
        colours = [ACCENT if place == step.taken else GREY for place in range(len(choice.pool))]
        bars: dict[str, Any] = {
            "type": "bar",
            "x": list(range(1, len(choice.pool) + 1)),
            "y": list(step.probabilities),
            "text": [chart_text(item) for item in choice.pool],
            "textposition": "none",
            "hovertemplate": "%{text}: %{y:.3f}<extra></extra>",
            "marker": {"color": colours},
        }
        layout = {"xaxis": {"title": {"text": "candidate of the pool"}}, "yaxis": {"rangemode": "tozero"}}
        rows = [(item, f"{p:.4f}") for item, p in zip(choice.pool, step.probabilities, strict=True)]
        title = f"Step {number}: probability of each of {len(choice.pool)} candidates"
        figures.append(Figure(f"step-{number}", title, [bars], layout, Table(("candidate", "probability"), rows), 200))
    return figures
