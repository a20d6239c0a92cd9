"""Learns what a list is worth from lists that were asked, and chooses lists by it; every fold by what others teach.

To choose for fold f only lists are learnt from whose question and demonstrations are all outside f. The value of a
list is linear in what is known of it (`real_lists_pools.describe`), plus what each member adds in company
(`leverplus.effects.company`). Weights are fitted within questions on accuracy, shrunk towards those of the probability
of the truth, which is told by the same lists with far less noise.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_pools import FOLDS, LIST, PAIR, Floats, Ints, Pools, describe, pick, scaled

from leverplus.effects.company import CompanyEffects, ListScores, estimate_company

NAMES = (*PAIR, *LIST, "long")
"""Features of a list; the last says that it has more than eight members."""
PARTS = {
    "similarity": ("question", "caption", "both", "alike", "last_question", "slope_question", "long"),
    "labels": ("vote", "best_vote", "covered", "distinct", "last_vote", "slope_vote"),
    "effects": ("effect", "effect_prob"),
}
ALL = tuple(PARTS)
PENALTIES = (1e2, 1e3, 1e4, 1e5)
"""In rows, as in `leverplus.ranking.linear`; the best by cross-validation over questions is kept."""
CV_PARTS = 5
BETAS, UNLIKE = (0.0, 0.25, 0.5, 1.0, 2.0), (0.0, 2.0, 6.0)
ROUNDS = 4
HALF = 8
"""Demonstrations of the fixed part, where there is one."""


@dataclass(frozen=True)
class Asked:
    """Lists that were asked for learning: question, demonstrations, features (R, F), accuracy, probability."""

    rows: Ints
    serves: Ints
    demos: Ints
    features: Floats
    accuracy: Floats
    gt_prob: Floats

    def usable(self, fold: int, folds: Ints) -> Asked:
        """Those that may teach about a fold: neither the question nor a demonstration is in it."""
        inside = np.append(folds == fold, False)  # -1, no demonstration, is in no fold
        which = (self.serves == fold) & ~inside[self.rows] & ~inside[self.demos].any(axis=1)
        lists = np.bincount(self.rows[which], minlength=len(folds))
        which &= lists[self.rows] > 1  # a single list of a question tells nothing about what to choose
        columns = (self.rows, self.serves, self.demos, self.features, self.accuracy, self.gt_prob)
        return Asked(*(column[which] for column in columns))


@dataclass(frozen=True)
class Value:
    """What a list is worth in accuracy, up to the question's own level: features x weights, plus its members'."""

    weights: Mapping[str, float]
    member: Floats = field(default_factory=lambda: np.zeros(0))
    """What every demonstration adds in company (N,); empty: nothing."""

    def added(self, members: Ints) -> Floats:
        return self.member[members] if len(self.member) else np.zeros(members.shape)

    def of(self, pools: Pools, places: Ints) -> Floats:
        """The value (R,) of lists given as places in the pools."""
        features = with_length(describe(pools, places), places.shape[1])
        weights = np.array([self.weights.get(name, 0.0) for name in NAMES])
        members = np.take_along_axis(pools.members, places, axis=1)
        return np.asarray(features @ weights + self.added(members).sum(axis=1))


def with_length(features: Floats, shots: int | Ints) -> Floats:
    long = np.broadcast_to(np.asarray(shots) > 8, len(features)).astype(np.float64)
    return np.concatenate([features, long[:, None]], axis=1)


def fit_value(asked: Asked, parts: Sequence[str], company: CompanyEffects | None = None) -> Value:
    """Weights of the features of some parts, with what members add in company where that is given."""
    names = [name for name in NAMES if any(name in PARTS[part] for part in parts)]
    shots = (asked.demos >= 0).sum(axis=1)
    x = with_length(asked.features, shots)[:, [NAMES.index(name) for name in names]]
    x = centred(x, asked.rows)
    scale = np.maximum(x.std(axis=0), 1e-12)
    x = x / scale
    added = np.zeros(len(x)) if company is None else np.append(company.effect, 0.0)[asked.demos].sum(axis=1)
    right = centred((asked.accuracy - added)[:, None], asked.rows)[:, 0]
    likely = centred(asked.gt_prob[:, None], asked.rows)[:, 0]
    guide = ridge(x, likely, asked.rows)
    along = x @ guide
    steep = float(along @ right) / max(float(along @ along), 1e-12)
    weights = steep * guide + ridge(x, right - steep * along, asked.rows)
    member = company.effect if company is not None and company.spread > 0 else np.zeros(0)
    return Value(dict(zip(names, (weights / scale).tolist(), strict=True)), member)


def centred(columns: Floats, rows: Ints) -> Floats:
    _, number = np.unique(rows, return_inverse=True)
    sums = np.zeros((int(number.max()) + 1, columns.shape[1]))
    np.add.at(sums, number, columns)
    return np.asarray(columns - (sums / np.bincount(number)[:, None])[number])


def ridge(x: Floats, y: Floats, rows: Ints) -> Floats:
    """Ridge weights; the penalty by cross-validation over whole questions, nothing at all where 0 predicts better."""
    _, number = np.unique(rows, return_inverse=True)
    part = np.random.default_rng(0).permutation(int(number.max()) + 1)[number] % CV_PARTS
    grams = [x[part == p].T @ x[part == p] for p in range(CV_PARTS)]
    sums = [x[part == p].T @ y[part == p] for p in range(CV_PARTS)]
    gram, total, eye = np.sum(grams, axis=0), np.sum(sums, axis=0), np.eye(x.shape[1])

    def missed(penalty: float) -> float:
        """Squared error on the parts left out, less that of predicting 0."""
        lost = 0.0
        for own, own_sum in zip(grams, sums, strict=True):
            w = np.linalg.solve(gram - own + penalty * eye, total - own_sum)
            lost += float(w @ own @ w - 2.0 * w @ own_sum)
        return lost

    best = min(PENALTIES, key=missed)
    if missed(best) >= 0.0:
        return np.zeros(x.shape[1])
    return np.asarray(np.linalg.solve(gram + best * eye, total))


def company_effects(asked: Asked, items: int) -> CompanyEffects:
    """What every demonstration adds to accuracy in company, beside the features of the lists."""
    x = with_length(asked.features, (asked.demos >= 0).sum(axis=1))
    return estimate_company(ListScores.of(asked.rows, asked.demos, asked.accuracy, x, items))


def best_lists(pools: Pools, value: Value, shots: int) -> Ints:
    """Places (R, S) in prompt order of a list that no other member at one place makes worth more.

    It is built one by one, then every place is tried anew until nothing changes.
    """
    chooser = _Chooser(pools, value, shots)
    taken = np.zeros((len(pools.rows), shots), np.int64)
    for turn in range(shots):
        taken[:, turn] = chooser.best(taken[:, :turn])
    for _ in range(ROUNDS):
        before = taken.copy()
        for turn in range(shots):
            taken[:, turn] = chooser.best(np.delete(taken, turn, axis=1))
        if (taken == before).all():
            break
    return chooser.ordered(taken)


class _Chooser:
    """Adds to lists the demonstration that raises their value most."""

    def __init__(self, pools: Pools, value: Value, shots: int) -> None:
        self.pools, self.shots, self.weights = pools, shots, value.weights
        self.vote = pools.known["vote"]
        self.linear = value.added(pools.members)
        for name in PAIR:
            self.linear = self.linear + self.weight(name) / shots * pools.known[name]

    def weight(self, name: str) -> float:
        return self.weights.get(name, 0.0)

    def best(self, taken: Ints) -> Ints:
        """The place (R,) to add to lists (R, T)."""
        pools, rows = self.pools, np.arange(len(taken))
        gain = self.linear.copy()
        if taken.shape[1]:
            own = np.take_along_axis(self.vote, taken, axis=1)
            rise = np.maximum(self.vote - own.max(axis=1, keepdims=True), 0.0)
            answers = np.take_along_axis(pools.answers, taken, axis=1)
            again = (pools.answers[:, :, None] == answers[:, None, :]).any(axis=2)
            alike = pools.alike[rows[:, None], taken].sum(axis=1, dtype=np.float64)  # (R, P)
            gain += self.weight("alike") * 2.0 / (self.shots * (self.shots - 1)) * alike
        else:
            rise, again = self.vote, np.zeros(self.vote.shape, bool)
        gain += self.weight("best_vote") * rise
        gain += np.where(again, 0.0, (self.weight("covered") * self.vote + self.weight("distinct")) / self.shots)
        np.put_along_axis(gain, taken, -np.inf, axis=1)
        return np.asarray(gain.argmax(axis=1))

    def ordered(self, taken: Ints) -> Ints:
        """The order that features of order value most: what weighs most comes last."""
        key = np.zeros(taken.shape)
        for name in ("question", "vote"):
            weight = self.weight(f"slope_{name}") + self.weight(f"last_{name}")
            key += weight * np.take_along_axis(self.pools.known[name], taken, axis=1)
        return np.asarray(np.take_along_axis(taken, np.argsort(key, axis=1, kind="stable"), axis=1))


def tuned_lists(pools: Pools, extra: Floats, value: Value, shots: int) -> tuple[Ints, tuple[float, float]]:
    """Similarity + beta x extra (R, P) with an aversion to likeness; both by the value that they promise. Nearest last.

    Places (R, S) and the settings taken.
    """
    near = scaled(0.7 * pools.known["question"] + 0.3 * pools.known["caption"])
    best: tuple[float, Ints, tuple[float, float]] | None = None
    for beta in BETAS:
        for unlike in UNLIKE:
            score = near + beta * scaled(extra)
            many = np.full(len(near), unlike)
            places = pick(pools, score, shots, many, np.zeros(len(near)))
            order = np.argsort(np.take_along_axis(near, places, axis=1), axis=1, kind="stable")
            places = np.take_along_axis(places, order, axis=1)
            promised = float(value.of(pools, places).mean())
            if best is None or promised > best[0]:
                best = promised, places, (beta, unlike)
    assert best is not None
    return best[1], best[2]


@dataclass
class Chosen:
    """Lists (N, S) of every question by arm and number of shots, and what was learnt on the way, fold by fold."""

    lists: dict[tuple[str, int], Ints] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def put(self, arm: str, rows: Ints, demos: Ints, items: int) -> None:
        whole = self.lists.setdefault((arm, demos.shape[1]), np.full((items, demos.shape[1]), -1))
        whole[rows] = demos


LEARNED = {
    "learned": ALL,
    "learned without labels": ("similarity", "effects"),
    "learned without effects": ("similarity", "labels"),
}


def choose_all(asked: Asked, pools: Pools, folds: Ints, effects: Floats) -> Chosen:
    """Every learned arm for every question; `effects` (FOLDS, N) are one-shot effects without each fold."""
    found = Chosen()
    for fold in range(FOLDS):
        own = asked.usable(fold, folds)
        which = folds[pools.rows] == fold
        if len(np.unique(own.rows)) >= 2 * CV_PARTS and which.any():
            _choose_fold(found, fold, own, pools.part(which), effects[fold])
    return found


def _choose_fold(found: Chosen, fold: int, asked: Asked, tested: Pools, effects: NDArray[Any]) -> None:
    items = len(effects)
    company = company_effects(asked, items)
    values = {arm: fit_value(asked, parts) for arm, parts in LEARNED.items()}
    values["learned with company"] = fit_value(asked, ALL, company)
    for arm, value in values.items():
        if arm == "learned with company" and company.spread == 0.0:
            continue  # the same as without
        for shots in (8, 16, 32) if arm == "learned" else (8, 16):
            places = best_lists(tested, value, shots)
            found.put(arm, tested.rows, np.take_along_axis(tested.members, places, axis=1), items)
    plain = values["learned without labels"]
    together = fit_value(asked, ("similarity", "effects"), company)
    extras = {"MMR + effects": tested.known["effect"]}
    if company.spread > 0.0:
        extras["MMR + company"] = company.effect[tested.members]
        extras["MMR + effects + company"] = scaled(tested.known["effect"]) + scaled(company.effect[tested.members])
    settings = {}
    for arm, extra in extras.items():
        for shots in (8, 16):
            judge = plain if arm == "MMR + effects" else together
            places, settings[f"{arm}, {shots}"] = tuned_lists(tested, extra, judge, shots)
            found.put(arm, tested.rows, np.take_along_axis(tested.members, places, axis=1), items)
    found.put("fixed by effects, then nearest", tested.rows, _fixed_first(tested, effects), items)
    found.notes.append(
        {
            "fold": fold,
            "lists": len(asked.rows),
            "questions": len(np.unique(asked.rows)),
            "weights": {arm: dict(value.weights) for arm, value in values.items()},
            "company": {
                "noise": company.noise,
                "spread": company.spread,
                "reliability": company.reliability,
                "shown": int((company.counts > 0).sum()),
            },
            "settings": settings,
        }
    )


def _fixed_first(tested: Pools, effects: NDArray[Any]) -> Ints:
    """The best eight by one-shot effect, the same for all questions, then the eight nearest that are not among them.

    Items of the tested fold are never among the best: no row of theirs was learnt from, so that their effect is 0.
    """
    best = np.argsort(-effects, kind="stable")[:HALF]
    near = 0.7 * tested.known["question"] + 0.3 * tested.known["caption"]
    near = np.where(np.isin(tested.members, best), -np.inf, near)
    places = np.argsort(-near, axis=1, kind="stable")[:, :HALF][:, ::-1]
    tailored = np.take_along_axis(tested.members, places, axis=1)
    return np.concatenate([np.broadcast_to(best, (len(tailored), HALF)), tailored], axis=1)
