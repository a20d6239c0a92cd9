"""Runs the arms on the same items; accuracies by shots, paired comparisons, share of the gap closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import TypeVar

import numpy as np

from leverplus.arms.base import Arm, Rows
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.nearest import NearestBoth
from leverplus.data.tasks.base import Task
from leverplus.data.types import Demos, Item, Pool, Score
from leverplus.errors import NotMeasured
from leverplus.evaluate.conditions import conditions_of
from leverplus.evaluate.names import (
    CALIBRATED,
    MEAN_SHOTS,
    YARDSTICKS,
    asks_model,
    facts_of,
    shots_name,
)
from leverplus.evaluate.predictions import Prediction, Results
from leverplus.evaluate.record import ArmResult, ComparisonRow, EvaluationRecord
from leverplus.evaluate.settings import TEXT_SHARES, EvalSection
from leverplus.evaluate.stats import adjust, compare, known_interval
from leverplus.learn.data.search import greedy_oracle
from leverplus.scores.scorer import EVALUATION, TRAINING, Scorer

Value = TypeVar("Value")


@dataclass(frozen=True)
class EvaluationContext:
    """What all arms of an evaluation share: questions, the corpus they are shown examples of, and the scorer."""

    task: Task
    scorer: Scorer
    queries: Sequence[Item]
    asked: Queries
    corpus: Corpus
    demonstrations: Sequence[Item]
    """The examples in the order of the corpus' rows."""
    pools: Sequence[Pool]
    """The candidates of each question that a trained selector learns from; oracles look among these."""
    purpose: str = EVALUATION
    """What the calls are counted as."""

    def asked_by(self, arm: Arm) -> Queries:
        """The questions as an arm sees them; one that asks no model is not limited to what the model was asked."""
        if arm.calls:
            return self.asked
        return replace(self.asked, only=())

    def demos(self, rows: Rows) -> Demos:
        """The examples of some rows."""
        return tuple(self.demonstrations[row].id for row in rows)

    def all_demos(self, lists: Iterable[Rows]) -> list[Demos]:
        """The examples of several lists of rows."""
        return list(map(self.demos, lists))

    def score(
        self, items: Sequence[Item], lists: Sequence[Demos], what: str
    ) -> list[Score]:
        """What the model answers to each item with its examples."""
        ids = [item.id for item in items]
        prompts = list(zip(ids, lists, strict=True))
        return self.scorer.score(prompts, self.purpose, what)

    def ask(
        self, lists: Sequence[Demos], what: str, items: Sequence[Item] | None = None
    ) -> list[Prediction]:
        """The same as predictions, for all questions or for `items`."""
        if items is None:
            items = self.queries
        return list(map(Prediction.of, self.score(items, lists, what)))


def run_arms(
    context: EvaluationContext, arms: Sequence[Arm], section: EvalSection
) -> Results:
    """Every fitted arm at every number of shots, then the yardsticks that look at the answers."""
    results = Results.of(context.queries)
    shots = sorted(section.shots)
    for arm in arms:
        for own in arm.draws(section.random_draws):
            run_arm(results, context, own, shots)
    if section.oracle:
        run_oracles(results, context, section)
    if section.calibrate and "zero_shot" in results.draws:
        first_answer = results.first("zero_shot", 0)[0]
        if first_answer.choices:  # labels, and a backend that gives their probabilities
            add_calibrated(results, context.task)
    return results


def run_arm(
    results: Results, context: EvaluationContext, arm: Arm, shots: Sequence[int]
) -> None:
    """Asks the model with what an arm chose, and adds the answers to the results."""
    wanted = arm.shots(shots)
    if arm.calls == 1 and not arm.combines:
        chosen = arm.choose_each(context.asked, context.corpus, wanted)
        for n, rows in chosen.items():
            what = f"{arm.label}, {shots_name(n)}"
            answers = context.ask(context.all_demos(rows), what)
            results.add(arm.spec, n, answers)
        return
    answer = _answered_twice if arm.asks_first else answered
    for n in wanted:
        results.add(arm.spec, n, answer(context, arm, n))


def answered(context: EvaluationContext, arm: Arm, shots: int) -> list[Prediction]:
    """The predictions of an arm that makes one answer of several, or answers by itself."""
    asked = context.asked_by(arm)
    corpus = context.corpus
    lists = arm.choose_lists(asked, corpus, shots)
    shown = arm.choose(asked, corpus, shots)
    found: list[Score] = []
    counts = [0] * len(lists)
    if arm.calls > 0:
        items = []
        demos = []
        counts = list(map(len, lists))
        for item, own in zip(context.queries, lists, strict=True):
            items += [item] * len(own)
            demos += context.all_demos(own)
        what = f"{arm.label}, {shots_name(shots)}"
        found = context.score(items, demos, what)
    scores = in_groups(found, counts)
    answers = arm.answer(asked, corpus, lists, scores)
    if answers is None:
        raise NotImplementedError(
            f"arm {arm.spec} takes {arm.calls} calls and gives no answer"
        )
    predictions = []
    for item, rows, answer in zip(context.queries, shown, answers, strict=True):
        accuracy = context.task.answers.score(answer, item)
        demos_shown = context.demos(rows)
        predictions.append(Prediction(item.id, demos_shown, answer, accuracy))
    return predictions


def in_groups(values: Iterable[Value], counts: Iterable[int]) -> list[list[Value]]:
    """Values one after the other as lists of so many each.

    >>> in_groups("abc", [2, 0, 1])
    [['a', 'b'], [], ['c']]
    """
    left = iter(values)
    return [list(islice(left, count)) for count in counts]


def _answered_twice(
    context: EvaluationContext, arm: Arm, shots: int
) -> list[Prediction]:
    """The predictions of an arm that chooses by a first answer of the model; both calls are counted."""
    asked = context.asked
    corpus = context.corpus
    what = f"{arm.label}, {shots_name(shots)}"
    first = context.all_demos(arm.choose(asked, corpus, shots))
    answers = context.score(context.queries, first, f"{what}, first answers")
    words = [score.answer for score in answers]
    second = arm.choose_given(asked, corpus, shots, words)
    return context.ask(context.all_demos(second), what)


def run_oracles(
    results: Results, context: EvaluationContext, section: EvalSection
) -> None:
    """Yardsticks that look at the answers: greedy over exactly n, greedy that may show fewer or none, exhaustive.

    Greedy at one shot has tried every candidate, so it is exhaustive there.
    """
    shots = sorted(section.shots)
    greedy = []
    for scores in greedy_oracle(context.scorer, context.pools, max(shots)):
        # with 1, 2, ... demonstrations
        greedy.append(list(map(Prediction.of, scores)))
    for n in shots:
        results.add("oracle", n, [steps[n - 1] for steps in greedy])
    if "zero_shot" in results.draws:
        zero = results.first("zero_shot", 0)
        for n in shots:
            results.add("oracle_any", n, oracle_any(zero, greedy, n))
    if 1 in shots:
        results.add("oracle_exhaustive", 1, [steps[0] for steps in greedy])
    if 2 in shots and sum(map(_pairs_of, context.pools)) <= section.exhaustive_calls:
        results.add("oracle_exhaustive", 2, best_pairs(context))


def _pairs_of(pool: Pool) -> int:
    """How many ordered pairs of candidates there are."""
    return len(pool) * (len(pool) - 1)


def oracle_any(
    zero: Sequence[Prediction], greedy: Sequence[Sequence[Prediction]], shots: int
) -> list[Prediction]:
    """The best of no demonstration and the greedy oracle at 1..shots, the shortest among equals; costs no call.

    `greedy[b][m]` is the greedy oracle's prediction for query b with m + 1 demonstrations.
    """
    best = []
    for none, steps in zip(zero, greedy, strict=True):
        tried = [none, *steps[:shots]]
        first = max(tried, key=lambda own: (own.accuracy, -len(own.demos)))
        best.append(first)
    return best


def best_pairs(context: EvaluationContext) -> list[Prediction]:
    """The best of all ordered pairs of every pool: K (K - 1) calls per query."""
    prompts = []
    for pool in context.pools:
        for pair in permutations(pool.candidates, 2):
            prompts.append((pool.query, pair))
    # all pools are asked in one batch; the scores come back in the order of the prompts
    scores = context.scorer.score(prompts, EVALUATION, "all ordered pairs")
    best = []
    for tried in in_groups(scores, map(_pairs_of, context.pools)):
        first = max(tried, key=lambda score: score.accuracy)
        best.append(Prediction.of(first))
    return best


def best_text_share(context: EvaluationContext, shots: Sequence[int]) -> float:
    """The share of the question in nearest_both with the best mean accuracy; 1 for tasks without pictures."""
    if not context.corpus.has_images:
        return 1.0
    values = {}
    for share in TEXT_SHARES:
        results = Results.of(context.queries)
        arm = NearestBoth()
        arm.text_weight = share
        run_arm(results, context, arm, sorted(shots))
        means = [results.accuracy(arm.spec, n).mean() for n in shots]
        values[share] = float(np.mean(means))
    # the smaller share among equals
    return max(values, key=lambda share: (values[share], -share))


def calibrate(draw: Sequence[Prediction], task: Task) -> list[Prediction]:
    """Batch calibration of one arm at one number of shots: every label's mean over the items is subtracted.

    Demonstrations shift the log-probabilities of all answers: the label shown last, or most often, gains on every
    item. A label's mean log-probability over all evaluated items estimates that shift. It needs the other items of the
    split, not their labels. After Zhou et al., Batch Calibration, ICLR 2024, with the mean taken of log-probabilities.
    """
    labels = list(draw[0].choices)
    rows = []
    for own in draw:
        if not labels or list(own.choices) != labels:
            raise NotMeasured(
                "calibration needs the log-probability of every label on every item; set eval.calibrate = false, or use a "
                "task with labels and a backend that offers log-probabilities"
            )
        rows.append(list(own.choices.values()))
    logprobs = np.array(rows)  # (items, labels)
    best = (logprobs - logprobs.mean(axis=0)).argmax(axis=1)  # (items,)
    calibrated = []
    for own, place in zip(draw, best.tolist(), strict=True):
        answer = labels[place]
        accuracy = task.answers.score(answer, task.item(own.item))
        calibrated.append(replace(own, answer=answer, accuracy=accuracy))
    return calibrated


def add_calibrated(results: Results, task: Task) -> None:
    """Adds `ARM_calibrated` with calibrated answers for every arm whose answers are the model's; no call.

    Answers that were made of several have no log-probabilities of their own. An oracle picks by the answers as they were
    given, so calibrating it afterwards would mean nothing.
    """
    for arm, shots, draw in list(results):
        if asks_model(arm) and arm not in YARDSTICKS and draw[0].choices:
            results.add(arm + CALIBRATED, shots, calibrate(draw, task))


def mean_shots(results: Results, arm: str) -> list[int] | None:
    """The shots an arm's mean is over: those of 1-4 that were evaluated; None if the arm lacks some of them."""
    own = results.shots(arm)
    if own == [0]:
        return own
    evaluated = [n for n in results.every_shots() if n in MEAN_SHOTS]
    if not evaluated or not set(evaluated) <= set(own):
        return None
    return evaluated


def arm_results(
    results: Results, training_calls: int | None = 0, *, intervals: bool = True
) -> dict[str, ArmResult]:
    """Every arm's accuracy by shots, its mean over 1-4 where it has them, and its calls; with 95 % intervals.

    A single item or picture has no interval (None).
    """
    table = {}
    for arm in results.draws:
        by_shots = {}
        ci95 = {}
        for n in results.shots(arm):
            accuracy = results.accuracy(arm, n)
            by_shots[n] = float(accuracy.mean())
            if intervals:
                ci95[n] = known_interval(accuracy, clusters=results.images)
        wanted = mean_shots(results, arm)
        mean = None
        if wanted is not None:
            mean = float(np.mean([by_shots[n] for n in wanted]))
        facts = facts_of(arm)
        spent = facts.fit_calls
        if facts.trained:
            spent = training_calls or 0
        table[arm] = ArmResult(
            shots=by_shots,
            title=facts.title,
            calls_per_question=facts.calls,
            training_calls=spent,
            mean=mean,
            ci95=ci95,
        )
    return table


def gap_closed(table: Mapping[str, ArmResult]) -> dict[str, dict[str, float]]:
    """(arm - random) / (oracle - random) by shots, where an oracle was run and there is a gap.

    Arms that show nothing are left out: they read all labels, while the gap is that of choosing.
    """
    if "oracle" not in table or "random" not in table:
        return {}
    top = _by_key(table["oracle"])
    floor = _by_key(table["random"])
    closed: dict[str, dict[str, float]] = {}
    for arm, own in table.items():
        if arm.removesuffix(CALIBRATED) in ("random", "zero_shot", *YARDSTICKS):
            continue
        if not facts_of(arm).asks_model and list(own.shots) == [0]:
            continue
        closed[arm] = {}
        for key, value in _by_key(own).items():
            if key in top and key in floor and top[key] > floor[key]:
                gap = top[key] - floor[key]
                closed[arm][key] = (value - floor[key]) / gap
    return closed


def _by_key(own: ArmResult) -> dict[str, float]:
    """The accuracies of an arm by number of shots as text, and its mean."""
    values = {str(n): value for n, value in own.shots.items()}
    if own.mean is not None:
        values["mean"] = own.mean
    return values


def comparisons(
    results: Results, pairs: Sequence[tuple[str, str]]
) -> list[ComparisonRow]:
    """Arms against baselines at every common number of shots, images as clusters.

    One question is one arm against all it is compared with: p values are corrected within it.
    """
    table = []
    rivals: dict[str, list[str]] = {}
    for arm, baseline in pairs:
        rivals.setdefault(arm, []).append(baseline)
    for arm, baselines in rivals.items():
        names: list[tuple[str, int]] = []
        found = []
        for baseline in baselines:
            for shots in results.shots(arm):
                against = results.against(baseline, shots)
                if against is not None:
                    first = results.accuracy(arm, shots)
                    second = results.accuracy(baseline, against)
                    found.append(compare(first, second, clusters=results.images))
                    names.append((baseline, shots))
        for (baseline, shots), comparison in zip(names, adjust(found), strict=True):
            figures = comparison.as_json()
            row = ComparisonRow(arm=arm, baseline=baseline, shots=shots, **figures)
            table.append(row)
    return table


def compared_pairs(results: Results) -> list[tuple[str, str]]:
    """The pairs that eval.json compares: every trained arm with what it names, else with every baseline.

    Baselines look at no answers, and learn nothing or show everybody the same. Calibrated arms are compared with
    calibrated ones.
    """
    baselines = []
    for arm in results.draws:
        facts = facts_of(arm)
        plain = arm.removesuffix(CALIBRATED)
        if plain not in YARDSTICKS and (facts.same_for_all or not facts.trained):
            baselines.append(arm)
    pairs = []
    for arm in results.draws:
        facts = facts_of(arm)
        if not facts.trained:
            continue
        ending = ""
        if arm.endswith(CALIBRATED):
            ending = CALIBRATED
        named = [name + ending for name in facts.compared_with]
        for rival in named or baselines:
            fits = rival.endswith(ending) and rival != arm
            if fits and rival in results.draws:
                pairs.append((arm, rival))
    return pairs


def first_record(
    context: EvaluationContext, results: Results, split: str
) -> EvaluationRecord:
    """A whole record from the answers alone; what is computed from them is filled in later."""
    meter = context.scorer.meter
    table = arm_results(results, meter.calls(TRAINING), intervals=False)
    scored = context.scorer.context
    return EvaluationRecord(
        task=context.task.name,
        split=split,
        n=len(results.items),
        model_calls=meter.calls(TRAINING),
        eval_calls=meter.calls(EVALUATION),
        arms=table,
        gap_closed=gap_closed(table),
        context=scored.digest.hex(),
        conditions=conditions_of(scored, split, results.items, context.pools),
    )
