"""Why these: every candidate of one choice with its terms, and what plain nearest neighbours would have shown.

`similarity` is the weighted cosine by which candidates are found, `label` the share of the votes of the nearest
neighbours (each by its similarity) that went to the candidate's answer (in an arm that ranks by labels: what they add
to the score), `effect` how much the demonstration raises accuracy by itself where the bundle holds that, `interaction`
what a learned selector sees in the pair beyond the average candidate. `score` is what the arm ranks by at its first
pick; a term that an arm does not have is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from leverplus.metrics import normalise_answer
from leverplus.pools.similarity import Floats, Positions
from leverplus.selector.choose import EFFECT, AskedQuery, JudgedCandidates, NearestChooser
from leverplus.selector.demo import Demo

VOTERS = 16
"""Nearest neighbours whose answers are counted."""


def explain(
    arm: str, asked: AskedQuery, judged: JudgedCandidates, shots: int, demos: Mapping[int, Demo]
) -> dict[str, Any]:
    """The explanation as plain values; `demos` holds those of the candidates that are still there."""
    rows = judged.candidates
    near = asked.rows.similarity(asked.vectors, rows) if len(rows) else np.empty(0)
    label = _label_shares(rows, near, demos) if judged.label is None else judged.label.tolist()
    effect = asked.rows.numbers.get(EFFECT)
    places = {row: place for place, row in enumerate(judged.shown, start=1)}
    table = []
    for number, row in enumerate(rows.tolist()):
        if row not in demos:
            continue
        own = float("nan") if effect is None else float(effect[row])
        table.append(
            {
                "id": demos[row].id,
                "question": demos[row].question,
                "answer": demos[row].answer,
                "place": places.get(row),
                "score": _rounded(judged.score[number]),
                "label": _rounded(label[number]),
                "effect": _rounded(own),
                "similarity": _rounded(near[number]),
                "interaction": None if judged.interaction is None else _rounded(judged.interaction[number]),
            }
        )
    alone = [demos[row].id for row in NearestChooser().choose(asked, shots) if row in demos]
    return {"arm": arm, "shots": shots, "candidates": table, "nearest_would_show": alone}


def _label_shares(rows: Positions, near: Floats, demos: Mapping[int, Demo]) -> list[float]:
    """The share of the nearest neighbours' votes that each candidate's answer got."""
    answers = [normalise_answer(demos[row].answer) if row in demos else None for row in rows.tolist()]
    votes: dict[str | None, float] = {}
    for place in np.argsort(-near, kind="stable")[:VOTERS].tolist():
        # what points away from the query has no vote
        votes[answers[place]] = votes.get(answers[place], 0.0) + max(0.0, float(near[place]))
    total = sum(votes.values()) or 1.0  # all votes may be 0
    return [votes.get(answer, 0.0) / total for answer in answers]


def _rounded(value: Any) -> float | None:
    """Six digits say all there is to say; what nobody measured is null."""
    return round(float(value), 6) if np.isfinite(value) else None
