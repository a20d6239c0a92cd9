"""The pilot of a run: some demonstrations, drawn by chance, asked with some training queries before training.

It says what choosing can gain, and finds one list of every length that could be shown to everybody. Its calls are
part of `score.budget`, and its answers are stored like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data import rundir
from leverplus.data.rundir import read_json, write_json
from leverplus.data.types import Demos, Item
from leverplus.errors import DataError
from leverplus.evaluate.stats.bootstrap import mean_interval
from leverplus.run.run import Run
from leverplus.scores.scorer import TRAINING

Floats = NDArray[np.float64]
SMALLEST_GAIN = 0.005
"""Gains that cannot exceed half a point are not worth training for."""


def pilot_of(run: Run) -> dict[str, Any]:
    """What the pilot of a run found, made now if it has not been made."""
    path = run.folder / rundir.PILOT
    if path.is_file():
        return read_json(path)
    found = _make_pilot(run)
    write_json(path, found)
    for line in found["says"]:
        run.say(f"pilot: {line}")
    return found


def _make_pilot(run: Run) -> dict[str, Any]:
    queries, demos = pilot_items(run)
    calls = 0

    def ask(lists: Sequence[Demos], what: str) -> tuple[Floats, Floats | None]:
        """Accuracy of every query with every list, and the probability of the right answer where it was measured."""
        nonlocal calls
        prompts = list(product([query.id for query in queries], lists))
        calls += len(prompts)
        scores = run.scorer.score(prompts, TRAINING, f"pilot, {what}")
        shape = (len(queries), len(lists))
        accuracy = np.array([score.accuracy for score in scores]).reshape(shape)
        if not all(score.weighed for score in scores):
            return accuracy, None
        return accuracy, np.array([score.gt_prob for score in scores]).reshape(shape)

    answers = [demo.answer for demo in demos]
    alone, _ = ask([()], "no demonstration")
    table, finer = ask([(demo.id,) for demo in demos], "one demonstration")
    ranked = by_effect(table, finer)
    room = room_to_choose(table)
    best = ranked[0]
    fixed = {"1": {"demos": [demos[best].id], "train": float(table[:, best].mean())}}
    gains = {}
    for shots in sorted(run.recipe.eval.shots):
        if not 1 < shots <= len(demos):
            continue
        lists = _candidate_lists(ranked, answers, shots)
        ids = []
        for own in lists:
            ids.append(tuple(demos[place].id for place in own))
        accuracy, _ = ask(ids, f"lists of {shots}")
        first = int(accuracy.mean(axis=0).argmax())
        mean = float(accuracy[:, first].mean())
        fixed[str(shots)] = {"demos": list(ids[first]), "train": mean}
        if len(lists) > 1:
            gains[str(shots)] = float(room_to_choose(accuracy).mean())
    most = max([float(room.mean()), *gains.values()])
    # where no score of a query differed, at most 3 / Q of the queries can (the rule of three)
    interval = (0.0, min(1.0, 3.0 / len(room)))
    if room.any():
        interval = mean_interval(room)
    facts = {
        "queries": len(queries),
        "demonstrations": len(demos),
        "calls": calls,
        "zero_shot": float(alone.mean()),
        "one_shot": float(table.mean()),
        "any_choice": {"gain": float(room.mean()), "ci95": list(interval)},
        "list_gains": gains,
        "worth_training": most >= SMALLEST_GAIN,
        "fixed": fixed,
    }
    return {**facts, "says": _sentences(facts, trains=bool(run.recipe.stages))}


def pilot_items(run: Run) -> tuple[list[Item], list[Item]]:
    """The queries and the demonstrations of the pilot; no picture is on both sides.

    The queries are the first of the training queries, so that what training asks of them anyway is asked once.
    """
    section = run.recipe.score
    order = run.shuffled_queries()
    queries = order[: min(section.pilot, len(order) // 2)]
    taken = set()
    pictures = set()
    for item in queries:
        taken.add(item.id)
        pictures.add(item.image)
    pictures.discard(None)
    free = []
    for item in run.demonstrations:
        if item.id not in taken and item.image not in pictures:
            free.append(item)
    drawn = np.random.default_rng([run.seed, 53]).permutation(len(free))
    demos = [free[int(place)] for place in drawn[: section.pilot_demos]]
    if min(len(queries), len(demos)) < 2:
        raise DataError(
            f"score.pilot = {section.pilot}: a pilot needs two training queries and two other demonstrations; "
            f"there are {len(queries)} and {len(demos)}; set score.pilot = 0"
        )
    return queries, demos


def room_to_choose(scores: Floats) -> Floats:
    """What every query's best score has above its mean, (Q,), of scores (Q, choices).

    It takes luck for knowledge and needs the answers, so no choice among as many reaches it.

    >>> room_to_choose(np.array([[1.0, 0.0, 0.5], [0.3, 0.3, 0.3]]))
    array([0.5, 0. ])
    """
    room: Floats = np.maximum(0.0, scores.max(axis=1) - scores.mean(axis=1))
    return room


def by_effect(scores: Floats, finer: Floats | None = None) -> list[int]:
    """The columns of scores (Q, D), best mean first; equal ones by the mean of `finer` scores, then by their place."""
    if finer is None:
        finer = scores
    first = -scores.mean(axis=0).round(12)
    second = -finer.mean(axis=0)
    # the last key counts most, and the sort keeps equal ones in order
    order: list[int] = np.lexsort((second, first)).tolist()
    return order


def different_answers_first(ranked: Sequence[int], answers: Sequence[str]) -> list[int]:
    """Columns of a ranking, the best of every answer first, then the second best of every answer, and so on.

    >>> different_answers_first([3, 1, 0, 2], ["a", "a", "b", "a"])
    [3, 2, 1, 0]
    """
    seen: dict[str, int] = {}
    turn = []
    for place in ranked:
        turn.append(seen.get(answers[place], 0))
        seen[answers[place]] = turn[-1] + 1
    return [ranked[rank] for rank in np.argsort(turn, kind="stable").tolist()]


def _candidate_lists(
    ranked: Sequence[int], answers: Sequence[str], shots: int
) -> list[tuple[int, ...]]:
    """Two lists of one length, the best next to the query: by effect alone, and with different answers first.

    Where these are one, the demonstrations of least effect are the second: a model that one demonstration does not
    move may be moved by several, and two lists show it.
    """
    mixed = different_answers_first(ranked, answers)
    orders = list(dict.fromkeys((tuple(ranked[:shots]), tuple(mixed[:shots]))))
    if len(orders) == 1 and 2 * shots <= len(ranked):
        orders.append(tuple(ranked[-shots:]))
    return [order[::-1] for order in orders]


def _sentences(facts: dict[str, Any], *, trains: bool) -> list[str]:
    """What the pilot says, for people."""
    any_choice = facts["any_choice"]
    fixed = facts["fixed"]
    gains = facts["list_gains"]
    low, high = any_choice["ci95"]
    best = max(fixed, key=lambda shots: fixed[shots]["train"])
    says = [
        f"{facts['queries']} training queries x {facts['demonstrations']} demonstrations drawn by chance, "
        f"{facts['calls']:,} calls with the lists for everybody",
        f"accuracy {100 * facts['zero_shot']:.1f} % without a demonstration, {100 * facts['one_shot']:.1f} % with one "
        "drawn by chance",
        f"knowing the best of {facts['demonstrations']} for every query would be worth {100 * any_choice['gain']:+.1f} "
        f"points ({100 * low:+.1f} to {100 * high:+.1f}), which no choice reaches",
        f"the best list for everybody has {best}: {', '.join(fixed[best]['demos'])} ({100 * fixed[best]['train']:.1f} % "
        "on these queries, on which it was chosen)",
    ]
    for shots, gain in gains.items():
        says.append(
            f"knowing the better of two such lists of {shots} for every query would be worth {100 * gain:+.1f} points"
        )
    if trains and facts["worth_training"]:
        says.append("training goes on")
    elif trains:
        says.append(
            "the answers do not depend on what is shown, so training is left out and its calls are saved"
        )
    return says
