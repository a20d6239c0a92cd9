"""Runs the arms on the same items and pools; accuracies by shots, paired comparisons, share of the gap closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leverplus.evaluation import arms
from leverplus.evaluation.arms import CALIBRATED, Choices, EvaluationContext
from leverplus.evaluation.calibration import add_calibrated
from leverplus.evaluation.names import LABELS_ALONE, MEAN_SHOTS, arm_name, shots_name
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.policies.base import Policy
from leverplus.ranking.ranking import RANKED, Ranking, Rankings, by_labels
from leverplus.recipe.sections import TEXT_SHARES, EvalSection
from leverplus.scoring.search import greedy_oracle, random_sequences
from leverplus.stats import Comparison, adjust, compare, known_interval
from leverplus.types import Demos

FREE_PROMPTS = ("nearest_text", "nearest_both", "mmr", "label_rank")
"""Prompts without training that the ranking by effects is compared with."""


def run_arms(
    context: EvaluationContext,
    section: EvalSection,
    policy: Policy | None,
    text_share: float,
    mmr_lambda: float,
    *,
    fixed: Mapping[int, Demos] | None = None,
    rankings: Rankings | None = None,
) -> Results:
    """Every arm of an evaluation; `text_share` is the weight of the question in nearest_both, mmr and label_vote.

    `fixed` is the list that everybody is shown, by its length; `rankings` are what ranked arms choose by.
    """
    results, shots = Results.of(context.queries), sorted(section.shots)
    run_arm(results, context, "zero_shot", {0: [() for _ in context.pools]})
    for draw in range(section.random_draws):
        drawn = random_sequences(context.pools, max(shots), draw)
        run_arm(results, context, "random", arms.prefixes([drawn[pool.query] for pool in context.pools], shots))
    retrieved = arms.nearest_arm(context, 1.0, shots)
    run_arm(results, context, "nearest_text", retrieved)
    if context.similarities.image is not None:
        run_arm(results, context, "nearest_image", arms.nearest_arm(context, 0.0, shots))
        retrieved = arms.nearest_arm(context, text_share, shots)
        run_arm(results, context, "nearest_both", retrieved)
        run_arm(results, context, "two_stage", arms.two_stage_arm(context, shots))
    run_arm(results, context, "mmr", arms.mmr_arm(context, text_share, mmr_lambda, shots))
    if fixed:
        run_arm(results, context, "fixed", {n: [fixed[n] for _ in context.pools] for n in shots if n in fixed})
    for n in shots:
        results.add("majority", n, arms.majority_arm(context.task, context.queries, retrieved[n]))
    results.add("label_vote", 0, arms.label_vote_arm(context, text_share, section.vote_neighbours))
    if rankings is not None:
        run_ranked(results, context, rankings, text_share, shots)
    if policy is not None:
        run_learned(results, context, policy, shots)
    if section.oracle:
        run_oracles(results, context, section)
    first_answer = results.draws["zero_shot"][0][0][0]
    if section.calibrate and first_answer.choices:  # a task with labels, and a backend that gives their probabilities
        add_calibrated(results, context.task)
    return results


def run_ranked(
    results: Results, context: EvaluationContext, rankings: Rankings, text_share: float, shots: Sequence[int]
) -> None:
    """The arms that rank by labels, by labels and measured effects, and the answer that labels alone give."""
    labels = rankings.labels
    if labels is not None:
        results.add("label_regression", 0, arms.label_regression_arm(context, labels))
    for arm in RANKED:
        ranking = choose_ranking(rankings, arm, text_share, len(context.demonstrations))
        if ranking is not None:
            run_arm(results, context, arm, arms.ranked_arm(context, ranking, labels, shots))


def choose_ranking(rankings: Rankings, arm: str, text_share: float, demonstrations: int) -> Ranking | None:
    """The ranking behind an arm; None where the data allow none."""
    if arm == "effects":
        return rankings.effects
    if rankings.labels is None:
        return None
    return by_labels({"text": text_share, "image": 1.0 - text_share}, demonstrations)


def run_learned(results: Results, context: EvaluationContext, policy: Policy, shots: Sequence[int]) -> None:
    """The arms of a selector: forced to n demonstrations, and with its own count where it may stop or show none."""
    run_arm(results, context, "learned", arms.learned(policy, context.pools, context.table, shots))
    if policy.stops:
        own = arms.learned(policy, context.pools, context.table, shots, allow_stop=True)
        run_arm(results, context, "learned_auto", own)


def run_arm(results: Results, context: EvaluationContext, arm: str, choices: Choices) -> None:
    """Asks the model with the demonstrations that an arm chose, and adds its answers to the results."""
    for shots, lists in choices.items():
        results.add(arm, shots, context.ask(lists, f"{arm_name(arm)}, {shots_name(shots)}"))


def run_oracles(results: Results, context: EvaluationContext, section: EvalSection) -> None:
    """Arms that look at the answers: greedy over exactly n, greedy that may show fewer or none, and exhaustive search.

    Greedy at one shot has tried every candidate, so it is exhaustive there.
    """
    shots = sorted(section.shots)
    greedy = []
    for scores in greedy_oracle(context.scorer, context.pools, max(shots)):
        greedy.append([Prediction.of(score) for score in scores])  # with 1, 2, ... demonstrations
    zero = results.draws["zero_shot"][0][0]
    for n in shots:
        results.add("oracle", n, [steps[n - 1] for steps in greedy])
    for n in shots:
        results.add("oracle_any", n, arms.oracle_any(zero, greedy, n))
    if 1 in shots:
        results.add("oracle_exhaustive", 1, [steps[0] for steps in greedy])
    all_pairs = sum(len(pool) * (len(pool) - 1) for pool in context.pools)
    if 2 in shots and all_pairs <= section.exhaustive_calls:
        results.add("oracle_exhaustive", 2, arms.best_pairs(context))


def best_text_share(context: EvaluationContext, shots: Sequence[int]) -> float:
    """The share of the question in nearest_both with the best mean accuracy; 1 for tasks without pictures."""
    if context.similarities.image is None:
        return 1.0
    values = {}
    for share in TEXT_SHARES:
        results = Results.of(context.queries)
        run_arm(results, context, "nearest_both", arms.nearest_arm(context, share, sorted(shots)))
        values[share] = np.mean([results.accuracy("nearest_both", n).mean() for n in shots])
    return max(values, key=lambda share: (values[share], -share))  # the smaller share among equals


def mean_shots(results: Results, arm: str) -> list[int] | None:
    """The shots an arm's mean is over: those of 1-4 that were evaluated; None if the arm lacks some of them."""
    own = results.shots(arm)
    if own == [0]:
        return own
    evaluated = {n for by_shots in results.draws.values() for n in by_shots if n in MEAN_SHOTS}
    if not evaluated or not evaluated <= set(own):
        return None
    return sorted(evaluated)


def accuracies(results: Results) -> dict[str, dict[str, Any]]:
    """The `arms` table of eval.json: every arm's accuracy by shots, and its mean over 1-4 where it has them."""
    table: dict[str, dict[str, Any]] = {}
    for arm in results.draws:
        by_shots = {str(n): float(results.accuracy(arm, n).mean()) for n in results.shots(arm)}
        own: dict[str, Any] = {"shots": by_shots}
        wanted = mean_shots(results, arm)
        if wanted is not None:
            own["mean"] = float(np.mean([by_shots[str(n)] for n in wanted]))
        table[arm] = own
    return table


def spreads(results: Results) -> dict[str, dict[str, Any]]:
    """By arm: the 95 % interval of every accuracy (None for a single item or picture), and how far draws differ."""
    table: dict[str, dict[str, Any]] = {}
    for arm in results.draws:
        shots = results.shots(arm)
        intervals = {str(n): known_interval(results.accuracy(arm, n), clusters=results.images) for n in shots}
        table[arm] = {"ci95": intervals}
        spread = draw_spread(results, arm)
        if spread:
            table[arm]["draw_sd"] = spread
    return table


def summary(results: Results) -> dict[str, Any]:
    """The `arms` and `gap_closed` tables of eval.json, every accuracy with its interval."""
    table, spread = accuracies(results), spreads(results)
    arms_with_intervals = {arm: {**own, **spread[arm]} for arm, own in table.items()}
    return {"arms": arms_with_intervals, "gap_closed": gap_closed(table)}


def draw_spread(results: Results, arm: str) -> dict[str, float]:
    """Standard deviation of the mean accuracy over an arm's draws, by shots; empty for a single draw."""
    spread = {}
    for n, draws in results.draws[arm].items():
        if len(draws) > 1:
            means = []
            for draw in draws:
                means.append(np.mean([prediction.accuracy for prediction in draw]))
            spread[str(n)] = float(np.std(means, ddof=1))
    return spread


def gap_closed(table: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """(arm - random) / (oracle - random) by shots, where an oracle was run and there is a gap.

    Arms that answer by labels are left out: they read all labels, while the gap is the one inside the pools.
    """
    if "oracle" not in table or "random" not in table:
        return {}
    closed: dict[str, dict[str, float]] = {}
    for arm, values in table.items():
        if arm in ("random", *LABELS_ALONE) or arm.startswith(("zero_shot", "oracle")):
            continue
        own = {}
        for key in (*values["shots"], "mean"):
            top, floor, value = _at(table["oracle"], key), _at(table["random"], key), _at(values, key)
            if value is not None and top is not None and floor is not None and top > floor:
                own[key] = (value - floor) / (top - floor)
        closed[arm] = own
    return closed


def _at(entry: Mapping[str, Any], key: str) -> float | None:
    """The value of an arm at a number of shots, or its mean; None where it was not measured."""
    value: float | None = entry.get("mean") if key == "mean" else entry["shots"].get(key)
    return value


def baselines(results: Results) -> list[str]:
    """The arms a selector is compared with: all that neither learn nor look at the answers."""
    return [arm for arm in results.draws if not arm.startswith(("learned", "oracle"))]


def comparisons(results: Results, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Arms against baselines at every common number of shots, images as clusters, corrected for all of them."""
    rows: list[tuple[str, str, int, Comparison]] = []
    for arm, baseline in pairs:
        for shots in results.shots(arm):
            against = results.against(baseline, shots)
            if against is not None:
                own, base = results.accuracy(arm, shots), results.accuracy(baseline, against)
                found = compare(own, base, ids=results.items, clusters=results.images)
                rows.append((arm, baseline, shots, found))
    corrected = adjust([comparison for _, _, _, comparison in rows])
    table = []
    for (arm, baseline, shots, _), comparison in zip(rows, corrected, strict=True):
        table.append({"arm": arm, "baseline": baseline, "shots": shots, **comparison.as_json()})
    return table


def compared_pairs(results: Results) -> list[tuple[str, str]]:
    """The pairs that eval.json compares.

    The selector with every baseline, the ranking by effects with prompts that need no training, calibrated with
    calibrated, and the selector with its own count of demonstrations with zero-shot and with itself forced to n.
    """
    pairs = []
    if "learned" in results.draws:
        pairs += [("learned", baseline) for baseline in baselines(results)]
    if "effects" in results.draws:
        pairs += [("effects", arm) for arm in FREE_PROMPTS if arm in results.draws]
    calibrated = f"learned{CALIBRATED}"
    if calibrated in results.draws:
        pairs += [(calibrated, arm) for arm in baselines(results) if arm.endswith(CALIBRATED)]
    if "learned_auto" in results.draws:
        pairs += [("learned_auto", "zero_shot"), ("learned_auto", "learned")]
    return pairs
