"""The pilot of a run: some demonstrations, drawn by chance, asked with some training queries before training.

It says what choosing can gain, and finds one list of every length that could be shown to everybody. Its calls are
part of `score.budget`, and its answers are stored like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import rundir
from leverplus.errors import DataError
from leverplus.experiment.run import Run
from leverplus.rundir import read_json, write_json
from leverplus.types import Demos, Item, ItemId

if TYPE_CHECKING:
    from leverplus.types import Score


def fixed_lists(run: Run) -> dict[int, Demos]:
    """The list that everybody is shown, by its length; empty where the recipe asks for no pilot."""
    if not run.recipe.score.pilot:
        return {}
    return {int(shots): tuple(map(ItemId, own["demos"])) for shots, own in pilot_of(run)["fixed"].items()}


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
    from leverplus.effects.pilot import SMALLEST_GAIN, judge_pilot
    from leverplus.scoring.scorer import TRAINING

    section = run.recipe.score
    run.training_queries()  # a budget that pays for no training is refused before the pilot is paid for
    queries, demos = pilot_items(run)
    alone = run.scorer.score([(query.id, ()) for query in queries], TRAINING, "pilot, no demonstration")
    prompts = [(query.id, (demo.id,)) for query in queries for demo in demos]
    each = run.scorer.score(prompts, TRAINING, "pilot, one demonstration")
    table = np.array([score.accuracy for score in each]).reshape(len(queries), len(demos))  # (Q, D)
    lists, tried, list_gains = _best_lists(run, queries, demos, table, each)
    verdict = judge_pilot(
        table,
        corpus=len(run.demonstrations),
        candidates=run.recipe.pool.size,
        calls=max(1, section.budget - run.recipe.reserve()),
        seed=run.seed,
    )
    facts: dict[str, Any] = {
        "queries": len(queries),
        "demonstrations": len(demos),
        "calls": len(queries) * (1 + len(demos) + tried),
        "zero_shot": float(np.mean([score.accuracy for score in alone])),
        "one_shot": float(table.mean()),
        "shares": verdict.shares.as_json(),
        "by_effect": {
            "gain": verdict.by_effect.gain,
            "ci95": list(verdict.by_effect.ci95),
            "calls": verdict.by_effect.calls,
        },
        "any_choice": {"gain": verdict.most, "ci95": list(verdict.most_ci95)},
        "list_gains": list_gains,
        "worth_training": verdict.worth_training or max(list_gains.values(), default=0.0) >= SMALLEST_GAIN,
        "fixed": lists,
    }
    return {**facts, "says": _sentences(facts)}


def pilot_items(run: Run) -> tuple[list[Item], list[Item]]:
    """The queries and the demonstrations of the pilot; no picture is on both sides.

    The queries are the first of the training queries, so that what training asks of them anyway is asked once.
    """
    section = run.recipe.score
    order = run.shuffled_queries()
    most = min(section.pilot, len(order) // 2)
    queries = order[:most]
    taken = {item.id for item in queries}
    pictures = {item.image for item in queries} - {None}
    free = [item for item in run.demonstrations if item.id not in taken and item.image not in pictures]
    chosen = np.random.default_rng([run.seed, 53]).permutation(len(free))[: section.pilot_demos]
    demos = [free[int(place)] for place in chosen]
    if min(len(queries), len(demos)) < 2:
        raise DataError(
            f"score.pilot = {section.pilot}: a pilot needs two training queries and two other demonstrations; "
            f"there are {len(queries)} and {len(demos)}; set score.pilot = 0"
        )
    return queries, demos


def _best_lists(
    run: Run, queries: Sequence[Item], demos: Sequence[Item], table: np.ndarray[Any, Any], each: Sequence[Score]
) -> tuple[dict[str, Any], int, dict[str, float]]:
    """For every number of shots the better of two lists, by effect alone and with different answers first.

    Where these are one, the demonstrations of least effect are the second list.
    Also how many lists were tried, and for every number above one with two different lists, what knowing the better
    of both for every query would be worth: a model that one demonstration does not move may be moved by four.
    """
    from leverplus.effects.pilot import by_effect, different_answers_first, room_to_choose
    from leverplus.scoring.scorer import TRAINING

    finer = None
    if all(score.weighed for score in each):
        finer = np.array([score.gt_prob for score in each]).reshape(table.shape)
    ranked = by_effect(table, finer).tolist()
    mixed = different_answers_first(ranked, [demo.answer for demo in demos])
    found: dict[str, Any] = {}
    gains: dict[str, float] = {}
    count = 0
    for shots in sorted(run.recipe.eval.shots):
        if shots > len(demos):
            continue
        if shots == 1:
            found["1"] = {"demos": [demos[ranked[0]].id], "train": float(table[:, ranked[0]].mean())}
            continue
        tried: list[dict[str, Any]] = []
        scores: list[list[float]] = []  # (lists, Q)
        orders = list(dict.fromkeys((tuple(ranked[:shots]), tuple(mixed[:shots]))))
        if len(orders) == 1 and 2 * shots <= len(ranked):
            orders.append(tuple(ranked[-shots:]))  # another list, to see whether lists of this length matter
        for order in orders:
            own = tuple(demos[place].id for place in order[::-1])  # the best next to the query
            asked = run.scorer.score([(query.id, own) for query in queries], TRAINING, f"pilot, lists of {shots}")
            scores.append([score.accuracy for score in asked])
            tried.append({"demos": list(own), "train": float(np.mean(scores[-1]))})
        found[str(shots)] = max(tried, key=lambda own: own["train"])  # the first among equals
        count += len(tried)
        if len(tried) > 1:
            gains[str(shots)] = float(room_to_choose(np.array(scores).T).mean())
    return found, count, gains


def _sentences(facts: dict[str, Any]) -> list[str]:
    """What the pilot says, for people."""
    shares, effect, most = facts["shares"], facts["by_effect"], facts["any_choice"]
    says = [
        f"{facts['queries']} training queries x {facts['demonstrations']} demonstrations drawn by chance, "
        f"{facts['calls']:,} calls with the lists for everybody",
        f"accuracy {100 * facts['zero_shot']:.1f} % without a demonstration, {100 * facts['one_shot']:.1f} % with one "
        "drawn by chance",
        f"variance of a score with one demonstration: {100 * shares['query']:.0f} % between queries, "
        f"{100 * shares['demonstration']:.1f} % demonstrations' own effects, "
        f"{100 * shares['interaction_and_luck']:.0f} % interaction and luck",
        f"with one demonstration a prompt, their own effects may be worth {_gain(effect)} to {effect['calls']:,} calls "
        f"of training; knowing the best of {facts['demonstrations']} for every query would be worth {_gain(most)}, "
        "which no choice reaches",
    ]
    best = max(facts["fixed"], key=lambda shots: facts["fixed"][shots]["train"], default=None)
    if best is not None:
        own = facts["fixed"][best]
        says.append(
            f"the best list for everybody has {best}: {', '.join(own['demos'])} ({100 * own['train']:.1f} % on these "
            "queries, on which it was chosen)"
        )
    if by_shots := facts["list_gains"]:
        gains = ", ".join(f"{100 * gain:+.1f} points with {shots}" for shots, gain in by_shots.items())
        says.append(f"knowing the better of two such lists for every query would be worth {gains}")
    else:
        says.append("what a choice is worth with more than one demonstration was not asked")
    says.append(
        "training goes on"
        if facts["worth_training"]
        else "the answers do not depend on what is shown, so training is left out and its calls are saved"
    )
    return says


def _gain(found: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in found["ci95"])
    return f"{100 * found['gain']:+.1f} points ({low:+.1f} to {high:+.1f})"
