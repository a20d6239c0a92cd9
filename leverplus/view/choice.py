"""A selector's choice laid open: at every step the probability of each candidate, and the beams it passed over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leverplus.errors import LeverError
from leverplus.report.figures import ACCENT, GREY, Figure, plain
from leverplus.report.tables import Table
from leverplus.types import Demos, Item, ItemId

if TYPE_CHECKING:
    from leverplus.policies.base import Encoded, Policy
    from leverplus.selector.selector import Selector

SHOWN = 6
WIDTH = 5


@dataclass(frozen=True)
class Step:
    """One step: the probability of every candidate in the order of the pool (0 for those used), and what was taken.

    `entropy` is in nats; exp(entropy) is the number of candidates it amounts to.
    """

    probabilities: tuple[float, ...]
    taken: int
    entropy: float

    def best(self, count: int = SHOWN) -> list[int]:
        """The likeliest candidates, best first, and the one that was taken wherever it stands."""
        order = sorted(range(len(self.probabilities)), key=lambda place: -self.probabilities[place])[:count]
        return order if self.taken in order else [*order[:-1], self.taken]


@dataclass(frozen=True)
class Beam:
    demos: Demos
    probability: float


@dataclass(frozen=True)
class Choice:
    """The greedy choice for one query over its pool, and the likeliest lists that beam search finds."""

    pool: Demos
    demos: Demos
    steps: tuple[Step, ...]
    beams: tuple[Beam, ...]


def explain(selector: Selector, query: Item, shots: int) -> Choice:
    """How a selector chooses `shots` demonstrations for a query, by the same pools and decoding as in evaluation."""
    most = min(selector.policy.config.max_shots, selector.run.recipe.pool.size)
    if not 1 <= shots <= most:
        raise LeverError(f"this selector chooses 1 to {most} demonstrations, not {shots}")
    pools, table = selector.run.pools([query])
    candidates = pools[0].candidates
    encoded = selector.policy.eval().prepare(table.features([query.id], [candidates]))
    return _laid_open(selector.policy, encoded, candidates, shots)


def explain_served(selector: Selector, query: Item, shots: int) -> Choice:
    """The same for the candidates that `Selector.select` serves a query from."""
    if selector.check_shots(shots) == 0:
        raise LeverError("choose at least 1 demonstration")
    encoded, rows = selector.read(query)
    candidates = tuple(selector.run.demonstrations[row].id for row in rows)
    return _laid_open(selector.policy, encoded, candidates, min(shots, len(candidates)))


def _laid_open(policy: Policy, encoded: Encoded, candidates: Demos, shots: int) -> Choice:
    import torch

    from leverplus.policies.base import sequence_logprobs
    from leverplus.policies.decode import beam, greedy

    with torch.no_grad():
        positions = greedy(policy, encoded, shots).positions
        found = sequence_logprobs(policy, encoded, positions, allow_stop=False).table[0, 0].exp().tolist()
        picks = beam(policy, encoded, shots, WIDTH)
    taken = [int(place) for place in positions[0, 0].tolist()]
    steps = tuple(
        Step(tuple(row[: len(candidates)]), place, _entropy(row)) for row, place in zip(found, taken, strict=True)
    )
    beams = tuple(
        Beam(_named(candidates, places), math.exp(logprob))
        for places, logprob in zip(picks.positions[0].tolist(), picks.logprobs[0].tolist(), strict=True)
        if logprob > -math.inf
    )
    return Choice(candidates, _named(candidates, taken), steps, beams)


def _named(candidates: Demos, places: Sequence[int]) -> Demos:
    return tuple(ItemId(candidates[place]) for place in places if place >= 0)


def _entropy(row: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in row if p > 0.0)


def step_figures(choice: Choice) -> list[Figure]:
    """One bar chart a step: the probability of every candidate of the pool, the one taken in colour."""
    figures = []
    for number, step in enumerate(choice.steps, 1):
        colours = [ACCENT if place == step.taken else GREY for place in range(len(choice.pool))]
        bars: dict[str, Any] = {
            "type": "bar",
            "x": list(range(1, len(choice.pool) + 1)),
            "y": list(step.probabilities),
            "text": [plain(item) for item in choice.pool],
            "textposition": "none",
            "hovertemplate": "%{text}: %{y:.3f}<extra></extra>",
            "marker": {"color": colours},
        }
        layout = {"xaxis": {"title": {"text": "candidate of the pool"}}, "yaxis": {"rangemode": "tozero"}}
        rows = [(item, f"{p:.4f}") for item, p in zip(choice.pool, step.probabilities, strict=True)]
        title = f"Step {number}: probability of each of {len(choice.pool)} candidates"
        figures.append(Figure(f"step-{number}", title, [bars], layout, Table(("candidate", "probability"), rows), 200))
    return figures
