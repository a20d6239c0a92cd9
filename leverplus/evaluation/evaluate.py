"""Running the arms: one table of predictions, accuracies by shots, paired comparisons, share of the gap closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.evaluation.arms import Choices
from leverplus.scoring.scorer import EVALUATION, Prompt, Scorer
from leverplus.stats import Comparison, adjust, compare
from leverplus.types import Item, Pool, Score

MEAN_SHOTS = (1, 2, 3, 4)
"""`mean` is the mean over these shots."""


@dataclass
class Results:
    """Scores of every arm: results[arm][shots] is a list of draws, each one score a query, in the order of `items`."""

    items: Sequence[Item]
    scores: dict[str, dict[int, list[list[Score]]]] = field(default_factory=dict)

    def add(self, arm: str, shots: int, scores: list[Score]) -> None:
        self.scores.setdefault(arm, {}).setdefault(shots, []).append(scores)

    def accuracy(self, arm: str, shots: int) -> NDArray[np.float64]:
        """Accuracy of every item (n,), averaged over draws."""
        draws = [[score.accuracy for score in draw] for draw in self.scores[arm][shots]]
        return np.asarray(np.mean(draws, axis=0))

    def shots(self, arm: str) -> list[int]:
        return sorted(self.scores[arm])


def run_arm(results: Results, scorer: Scorer, arm: str, pools: Sequence[Pool], choices: Choices) -> None:
    """Score what an arm chose."""
    for shots, lists in choices.items():
        prompts: list[Prompt] = [(pool.query, demos) for pool, demos in zip(pools, lists, strict=True)]
        results.add(arm, shots, scorer.score(prompts, EVALUATION, f"{arm.replace('_', ' ')}, {shots} shots"))


def summary(results: Results) -> dict[str, Any]:
    """The `arms` and `gap_closed` tables of eval.json."""
    arms: dict[str, Any] = {}
    for arm in results.scores:
        by_shots = {str(n): float(results.accuracy(arm, n).mean()) for n in results.shots(arm)}
        arms[arm] = {"shots": by_shots}
        if arm != "zero_shot":
            wanted = [str(n) for n in MEAN_SHOTS if str(n) in by_shots]
            arms[arm]["mean"] = float(np.mean([by_shots[n] for n in wanted]))
        else:
            arms[arm]["mean"] = by_shots["0"]
    return {"arms": arms, "gap_closed": gap_closed(arms)}


def gap_closed(arms: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """(arm - random) / (oracle - random) by shots, where an oracle was run and there is a gap."""
    if "oracle" not in arms or "random" not in arms:
        return {}
    closed: dict[str, dict[str, float]] = {}
    for arm, values in arms.items():
        if arm in ("zero_shot", "random", "oracle"):
            continue
        own = {}
        for key in (*values["shots"], "mean"):
            top, floor, value = (_at(table, key) for table in (arms["oracle"], arms["random"], values))
            if value is not None and top is not None and floor is not None and top > floor:
                own[key] = (value - floor) / (top - floor)
        closed[arm] = own
    return closed


def _at(table: Mapping[str, Any], key: str) -> float | None:
    """The value of an arm at a number of shots, or its mean."""
    value: float | None = table["mean"] if key == "mean" else table["shots"].get(key)
    return value


def comparisons(results: Results, arm: str, baselines: Sequence[str]) -> list[dict[str, Any]]:
    """An arm against each baseline at every common number of shots, images as clusters, corrected for all of them."""
    rows: list[tuple[str, int, Comparison]] = []
    clusters = [item.image_id or item.id for item in results.items]
    ids = [item.id for item in results.items]
    for baseline in baselines:
        for shots in results.shots(arm):
            against = 0 if baseline == "zero_shot" else shots
            if baseline not in results.scores or against not in results.scores[baseline]:
                continue
            left, right = results.accuracy(arm, shots), results.accuracy(baseline, against)
            rows.append((baseline, shots, compare(left, right, ids=ids, clusters=clusters)))
    corrected = adjust([row[2] for row in rows])
    return [
        {"arm": arm, "baseline": baseline, "shots": shots, **comparison.as_json()}
        for (baseline, shots, _), comparison in zip(rows, corrected, strict=True)
    ]


def write_predictions(results: Results, path: Path) -> None:
    """One row per item, arm, shots and draw, as Parquet; replaced at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[Any]] = {key: [] for key in ("item", "arm", "shots", "draw", "demos", "answer", "score")}
    for arm, by_shots in results.scores.items():
        for shots, draws in by_shots.items():
            for number, draw in enumerate(draws):
                for score in draw:
                    values = (score.query, arm, shots, number, list(score.demos), score.answer, score.accuracy)
                    for key, value in zip(rows, values, strict=True):
                        rows[key].append(value)
    schema = pa.schema(
        [
            ("item", pa.string()),
            ("arm", pa.dictionary(pa.int8(), pa.string())),
            ("shots", pa.int8()),
            ("draw", pa.int8()),
            ("demos", pa.list_(pa.string())),
            ("answer", pa.string()),
            ("score", pa.float32()),
        ]
    )
    part = path.with_name(f".{path.name}.new")
    pq.write_table(pa.table(rows, schema=schema), part)
    part.replace(path)
