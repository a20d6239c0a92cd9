"""What is asked about lists: rivals, lists drawn for learning, and the inputs that travel to the machine that asks.

`prepare` reads the data, the vectors and the recorded one-shot table and writes two files, so that nothing but numpy is
needed to go on: `okvqa.jsonl` (items) and `inputs.npz` (arrays).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_pools import (
    CHUNK,
    FOLDS,
    NO_FOLD,
    Floats,
    Ints,
    Pools,
    World,
    describe,
    fold_sets,
    make_pools,
    pick,
    scaled,
    top,
    tune_votes,
)
from record_plan import MMR_FIRST, MMR_LAMBDA, Plan, write_plan

SEED = 20
EACH = {8: 6, 16: 2}
"""Lists drawn for learning: of every question so many with so many shots."""
CHECKED = 200
"""Recorded prompts asked again."""
LONGEST = 32


@dataclass(frozen=True)
class Drawn:
    """Lists drawn for learning: question, the fold it serves, demonstrations (R, 16) filled up with -1, features."""

    rows: Ints
    serves: Ints
    demos: Ints
    features: Floats


def draw_company(world: World, order: Ints, votes: dict[int, tuple[float, float]]) -> Drawn:
    """Lists for learning. Each question serves one other fold: nothing of that fold is in its lists or its votes.

    How a list is chosen is drawn anew for each: which similarity, how much the vote and the effects count, how much
    chance, whether likeness or a repeated answer is avoided, and in which order it is shown. So whatever is chosen
    later lies among what was tried.
    """
    rng = np.random.default_rng(SEED)
    beside = np.zeros(len(order), np.int64)
    for fold in range(FOLDS):  # dealt in turn, so that any first questions serve all folds alike
        own = np.flatnonzero(world.fold[order] == fold)
        others = np.array([other for other in range(FOLDS) if other != fold])
        beside[own] = others[np.arange(len(own)) % (FOLDS - 1)]
    pools = make_pools(world, order, beside, votes)
    found: list[tuple[Ints, Floats, int]] = []
    for shots, lists in EACH.items():
        for _ in range(lists):
            places = _drawn_places(pools, shots, rng)
            demos = np.full((len(order), max(EACH)), -1)
            demos[:, :shots] = np.take_along_axis(pools.members, places, axis=1)
            found.append((demos, describe(pools, places), shots))
    lists = len(found)
    # question by question, so that a part of the rows holds whole questions
    demos = np.stack([own for own, _, _ in found], axis=1).reshape(-1, max(EACH))
    features = np.stack([own for _, own, _ in found], axis=1).reshape(len(demos), -1)
    return Drawn(np.repeat(order, lists), np.repeat(beside, lists), demos, features)


def _drawn_places(pools: Pools, shots: int, rng: np.random.Generator) -> Ints:
    """Places in prompt order (R, S) of lists with settings drawn for every question."""
    count = len(pools.rows)

    def drawn(choices: list[float]) -> Floats:
        return rng.choice(choices, size=count)[:, None]

    caption = drawn([0.0, 0.15, 0.3, 0.5])
    near = scaled((1 - caption) * pools.known["question"] + caption * pools.known["caption"])
    score = near + drawn([0.0, 0.5, 1.0, 2.0]) * scaled(pools.known["vote"])
    score += drawn([0.0, 0.0, 0.5, 1.0]) * scaled(pools.known["effect"])
    score += drawn([0.0, 0.5, 1.5]) * rng.gumbel(size=score.shape)
    places = pick(pools, score, shots, drawn([0.0, 0.0, 2.0, 6.0])[:, 0], drawn([0.0, 0.0, 1.0])[:, 0])
    shown = np.take_along_axis(near, places, axis=1)
    by_score = np.take_along_axis(score, places, axis=1)
    kind = drawn([0.0, 0.0, 1.0, 2.0])
    key = np.where(kind == 0, shown, np.where(kind == 1, by_score, rng.random(shown.shape)))
    return np.asarray(np.take_along_axis(places, np.argsort(key, axis=1, kind="stable"), axis=1))


def rivals(world: World, pools: Pools, anchors: list[int]) -> dict[str, Ints]:
    """Lists of every question (N, LONGEST) by every rival, best first: they are cut to a number of shots and turned."""
    everyone = np.arange(len(world.fold))
    nobody = np.full(len(everyone), NO_FOLD)
    found = {name: np.zeros((len(everyone), LONGEST), np.int64) for name in ("question", "both", "mixed")}
    diverse = {name: np.zeros((len(everyone), LONGEST), np.int64) for name in ("question", "mixed")}
    for start in range(0, len(everyone), CHUNK):
        rows = everyone[start : start + CHUNK]
        closed = world.excluded(rows, nobody[rows])
        for name, nearest in found.items():
            near = np.where(closed, -9.0, world.likeness(name, rows)).astype(np.float32)
            first = top(near, MMR_FIRST)
            nearest[rows] = first[:, :LONGEST]
            if name in diverse:
                diverse[name][rows] = _mmr(world, name, first, np.take_along_axis(near, first, axis=1))
    lists = {f"nearest by {name}": own for name, own in found.items()}
    lists |= {f"MMR by {name}": own for name, own in diverse.items()}
    zeros, ones = np.zeros(len(everyone)), np.ones(len(everyone))
    voted = scaled(0.7 * pools.known["question"] + 0.3 * pools.known["caption"]) + scaled(pools.known["vote"])
    for name, fresh in (("vote + similarity", zeros), ("vote + similarity, answers once", 2 * ones)):
        lists[name] = np.take_along_axis(pools.members, pick(pools, voted, LONGEST, zeros, fresh), axis=1)
    fixed = np.array([[anchor for anchor in anchors if world.fold[anchor] != own][:8] for own in world.fold])
    return lists | {"fixed anchors": fixed}


def _mmr(world: World, name: str, first: Ints, near: Any) -> Ints:
    """Maximal marginal relevance of the nearest (R, 200), as in the recorded benchmark (`record_plan.Planner`)."""
    found = np.zeros((len(first), LONGEST), np.int64)
    for row, own in enumerate(first):
        if name == "mixed":
            question, caption = (world.vectors[field][own] for field in ("question", "caption"))
            alike = 0.7 * (question @ question.T) + 0.3 * (caption @ caption.T)
        else:
            vectors = world.vectors[name][own]
            alike = vectors @ vectors.T
        worst = np.full(len(own), -np.inf)
        value = MMR_LAMBDA * near[row].astype(np.float64)
        for turn in range(LONGEST):
            gain = value if turn == 0 else value - (1 - MMR_LAMBDA) * worst
            best = int(gain.argmax())
            found[row, turn] = own[best]
            value[best] = -np.inf
            worst = np.maximum(worst, alike[best])
    return found


def one_shot_effects(table: Any, fold: Ints) -> dict[tuple[int, int], tuple[Floats, Floats]]:
    """Effects from the recorded table without all rows whose question or demonstration is in the folds named."""
    from leverplus.effects.estimate import Measured, estimate_effects

    queries = np.broadcast_to(table.queries[:, None], table.candidates.shape)
    found = {}
    for pair in fold_sets():
        used = ~np.isin(fold[queries], pair) & ~np.isin(fold[table.candidates], pair)
        both = []
        for scores in (table.accuracy, table.probability):
            data = Measured.of(queries[used], table.candidates[used], scores[used], len(fold))
            both.append(estimate_effects(data).effect)
        found[pair] = (both[0], both[1])
    return found


def recorded(table: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Prompts that were recorded, most with one demonstration and some with eight, with what was said."""
    kept = table.table
    one = [(int(q), [int(d)], int(r)) for q, d, r in _sampled(table, rng, 3 * CHECKED // 4)]
    eight = [(key[0], list(key[1:]), row) for key, row in table.longer.items() if len(key) == 9]
    chosen = one + [eight[place] for place in rng.permutation(len(eight))[: CHECKED // 4]]
    demos = np.full((len(chosen), max(EACH)), -1)
    for place, (_, own, _) in enumerate(chosen):
        demos[place, : len(own)] = own
    rows = np.array([row for _, _, row in chosen])
    answers = [kept.answers.texts[number] if number >= 0 else "" for number in kept.answer[rows]]
    return {
        "check_rows": np.array([query for query, _, _ in chosen]),
        "check_demos": demos,
        "check_accuracy": kept.accuracy[rows],
        "check_gt_prob": kept.gt_prob[rows],
        "check_answer": np.array(answers),
    }


def _sampled(table: Any, rng: np.random.Generator, count: int) -> Any:
    query = rng.integers(len(table.queries), size=count)
    place = rng.integers(table.candidates.shape[1], size=count)
    return zip(table.queries[query], table.candidates[query, place], table.one_shot[query, place], strict=True)


def prepare(args: argparse.Namespace) -> None:
    from real_data import ModelTable, TaskData, embedder

    task = TaskData("okvqa", args.data, embedder(args.cache).of_texts)
    table = ModelTable.read(task, args.table)
    vectors = {name: own.astype(np.float32) for name, own in task.vectors.items()}
    effects = one_shot_effects(table, task.fold)
    world = World(task.fold, task.group, task.shown, task.worth.astype(np.float32), vectors, effects)
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(task.items))
    votes = tune_votes(world)
    print(f"votes: {votes}")
    company = draw_company(world, order, votes)
    everyone = np.arange(len(task.items))
    pools = make_pools(world, everyone, np.full(len(everyone), NO_FOLD), votes)
    args.out.mkdir(parents=True, exist_ok=True)
    write_plan(Plan(task.items, np.zeros(0, np.int64), np.zeros((0, 1), np.int64), 0, []), args.out, "okvqa")
    lists = rivals(world, pools, task.planner.anchors)
    np.savez_compressed(
        args.out / "inputs.npz",
        order=order.astype(np.int16),
        fold=task.fold.astype(np.int8),
        company_rows=company.rows.astype(np.int16),
        company_serves=company.serves.astype(np.int8),
        company_demos=company.demos.astype(np.int16),
        company_features=company.features.astype(np.float32),
        pool_members=pools.members.astype(np.int16),
        pool_known=np.stack([own.astype(np.float32) for own in pools.known.values()]),
        pool_names=np.array(list(pools.known)),
        questions=vectors["question"].astype(np.float16),
        shown=task.shown.astype(np.int16),
        effects=np.stack([effects[fold, fold][0] for fold in range(FOLDS)]).astype(np.float32),
        rival_names=np.array(list(lists)),
        **{f"rival_{place}": own.astype(np.int16) for place, own in enumerate(lists.values())},
        **recorded(table, rng),
    )
    size = (args.out / "inputs.npz").stat().st_size
    print(f"{len(company.rows):,} lists for learning, {len(lists)} rivals, {size:,} bytes")
