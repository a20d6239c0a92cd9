"""What a result cost: model calls per point gained (eval.json), tokens and seconds per query (run.json)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from leverplus.evaluation.evaluate import mean_shots
from leverplus.evaluation.names import MODEL_FREE, TRAINED
from leverplus.evaluation.predictions import Results


def call_cost(arms: Mapping[str, Any], comparisons: list[dict[str, Any]], model_calls: int) -> dict[str, Any]:
    """Training calls per point of mean accuracy that the selector gains over zero-shot and the best untrained prompt.

    `calls_per_point` is None where nothing was gained. `clear_at` names the shots at which the gain is outside the
    noise after correction; where it is empty, the points may be luck.
    """
    learned = arms.get("learned", {}).get("mean")
    if learned is None:
        return {}
    rivals = {}
    for arm, values in arms.items():
        untrained = arm not in MODEL_FREE and not arm.startswith((*TRAINED, "oracle"))
        if untrained and "mean" in values:
            rivals[arm] = values["mean"]
    best = max((arm for arm in rivals if arm != "zero_shot"), key=lambda arm: rivals[arm])
    table: dict[str, Any] = {"model_calls": model_calls}
    for name, baseline in (("zero_shot", "zero_shot"), ("best_baseline", best)):
        points = 100.0 * (learned - rivals[baseline])
        rows = [row for row in comparisons if row["arm"] == "learned" and row["baseline"] == baseline]
        clear = [row["shots"] for row in rows if row["p_adjusted"] < 0.05 and row["ci95"][0] > 0.0]
        table[name] = {
            "baseline": baseline,
            "points": points,
            "calls_per_point": model_calls / points if points > 0 else None,
            "clear_at": clear,
        }
    return table


def query_cost(results: Results) -> dict[str, Any]:
    """By arm and shots: mean tokens and seconds the model spent on one query, and tokens per point gained.

    Tokens count what was computed when the prompt was measured; what a batch shared is spread over it.
    `tokens_per_point` divides the tokens beyond zero-shot's by the points gained over zero-shot; None where none were
    gained.
    """
    base_tokens, _ = _means(results, "zero_shot", 0)
    base = float(results.accuracy("zero_shot", 0).mean())
    table: dict[str, Any] = {}
    for arm in results.draws:
        if arm in MODEL_FREE or mean_shots(results, arm) is None:
            continue
        for shots in results.shots(arm):
            tokens, seconds = _means(results, arm, shots)
            points = 100.0 * (float(results.accuracy(arm, shots).mean()) - base)
            table.setdefault(arm, {})[str(shots)] = {
                "tokens": tokens,
                "seconds": seconds,
                "tokens_per_point": (tokens - base_tokens) / points if points > 0 else None,
                "points": points,
            }
    return table


def _means(results: Results, arm: str, shots: int) -> tuple[float, float]:
    """Mean tokens and seconds over all draws and items."""
    flat = [own for draw in results.draws[arm][shots] for own in draw]
    tokens = float(np.mean([own.tokens for own in flat]))
    seconds = float(np.mean([own.seconds for own in flat]))
    return tokens, seconds
