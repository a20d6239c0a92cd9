"""From records to figures: accuracy, share of the gap with its interval, harm and cost of every method and budget.

Items of all worlds stand side by side, seeds under each other. The share of the gap is (arm - random) / (oracle -
random) of the means over shots. Its interval is that of the difference between the arm and the point of the same share
on the way from random to the oracle, item by item, divided by the length of that way: items and seeds both vary. Worlds
are not drawn: the interval is for these worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import EvaluationError
from leverplus.lab.jobs import ARMS, Record
from leverplus.lab.methods import TITLES
from leverplus.stats.paired import TIE

Scores = NDArray[np.float64]
MEAN_SHOTS = ("1", "2", "3", "4")
RIGHT = 0.5
"""An answer counts as right when its accuracy is at least this, as on the world's ladder."""
RESAMPLES = 1000
"""Samples drawn for the shape of an interval; its width does not depend on them."""
RIVALS = ("nearest_image", "nearest_text", "nearest_both", "two_stage", "mmr")
"""Arms without training that a selector has to beat."""
BY_LABELS = "label_rank"
"""The arm that asks nothing for training either, and knows the labels of all demonstrations."""


@dataclass(frozen=True)
class MethodSample:
    """The runs of one method: scores (seeds, items of all worlds) by arm and shots, and the arms of the same items."""

    records: Sequence[Record]
    worlds: Sequence[int]
    seeds: Sequence[int]
    own: Mapping[str, Mapping[str, Scores]]
    arms: Mapping[str, Mapping[str, Scores]]
    images: Sequence[str]

    @property
    def shots(self) -> list[str]:
        """Shots that the mean is over: those of 1-4 that were measured."""
        return [n for n in MEAN_SHOTS if n in self.own["learned"]]

    def mean(self, arm: str) -> Scores:
        """The scores of an arm, mean over shots: (seeds, items) of a learned one, (items,) of the others."""
        found = self.own.get(arm) or self.arms[arm]
        shots = ["0"] if list(found) == ["0"] else self.shots
        return np.asarray(np.mean([found[n] for n in shots], axis=0))

    def items_of(self, worlds: Sequence[int]) -> NDArray[np.intp]:
        """The places of the items of some worlds."""
        return np.flatnonzero([int(image.partition(":")[0]) in worlds for image in self.images])


def method_sample(records: Sequence[Record], arms: Mapping[int, Record]) -> MethodSample:
    """Runs of one method, whole: the worlds that have arms, and the seeds that every one of these worlds has."""
    by_world: dict[int, dict[int, Record]] = {}
    for record in records:
        if record["world"] in arms:
            _require_same(record, arms[record["world"]])
            by_world.setdefault(record["world"], {})[record["seed"]] = record
    if not by_world:
        raise EvaluationError("no world of these runs has its arms measured yet; run `lever bench` again")
    seeds = sorted(set.intersection(*(set(own) for own in by_world.values())))
    if not seeds:  # not far enough for a common seed: what the first world has
        first = min(by_world)
        by_world, seeds = {first: by_world[first]}, sorted(by_world[first])
    worlds = sorted(by_world)
    chosen = [[by_world[world][seed] for world in worlds] for seed in seeds]
    own = {
        arm: {
            n: np.stack([np.concatenate([record["accuracy"][arm][n] for record in row]) for row in chosen])
            for n in by_shots
        }
        for arm, by_shots in chosen[0][0]["accuracy"].items()
    }
    return MethodSample(
        [record for row in chosen for record in row], worlds, seeds, own, *arms_side_by_side(arms, worlds)
    )


def arms_side_by_side(
    arms: Mapping[int, Record], worlds: Sequence[int]
) -> tuple[dict[str, dict[str, Scores]], list[str]]:
    """The scores of arms without training on the items of several worlds, and each item's picture."""
    names: dict[str, dict[str, Any]] = arms[worlds[0]]["accuracy"]
    scores = {
        arm: {n: np.concatenate([arms[world]["accuracy"][arm][n] for world in worlds]) for n in by_shots}
        for arm, by_shots in names.items()
    }
    return scores, [f"{world}:{image}" for world in worlds for image in arms[world]["images"]]


def _require_same(record: Record, arms: Record) -> None:
    if record["conditions"] != arms["conditions"]:
        raise EvaluationError(
            f"{record['method']} and the arms of world {record['world']} were measured on different items or pools "
            f"({record['n']} and {arms['n']} items); use another --out DIR for another --items"
        )


def share_of_gap(own: Scores, random: Scores, oracle: Scores, images: Sequence[str]) -> dict[str, Any] | None:
    """The share of the way from random to the oracle, from scores (seeds, n) or (n,); None where there is no way."""
    way = float(oracle.mean() - random.mean())
    if way <= 0.0:
        return None
    share = float(own.mean() - random.mean()) / way
    base = np.clip(random + share * (oracle - random), 0.0, 1.0)
    low, high = difference(np.atleast_2d(own), base[None], images)["ci95"]
    return {"share": share, "ci95": [share + low / way, share + high / way]}


def difference(own: Scores, other: Scores, images: Sequence[str]) -> dict[str, Any]:
    """own - other from (seeds, n) each, an arm without seeds as one row; one seed gives the spread of items alone."""
    from leverplus.stats import compare, compare_seeds

    if len(own) == len(other) == 1:
        found = compare(own[0], other[0], ids=range(own.shape[1]), clusters=images, resamples=RESAMPLES)
        return {"diff": found.diff, "ci95": list(found.ci95), "p_value": found.p_value}
    both = compare_seeds(own, other, clusters=images, worlds=worlds_of(images), resamples=RESAMPLES)
    return {"diff": both.diff, "ci95": list(both.ci95), "p_value": both.p_value}


def worlds_of(images: Sequence[str]) -> list[str]:
    """The world of every picture; each world has trainings of its own."""
    return [image.partition(":")[0] for image in images]


def harm(own: Scores, zero: Scores) -> dict[str, float | None]:
    """Against zero-shot, as shares: items scored higher and lower; of those right without, how many are wrong with."""
    change, right = np.atleast_2d(own) - zero, zero >= RIGHT
    broken = (np.atleast_2d(own) < RIGHT)[:, right]
    return {
        "helped": float((change > TIE).mean()),
        "harmed": float((change < -TIE).mean()),
        "broken": float(broken.mean()) if right.any() else None,
    }


def trained_row(sample: MethodSample, arm: str) -> dict[str, Any]:
    """A line of the table: one arm (`learned`, or `learned_auto`) of a method at a budget."""
    first, own = sample.records[0], sample.own[arm]
    mean = sample.mean(arm)
    rival = max((name for name in RIVALS if name in sample.arms), key=lambda name: sample.mean(name).mean())
    zero = sample.arms["zero_shot"]["0"]
    seconds = [record["training_seconds"] for record in sample.records]
    return {
        "method": first["method"],
        "arm": arm,
        "budget": first["budget"],
        "queries": first["queries"],
        "pool": first["pool"],
        "worlds": list(sample.worlds),
        "seeds": list(sample.seeds),
        "n": mean.shape[1],
        "accuracy": {**{n: float(own[n].mean()) for n in own}, "mean": float(mean.mean())},
        "seed_sd": float(np.std(mean.mean(axis=1), ddof=1)) if len(mean) > 1 else None,
        "gap_closed": _gaps(sample, own, mean),
        "against_nearest": {"arm": rival, **difference(mean, sample.mean(rival)[None], sample.images)},
        "against_labels": (
            difference(mean, sample.mean(BY_LABELS)[None], sample.images) if BY_LABELS in sample.arms else None
        ),
        "harm": {n: harm(own[n], zero) for n in own},
        "none_share": _mean_by_shots([record["none_share"] for record in sample.records]),
        "model_calls": max(record["model_calls"] for record in sample.records),
        "groups": float(np.mean([record["groups"] for record in sample.records])),
        "seconds": None if None in seconds else float(np.mean(seconds)),
        "commits": sorted({record["commit"] or "unknown" for record in sample.records}),
    }


def arm_row(scores: Mapping[str, Mapping[str, Scores]], arm: str, images: Sequence[str]) -> dict[str, Any]:
    """A line of the table for an arm that needs no training."""
    by_shots = scores[arm]
    shots = [n for n in MEAN_SHOTS if n in by_shots] or ["0"]
    mean = np.mean([by_shots[n] for n in shots], axis=0)
    closed = None
    if arm in (*RIVALS, BY_LABELS) and "oracle" in scores:
        floor, top = (np.mean([scores[name][n] for n in shots], axis=0) for name in ("random", "oracle"))
        closed = {"mean": share_of_gap(mean, floor, top, images)}
    zero = scores["zero_shot"]["0"]
    return {
        "arm": arm,
        "n": len(mean),
        "accuracy": {**{n: float(by_shots[n].mean()) for n in by_shots}, "mean": float(mean.mean())},
        "gap_closed": closed,
        "harm": {n: harm(by_shots[n], zero) for n in by_shots if n != "0"},
    }


def _gaps(sample: MethodSample, own: Mapping[str, Scores], mean: Scores) -> dict[str, Any] | None:
    """Share of the gap in the mean with its interval, by shots and by world without; None where no oracle was run."""
    if "oracle" not in sample.arms:
        return None
    floor, top = sample.mean("random"), sample.mean("oracle")
    names = np.array([image.split(":")[0] for image in sample.images])

    def share(scores: Scores, low: Scores, high: Scores) -> float | None:
        way = float(high.mean() - low.mean())
        return float(scores.mean() - low.mean()) / way if way > 0.0 else None

    return {
        "mean": share_of_gap(mean, floor, top, sample.images),
        **{n: share(own[n], sample.arms["random"][n], sample.arms["oracle"][n]) for n in sample.shots},
        "worlds": {
            str(world): share(mean[:, names == str(world)], floor[names == str(world)], top[names == str(world)])
            for world in sample.worlds
        },
    }


def _mean_by_shots(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {n: float(np.mean([table[n] for table in tables])) for n in tables[0]}


Kind = tuple[str, int, int, int]
"""Method, budget, limit of training questions (0: none), size of the pools."""


def summary_of(records: Mapping[str, Record], say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Everything the tables and pictures show, from the records of a benchmark."""
    arms: dict[int, dict[int, Record]] = {}
    runs: dict[Kind, list[Record]] = {}
    for record in records.values():
        if record["method"] == ARMS:
            arms.setdefault(record["pool"], {})[record["world"]] = record
        else:
            kind = (record["method"], record["budget"], record["queries"], record["pool"])
            runs.setdefault(kind, []).append(record)
    samples = {
        kind: method_sample(own, arms[kind[3]]) for kind, own in runs.items() if _ready(own, arms.get(kind[3], {}))
    }
    rows = []
    for kind in sorted(samples, key=_place):
        say(f"figures of {kind[0]} with {kind[1]:,} calls")
        rows += [trained_row(samples[kind], arm) for arm in samples[kind].own]
    without = []
    for size, by_world in sorted(arms.items()):
        scores, images = arms_side_by_side(by_world, sorted(by_world))
        without += [{"pool": size, "worlds": sorted(by_world), **arm_row(scores, arm, images)} for arm in scores]
    return {"arms": without, "methods": rows, "ablations": ablation_rows(samples)}


def _ready(records: Sequence[Record], arms: Mapping[int, Record]) -> bool:
    return any(record["world"] in arms for record in records)


def _place(kind: Kind) -> tuple[Any, ...]:
    names = list(TITLES)
    return (names.index(kind[0]) if kind[0] in names else len(names), kind[0], *kind[1:])


def ablation_rows(samples: Mapping[Kind, MethodSample], reference: str = "best") -> list[dict[str, Any]]:
    """What every change of `best` does to it at the same budget, paired by item, world and seed, after Holm.

    A change that was not measured in all worlds yet is compared in those it has.
    """
    from leverplus.lab.plans import compare_by_seed
    from leverplus.stats import holm

    rows = []
    for kind, changed in sorted(samples.items()):
        base = samples.get((reference, *kind[1:]))
        if kind[0] in TITLES or base is None:
            continue
        worlds = [world for world in changed.worlds if world in base.worlds]
        seeds = [seed for seed in changed.seeds if seed in base.seeds]
        if worlds and seeds:
            places = [own.items_of(worlds) for own in (changed, base)]
            pair = [
                own.mean("learned")[[own.seeds.index(seed) for seed in seeds]][:, place]
                for own, place in zip((changed, base), places, strict=True)
            ]
            images = [changed.images[place] for place in places[0]]
            found = compare_by_seed(*pair, ids=range(len(images)), clusters=images, worlds=worlds_of(images))
            rows.append({"change": kind[0], "budget": kind[1], "seeds": seeds, "worlds": worlds, **found})
    for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_adjusted"] = p
    return rows
