"""Diagnostics from the predictions alone: help and harm, copied answers, which demonstrations are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leverplus.errors import EvaluationError
from leverplus.evaluation.arms import asks_model
from leverplus.evaluation.evaluate import baselines
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.metrics import normalise_answer
from leverplus.stats.paired import TIE
from leverplus.types import Demos, ItemId

Shown = Callable[[ItemId], str]
"""The answer a demonstration shows."""


def harm_table(results: Results) -> list[dict[str, Any]]:
    """Help and harm of every arm against zero-shot, and of the selector against every baseline, at every shot.

    `helped` and `harmed` count items scored higher and lower; of these `mended` were wrong (accuracy 0) and are not
    any more, `broken` were not and are wrong now. Several draws of an arm count by their mean.
    """
    pairs = []
    if "zero_shot" in results.draws:
        pairs += [(arm, "zero_shot") for arm in results.draws if arm != "zero_shot"]
    others = [baseline for baseline in baselines(results) if baseline != "zero_shot"]
    for arm in ("learned", "learned_auto"):
        if arm in results.draws:
            pairs += [(arm, baseline) for baseline in others]
    rows = []
    for arm, baseline in pairs:
        for shots in results.shots(arm):
            against = results.against(baseline, shots)
            if against is not None:
                own, base = results.accuracy(arm, shots), results.accuracy(baseline, against)
                counts = help_and_harm(own, base)
                rows.append({"arm": arm, "baseline": baseline, "shots": shots, **counts})
    return rows


def help_and_harm(own: np.typing.NDArray[np.float64], base: np.typing.NDArray[np.float64]) -> dict[str, int]:
    """Counts over items: scored higher, lower, the same; mended (from 0) and broken (to 0)."""
    change = own - base  # (n,)
    helped, harmed = change > TIE, change < -TIE  # means over draws may differ by rounding: that is a tie
    return {
        "n": len(own),
        "helped": int(helped.sum()),
        "harmed": int(harmed.sum()),
        "unchanged": int((~helped & ~harmed).sum()),
        "mended": int((helped & (base < TIE)).sum()),
        "broken": int((harmed & (own < TIE)).sum()),
    }


def copied_table(results: Results, shown: Shown) -> dict[str, dict[str, Any]]:
    """By arm and shots: the share of answers equal to one a demonstration shows, for arms that ask the model."""
    return _by_arm_and_shots(results, lambda predictions: copied(predictions, shown))


def _by_arm_and_shots(
    results: Results, measure: Callable[[Sequence[Prediction]], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """A measure of the predictions of all draws, for every arm that asks the model with demonstrations."""
    table: dict[str, dict[str, Any]] = {}
    for arm, by_shots in results.draws.items():
        if not asks_model(arm):
            continue
        for shots, draws in by_shots.items():
            if shots > 0:
                predictions = [prediction for draw in draws for prediction in draw]
                table.setdefault(arm, {})[str(shots)] = measure(predictions)
    return table


def copied(predictions: Sequence[Prediction], shown: Shown) -> dict[str, Any]:
    """Shares of all predictions: `copied`, split into `right` (accuracy above 0) and `wrong`, and the same by position.

    Position 1 is the first demonstration of the prompt, the last is next to the query. An answer that several
    demonstrations show counts at each of their positions, so positions can sum to more than `copied`.
    """
    total = len(predictions)
    if total == 0:
        raise EvaluationError("there are no predictions to look for copies in")
    shown_answers: dict[ItemId, str] = {}  # normalised, each demonstration once
    # counts of copies by whether the answer is right
    whole = {True: 0, False: 0}
    by_position: dict[int, dict[bool, int]] = {}
    for own in predictions:
        answer = normalise_answer(own.answer)
        right = own.accuracy > 0
        hits = []
        for place, demo in enumerate(own.demos, start=1):
            if demo not in shown_answers:
                shown_answers[demo] = normalise_answer(shown(demo))
            count = by_position.setdefault(place, {True: 0, False: 0})
            if shown_answers[demo] == answer:
                hits.append(place)
                count[right] += 1
        whole[right] += bool(hits)
    return {
        **_shares(whole, total),
        "by_position": [{"position": place, **_shares(by_position[place], total)} for place in sorted(by_position)],
    }


def _shares(counts: Mapping[bool, int], total: int) -> dict[str, float]:
    return {
        "copied": (counts[True] + counts[False]) / total,
        "right": counts[True] / total,
        "wrong": counts[False] / total,
    }


def picks_table(results: Results) -> dict[str, dict[str, Any]]:
    """By arm and shots: how many different demonstrations are used, and how evenly."""
    return _by_arm_and_shots(results, lambda predictions: usage([own.demos for own in predictions]))


def usage(lists: Sequence[Demos]) -> dict[str, Any]:
    """How many different demonstrations all lists use, and how evenly.

    `distinct` is their number; `top_share` the share of lists that hold the most used one; `effective` the exponential
    of the entropy of their use: that many demonstrations, used equally often, would be as varied. `mean_length` is the
    mean number shown, `none_share` the share of lists that show none.
    """
    if not lists:
        raise EvaluationError("there are no lists of demonstrations to count")
    counts = Counter(demo for demos in lists for demo in demos)
    top_share = effective = 0.0
    if counts:
        used = np.array(list(counts.values()), dtype=np.float64)  # (distinct,)
        share = used / used.sum()
        top_share = float(used.max()) / len(lists)
        effective = float(np.exp(-(share * np.log(share)).sum()))
    return {
        "distinct": len(counts),
        "top_share": top_share,
        "effective": effective,
        "mean_length": float(np.mean([len(demos) for demos in lists])),
        "none_share": float(np.mean([not demos for demos in lists])),
    }


@dataclass(frozen=True)
class PickAgreement:
    """How often two selectors choose the same: `identical` lists, the same demonstration at each position, Jaccard.

    `by_position` counts, among the items where both lists reach that position, how often it holds the same; `jaccard`
    is the mean over items of shared / all demonstrations of both lists (two empty lists agree fully).
    """

    n: int
    identical: float
    by_position: tuple[float, ...]
    jaccard: float

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "by_position": list(self.by_position)}


def agreement(first: Sequence[Demos], second: Sequence[Demos]) -> PickAgreement:
    """The agreement of two choices for the same items in the same order."""
    if len(first) != len(second) or not first:
        raise EvaluationError(
            f"picks can be compared for the same items only; got lists for {len(first)} and {len(second)} items"
        )
    pairs = list(zip(first, second, strict=True))
    longest = max(min(len(a), len(b)) for a, b in pairs)
    places = []
    for place in range(longest):
        same = [a[place] == b[place] for a, b in pairs if min(len(a), len(b)) > place]
        places.append(float(np.mean(same)))
    return PickAgreement(
        n=len(first),
        identical=float(np.mean([a == b for a, b in pairs])),
        by_position=tuple(places),
        jaccard=float(np.mean([_jaccard(set(a), set(b)) for a, b in pairs])),
    )


def _jaccard(first: set[ItemId], second: set[ItemId]) -> float:
    union = first | second
    if not union:
        return 1.0
    return len(first & second) / len(union)
