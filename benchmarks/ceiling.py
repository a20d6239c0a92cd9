"""What could a selector reach on the world that knows everything but what single annotators happen to say?

    python benchmarks/ceiling.py                                    worlds 0-3, 400 dev items each, 1-4 shots
    python benchmarks/ceiling.py --worlds 1 --n 60                  smaller
    python benchmarks/ceiling.py --jobs 4 --out ceiling.json        a process for each world
    python benchmarks/ceiling.py --pairs 20                         is greedy a fair ceiling at two shots?

The informed chooser knows the facts of the world, the probabilities of its generator and what the frozen model answers
with every candidate. It does not know what these annotators said: which dialect the picture was labelled in (its
background hints at it), who was careless, whether the item is mislabelled. It takes the candidate whose answer has the
largest expected accuracy, one after the other, as the greedy oracle takes the one with the largest accuracy. At one
shot nothing that does not look at the query's answers can have a larger expectation; at more it is the greedy one, and
equal candidates are taken by their ids. --pairs tries all ordered pairs on the first items of every world.

`informed` is its accuracy against these annotators, `informed_expected` its expectation over all annotators that the
generator could have drawn; they differ by luck only. Intervals are over items, pictures drawn whole; that of the share
of the gap draws all arms of an item together (`leverplus.lab.summary.gap`). Worlds are not drawn.

Scores are kept in --work, one store for each world, so a second run asks the model nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from leverplus.errors import EvaluationError
from leverplus.metrics import vqa_accuracy
from leverplus.world import questions
from leverplus.world.words import BACKGROUNDS, COLOURS, RELATIONS, SHAPES, THINGS

if TYPE_CHECKING:
    from leverplus.experiment.run import Run
    from leverplus.types import Item, Score
    from leverplus.world.facts import Facts

ARMS = ("random", "informed", "informed_expected", "oracle")
INFORMED = ("informed", "informed_expected")
RANDOM_DRAWS = 3
PAIRS_AT_ONCE = 4  # items whose pairs are held in memory together

NAMES = {name: (thing, dialect) for thing, pair in enumerate(THINGS) for dialect, name in enumerate(pair)}
ACCURACY_BY_COUNT = tuple(
    vqa_accuracy("named", ["named"] * count + ["other"] * (questions.ANNOTATORS - count))
    for count in range(questions.ANNOTATORS + 1)
)
"""The accuracy of an answer that so many of the ten annotators gave."""


class Outlook(NamedTuple):
    """What can be known of an item's annotators before they speak: the true things, and the chance of each dialect."""

    things: tuple[int, ...]
    dialects: tuple[float, float]


class Choice(NamedTuple):
    """What the informed chooser took: its score against the annotators, and the accuracy it expected."""

    score: Score
    expected: float


def outlook(item: Item, facts: Facts) -> Outlook:
    """The outlook of an item of the world; both dialects are equally common, so a background's cue is the chance."""
    seen = [
        np.array([names.index(item.meta[key])])
        for key, names in (("relation", RELATIONS), ("shape", SHAPES), ("colour", COLOURS))
    ]
    things = questions.true_things(facts, *seen)[0]
    side, kind = divmod(BACKGROUNDS.index(item.meta["background"]), len(questions.CUES))
    typical = questions.CUES[kind]
    dialects = (typical, 1 - typical) if side == 0 else (1 - typical, typical)
    return Outlook(tuple(int(thing) for thing in things if thing != questions.NONE), dialects)


def agreement(chance: float) -> float:
    """The expected accuracy of an answer that each of the ten annotators gives with this chance, independently."""
    n = questions.ANNOTATORS
    terms = []
    for count, accuracy in enumerate(ACCURACY_BY_COUNT):
        terms.append(math.comb(n, count) * chance**count * (1 - chance) ** (n - count) * accuracy)
    return sum(terms)


@lru_cache(maxsize=1 << 16)
def expected_accuracy(answer: str, ahead: Outlook) -> float:
    """The expected VQA accuracy of an answer, exactly.

    Given the dialect and the things that the annotators mean (the true ones, or the wrong ones of a mislabelled item,
    which may be the true ones by chance), the annotators are independent: each says this answer if it speaks the
    answer's dialect and means its things, or is careless and draws them. Both words of an answer have one dialect. The
    names are as the metric compares them, so nothing else can match.
    """
    named = [NAMES.get(word) for word in answer.split()]
    known = [name for name in named if name is not None]
    spoken = {dialect for _, dialect in known}
    if len(known) != len(named) or len(named) != len(ahead.things) or len(spoken) != 1:
        return 0.0
    dialect = spoken.pop()
    drawn = len(THINGS) ** -len(named)  # the chance that things drawn at random are those of the answer
    right = tuple(thing for thing, _ in known) == ahead.things
    meant = (1 - questions.MISLABELLED) * right + questions.MISLABELLED * drawn
    by_chance = questions.CARELESS * drawn
    total = 0.0
    for place, probability in enumerate(ahead.dialects):
        speaks = 1 - questions.OTHER_DIALECT if place == dialect else questions.OTHER_DIALECT
        total += probability * meant * agreement(speaks * (1 - questions.CARELESS + by_chance))
        total += probability * (1 - meant) * agreement(speaks * by_chance)
    return total


def outlooks(run: Run, items: Sequence[Item]) -> dict[str, Outlook]:
    """The outlook of every item of a run on the world."""
    from leverplus.tasks.world import WorldTask
    from leverplus.world.facts import draw_facts

    if not isinstance(run.task, WorldTask):
        raise EvaluationError(f"only the world's annotators are known; the task of this run is '{run.task.name}'")
    facts = draw_facts(run.task.world_seed)
    return {item.id: outlook(item, facts) for item in items}


def informed(run: Run, items: Sequence[Item], shots: int) -> list[list[Choice]]:
    """For every item the informed chooser's greedy choice of 1..shots demonstrations from its pool."""
    from leverplus.scoring.scorer import EVALUATION
    from leverplus.scoring.search import beam_groups, best_of_each_length

    ahead = outlooks(run, items)

    def expected(score: Score) -> float:
        return expected_accuracy(score.answer, ahead[score.query])

    groups = beam_groups(
        run.scorer,
        run.pools(items)[0],
        shots=shots,
        width=1,
        objective=expected,
        purpose=EVALUATION,
        what="informed chooser",
    )
    return [
        [Choice(score, expected(score)) for score in group.scores] for group in best_of_each_length(groups, 1, expected)
    ]


def best_pairs(run: Run, items: Sequence[Item]) -> dict[str, list[float]]:
    """The largest expected and the largest real accuracy of all ordered pairs of every item's pool."""
    from leverplus.scoring.scorer import EVALUATION

    ahead = outlooks(run, items)
    best: dict[str, list[float]] = {"informed_expected": [], "oracle": []}
    pools = run.pools(items)[0]
    for start in range(0, len(pools), PAIRS_AT_ONCE):
        prompts = [
            [(pool.query, pair) for pair in permutations(pool.candidates, 2)]
            for pool in pools[start : start + PAIRS_AT_ONCE]
        ]
        scores = iter(run.scorer.score([prompt for own in prompts for prompt in own], EVALUATION, "all ordered pairs"))
        for own in prompts:
            tried = [next(scores) for _ in own]
            best["informed_expected"].append(max(expected_accuracy(s.answer, ahead[s.query]) for s in tried))
            best["oracle"].append(max(score.accuracy for score in tried))
    return best


def open_world(args: argparse.Namespace, world: int) -> Run:
    """The run of one world, with the pools and items that the recipe `best` is measured on; nothing is trained."""
    from leverplus.experiment.run import Run
    from leverplus.recipe.recipe import load_recipe

    recipe = load_recipe("best", [f"task.world_seed={world}", "score.chunk=8192", *args.set])
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    return Run(recipe, work, 0, work / f"world{world}.db")


def measure(args: argparse.Namespace, world: int) -> dict[str, Any]:
    """Accuracies (shots, items) of every arm in one world, and the best pairs of its first items."""
    import torch

    from leverplus.evaluation import arms
    from leverplus.evaluation.evaluate import run_arm
    from leverplus.evaluation.predictions import Prediction, Results
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.scoring.search import greedy_oracle, random_sequences

    started, shots = time.perf_counter(), range(1, args.shots + 1)
    if args.jobs > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.jobs))
    run = open_world(args, world)
    items = run.chosen_items(args.split, args.n)
    context, results = evaluation_context(run, items), Results.of(items)
    if args.pairs and (args.shots < 2 or len(set(results.images[: args.pairs])) < 2):
        raise SystemExit(f"--pairs {args.pairs} needs --shots of at least 2 and items on at least 2 pictures")

    def say(what: str) -> None:
        seconds = time.perf_counter() - started
        print(f"world {world}, {seconds:.0f} s: {what}, {run.scorer.meter.fresh:,} asked", file=sys.stderr, flush=True)

    for draw in range(RANDOM_DRAWS):
        drawn = random_sequences(context.pools, args.shots, draw)
        run_arm(results, context, "random", arms.prefixes([drawn[pool.query] for pool in context.pools], shots))
    say("random")
    chosen = informed(run, items, args.shots)
    say("informed")
    looked = greedy_oracle(run.scorer, context.pools, args.shots)
    say("oracle")
    for n in shots:
        results.add("informed", n, [Prediction.of(own[n - 1].score) for own in chosen])
        results.add("oracle", n, [Prediction.of(own[n - 1]) for own in looked])
    accuracy = {arm: [results.accuracy(arm, n).tolist() for n in shots] for arm in results.draws}
    accuracy["informed_expected"] = [[own[n - 1].expected for own in chosen] for n in shots]
    pairs = best_pairs(run, items[: args.pairs]) if args.pairs else None
    if pairs:
        say("pairs")
    return {
        "world": world,
        "images": list(results.images),
        "accuracy": accuracy,
        "pairs": pairs,
        "recipe_hash": run.recipe.hash,
        "backend": dict(run.backend.fingerprint()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "fresh_calls": run.scorer.meter.fresh,
        "seconds": time.perf_counter() - started,
    }


def figures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracies and shares of the gap by shots and in the mean, over the items of some worlds side by side."""
    from leverplus.lab.summary import share_of_gap
    from leverplus.stats import mean_interval

    images = [f"{record['world']}:{image}" for record in records for image in record["images"]]
    scores: dict[str, dict[str, Any]] = {}
    for arm in ARMS:
        by_shots = np.concatenate([np.asarray(record["accuracy"][arm]) for record in records], axis=1)
        scores[arm] = {**{str(n): row for n, row in enumerate(by_shots, 1)}, "mean": by_shots.mean(axis=0)}
    return {
        "worlds": [record["world"] for record in records],
        "n": len(images),
        "arms": {
            arm: {
                key: {"accuracy": float(own.mean()), "ci95": list(mean_interval(own, clusters=images))}
                for key, own in by_key.items()
            }
            for arm, by_key in scores.items()
        },
        "gap_closed": {
            arm: {
                key: share_of_gap(own, scores["random"][key], scores["oracle"][key], images)
                for key, own in by_key.items()
            }
            for arm, by_key in scores.items()
            if arm in INFORMED
        },
        "pairs": pair_figures(records),
    }


def pair_figures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far the best of all ordered pairs is above the greedy pair, as the informed chooser and the oracle see it."""
    from leverplus.stats import paired_bootstrap
    from leverplus.stats.paired import paired_differences

    if records[0]["pairs"] is None:
        return None
    found = {}
    for arm in records[0]["pairs"]:
        best = np.concatenate([record["pairs"][arm] for record in records])
        greedy = np.concatenate([record["accuracy"][arm][1][: len(record["pairs"][arm])] for record in records])
        images = [f"{own['world']}:{image}" for own in records for image in own["images"][: len(own["pairs"][arm])]]
        higher = paired_differences(best, greedy)
        found[arm] = {
            "n": len(best),
            "greedy": float(greedy.mean()),
            "best": float(best.mean()),
            "diff": float(higher.mean()),
            "ci95": list(paired_bootstrap(best, greedy, clusters=images)),
            "items_above": float((higher > 0).mean()),
        }
    return found


def show(found: Mapping[str, Any]) -> str:
    """The figures as Markdown: accuracies, shares of the gap, and pairs where they were tried."""
    keys = [*(str(n) for n in range(1, found["shots"] + 1)), "mean"]
    rows = [(str(row["worlds"][0]), row) for row in found["by_world"]]
    rows += [("all", found["all"])] if len(rows) > 1 else []
    rule = "|---" * (len(keys) + 2) + "|"
    lines = [f"| world | accuracy | {' | '.join(keys)} (95 % interval) |", rule]
    for world, row in rows:
        for arm, own in row["arms"].items():
            cells = [f"{own[key]['accuracy']:.3f}" for key in keys]
            low, high = own["mean"]["ci95"]
            lines.append(f"| {world} | {arm} | {' | '.join(cells)} ({low:.3f} to {high:.3f}) |")
    lines += ["", f"| world | gap closed, % (95 % interval) | {' | '.join(keys)} |", rule]
    for world, row in rows:
        for arm, shares in row["gap_closed"].items():
            lines.append(f"| {world} | {arm} | {' | '.join(share(shares[key]) for key in keys)} |")
    if found["all"]["pairs"]:
        lines += ["", "| world | best pair | n | greedy | best of all | difference (95 %) | items above greedy, % |"]
        lines.append("|---|---|---|---|---|---|---|")
        for world, row in rows:
            for arm, own in row["pairs"].items():
                low, high = own["ci95"]
                lines.append(
                    f"| {world} | {arm} | {own['n']} | {own['greedy']:.3f} | {own['best']:.3f} | {own['diff']:+.3f} "
                    f"({low:+.3f} to {high:+.3f}) | {100 * own['items_above']:.0f} |"
                )
    asked = f"{found['fresh_calls']:,} prompts asked of the model, {found['seconds']:.0f} s, {found['device']}"
    return "\n".join([*lines, "", f"{found['split']}, n = {found['n']} a world; {asked}"])


def share(gap: Mapping[str, Any] | None) -> str:
    """A share of the gap in percent with its interval; a dash where the oracle is not above random."""
    if gap is None:
        return "-"
    low, high = gap["ci95"]
    return f"{100 * gap['share']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--split", default="dev", choices=("dev", "test"))
    parser.add_argument("--n", type=int, default=400, help="items a world; 0: all")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="try all ordered pairs on the first N items")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one world each")
    parser.add_argument("--work", default="runs/ceiling", help="where scores are kept")
    parser.add_argument("--out", type=Path, help="file of the figures, JSON")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another recipe setting")
    args = parser.parse_args()
    started, work = time.perf_counter(), partial(measure, args)
    if args.jobs > 1:
        # spawned, not forked: a forked process cannot use the GPU of its parent
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
            records = list(pool.map(work, args.worlds))
    else:
        records = [work(world) for world in args.worlds]
    found = {
        "benchmark": "ceiling",
        "split": args.split,
        "n": len(records[0]["images"]),
        "shots": args.shots,
        "by_world": [figures([record]) for record in records],
        "all": figures(records),
        "fresh_calls": sum(record["fresh_calls"] for record in records),
        "seconds": time.perf_counter() - started,
        **{key: records[0][key] for key in ("backend", "device")},
        "recipe_hashes": [record["recipe_hash"] for record in records],
    }
    print(show(found))
    print(json.dumps(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
