"""Which demonstrations help and harm, and a pilot out of a recorded table."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.effects.audit import audit, pilot_table
from leverplus.effects.estimate import Measured
from leverplus.errors import DataError


def recorded(rng: np.random.Generator, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """300 queries with demonstrations 0-4 and five random others of 60 each; and the true effects."""
    effect = rng.normal(0.0, spread, 60)
    demos = np.stack([np.append(np.arange(5), 5 + rng.permutation(55)[:5]) for _ in range(300)])
    scores = rng.random((300, 1)) + effect[demos] + rng.normal(0.0, 0.2, demos.shape)
    return np.repeat(np.arange(300), 10), demos.ravel(), scores.ravel(), effect


def test_the_most_useful_and_the_most_harmful_are_named() -> None:
    queries, demos, scores, effect = recorded(np.random.default_rng(0), 0.2)
    found = audit(Measured.of(queries, demos, scores, 60), [f"demo {n}" for n in range(60)])
    lines = found.ranked()
    assert not found.is_noise
    assert lines[0].effect == max(line.effect for line in lines)
    assert lines[-1].demo == f"demo {effect.argmin()}"
    assert lines[0].demo in {f"demo {n}" for n in np.argsort(-effect)[:3]}
    assert (found.rows, found.queries) == (3000, 300)


def test_luck_is_called_noise() -> None:
    noise = 0
    for seed in range(10):
        rows = recorded(np.random.default_rng(seed), 0.0)[:3]
        noise += audit(Measured.of(*rows, 60), ["d"] * 60).is_noise
    assert noise >= 7


def test_a_demonstration_shown_twice_is_not_listed() -> None:
    queries, demos = np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([0, 1, 0, 1, 0, 2, 0, 2])
    data = Measured.of(queries, demos, [1.0, 0, 1, 0, 1, 0, 1, 0], 3)
    found = audit(data, ["a", "b", "c"])
    assert [line.demo for line in found.ranked()] == ["a"]


def test_a_pilot_is_a_full_table_of_shared_demonstrations() -> None:
    queries, demos, scores, _ = recorded(np.random.default_rng(1), 0.1)
    pilot = pilot_table(Measured.of(queries, demos, scores, 60), 20, 4, seed=3)
    assert pilot.shape == (20, 4)
    table = {(q, d): s for q, d, s in zip(queries.tolist(), demos.tolist(), scores.tolist(), strict=True)}
    assert all(any(row.tolist() == [table[q, d] for d in range(4)] for q in range(300)) for row in pilot)


def test_without_shared_demonstrations_there_is_no_pilot() -> None:
    with pytest.raises(DataError, match="ask ten demonstrations with sixty queries"):
        pilot_table(Measured.of(np.arange(30), np.arange(30), np.zeros(30), 30), 10, 5)
