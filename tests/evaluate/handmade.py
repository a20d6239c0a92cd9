"""Results made by hand: accuracies by arm and shots, and the context of a measurement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leverplus.data.types import Demos, ItemId
from leverplus.evaluate.predictions import Prediction, Results
from leverplus.scores.keys import Context


def item_ids(n: int) -> list[ItemId]:
    return [ItemId(f"q{number:03d}") for number in range(n)]


def results_from(table: dict[str, dict[int, Sequence[float]]]) -> Results:
    """Results whose accuracies are given by arm and shots; item i is shown demonstrations d0, d1, ..."""
    n = len(next(iter(next(iter(table.values())).values())))
    results = Results(item_ids(n), [f"image{number // 2}" for number in range(n)])
    for arm, by_shots in table.items():
        for shots, values in by_shots.items():
            demos = tuple(ItemId(f"d{place}") for place in range(shots))
            own = [
                Prediction(item, demos, "x", float(v))
                for item, v in zip(results.items, values, strict=True)
            ]
            results.add(arm, shots, own)
    return results


def demos(text: str) -> Demos:
    """A list of demonstrations, one a letter."""
    return tuple(ItemId(letter) for letter in text)


def context(template: str = "plain") -> Context:
    fingerprint = {"model": "m", "template": template, "decoding": "greedy"}
    return Context.of(
        fingerprint, task="t", task_version="1", metric="vqa_accuracy", cut="plain"
    )


def coin_flips(rng: np.random.Generator, n: int, chance: float) -> NDArray[np.float64]:
    return (rng.random(n) < chance).astype(float)
