"""Pools of demonstrations for lists: who may be shown to each question, what is known of them, and lists out of them.

Everything about a question is told without its own fold, and, where it serves to learn for a tested fold, without that
fold too: candidates, votes and one-shot effects all come from the folds that are left (`World.excluded`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

FOLDS = 5
NO_FOLD = -1
BY_QUESTION, IN_ALL = 64, 96
"""Members of a pool: the nearest by the question, then by question and caption (CAPTION of it)."""
CAPTION = 0.3
VOTERS = 64
VOTES = tuple(product((0.2, 0.3, 0.4), (0.05, 0.08, 0.12)))
"""Weight of the caption and warmth of a vote; the best outside the tested fold is taken."""
CHUNK = 256

PAIR = ("question", "caption", "both", "vote", "effect", "effect_prob")
"""What is known of a question with one demonstration; a list has the mean of each."""
LIST = ("best_vote", "covered", "distinct", "alike", "last_question", "last_vote", "slope_question", "slope_vote")
"""What only a list has: its best answer by vote, the votes of its distinct answers, how many differ, how alike its
questions are, and how its order goes (the last one; from -1 at the first place to +1 at the last)."""


@dataclass(frozen=True)
class World:
    """Items of a crossed task as arrays (N, ...): folds, pictures, shown answers, what each answer is worth."""

    fold: Ints
    group: Ints
    shown: Ints
    worth: Singles
    vectors: dict[str, Singles]
    effects: dict[tuple[int, int], tuple[Floats, Floats]]
    """One-shot effects on accuracy and probability without the rows of one or two folds (f, f) or (f, g), f < g."""

    def likeness(self, name: str, rows: Ints) -> Singles:
        if name == "mixed":
            return self.mixed(rows, CAPTION)
        return np.asarray(self.vectors[name][rows] @ self.vectors[name].T, np.float32)

    def mixed(self, rows: Ints, caption: float) -> Singles:
        return np.asarray((1 - caption) * self.likeness("question", rows) + caption * self.likeness("caption", rows))

    def excluded(self, rows: Ints, beside: Ints) -> NDArray[np.bool_]:
        """(R, N) what may neither be shown to a question nor teach about it: its fold, and the fold beside it."""
        own = self.fold[rows][:, None] == self.fold
        return own | (beside[:, None] == self.fold) | (self.group[rows][:, None] == self.group)

    def effects_without(self, fold: int, beside: int) -> tuple[Floats, Floats]:
        pair = (fold, fold if beside == NO_FOLD else beside)
        return self.effects[min(pair), max(pair)]


def fold_sets() -> list[tuple[int, int]]:
    """All single folds (f, f) and all pairs."""
    return [(f, f) for f in range(FOLDS)] + list(combinations(range(FOLDS), 2))


@dataclass(frozen=True)
class Pools:
    """Candidates of some questions (R, P) with what is known of each, and how alike they are (R, P, P)."""

    rows: Ints
    members: Ints
    answers: Ints
    known: dict[str, Floats]
    alike: Singles

    def part(self, which: NDArray[np.bool_]) -> Pools:
        known = {name: own[which] for name, own in self.known.items()}
        return Pools(self.rows[which], self.members[which], self.answers[which], known, self.alike[which])


def top(values: Singles, count: int) -> Ints:
    """Places of the largest values of every row, best first; of equal ones the first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def make_pools(world: World, rows: Ints, beside: Ints, votes: dict[int, tuple[float, float]]) -> Pools:
    """Pools of questions; `beside` (R,) names a further fold that is left out of everything, or NO_FOLD.

    `votes` are the settings of the vote for each tested fold: `beside` where there is one, else the question's own.
    """
    members = np.concatenate(
        [_members(world, rows[a : a + CHUNK], beside[a : a + CHUNK]) for a in range(0, len(rows), CHUNK)]
    )
    known = {name: np.zeros(members.shape) for name in PAIR}
    alike = np.zeros((*members.shape, members.shape[1]), np.float32)
    tested = np.where(beside == NO_FOLD, world.fold[rows], beside)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        for name in ("question", "both", "caption"):
            known[name][part] = np.take_along_axis(world.likeness(name, rows[part]), members[part], axis=1)
        own = world.vectors["question"][members[part]]  # (C, P, D)
        alike[part] = own @ own.transpose(0, 2, 1)
    for fold, without in {(int(f), int(b)) for f, b in zip(world.fold[rows], beside, strict=True)}:
        which = (world.fold[rows] == fold) & (beside == without)
        for name, own in zip(("effect", "effect_prob"), world.effects_without(fold, without), strict=True):
            known[name][which] = own[members[which]]
    for fold in np.unique(tested).tolist():
        which = tested == fold
        known["vote"][which] = vote(world, rows[which], beside[which], members[which], votes[fold])
    return Pools(rows, members, world.shown[members], known, alike)


def _members(world: World, rows: Ints, beside: Ints) -> Ints:
    closed = world.excluded(rows, beside)
    near = np.where(closed, -9.0, world.likeness("question", rows)).astype(np.float32)
    first = top(near, BY_QUESTION)
    mixed = np.where(closed, -9.0, world.likeness("mixed", rows)).astype(np.float32)
    np.put_along_axis(mixed, first, -5.0, axis=1)  # already in
    return np.concatenate([first, top(mixed, IN_ALL - BY_QUESTION)], axis=1)


def vote(world: World, rows: Ints, beside: Ints, members: Ints, setting: tuple[float, float]) -> Floats:
    """What the answer of every member may expect to score (R, P), by the labels of the nearest that may teach.

    `setting` is one of VOTES.
    """
    caption, warmth = setting
    found = np.zeros(members.shape)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        near = np.where(world.excluded(rows[part], beside[part]), -9.0, world.mixed(rows[part], caption))
        best = np.argpartition(-near, VOTERS, axis=1)[:, :VOTERS]
        value = np.take_along_axis(near, best, axis=1)
        weight = np.exp((value - value.max(axis=1, keepdims=True)) / warmth)
        weight /= weight.sum(axis=1, keepdims=True)
        shown = world.shown[members[part]]
        told = world.worth[best[:, :, None], shown[:, None, :]]  # (C, VOTERS, P)
        found[part] = np.einsum("cv,cvp->cp", weight, told)
    return found


def tune_votes(world: World) -> dict[int, tuple[float, float]]:
    """The setting of the vote for every tested fold: whose likeliest answer scores best on questions outside it."""
    found = {}
    for fold in range(FOLDS):
        rows = np.flatnonzero(world.fold != fold)[::2]
        beside = np.full(len(rows), fold)
        members = np.concatenate(
            [_members(world, rows[a : a + CHUNK], beside[a : a + CHUNK]) for a in range(0, len(rows), CHUNK)]
        )
        worth = np.take_along_axis(world.worth[rows], world.shown[members], axis=1)

        def right(setting: tuple[float, float], rows: Ints, beside: Ints, members: Ints, worth: Singles) -> float:
            likeliest = vote(world, rows, beside, members, setting).argmax(axis=1)
            return float(worth[np.arange(len(rows)), likeliest].mean())

        found[fold] = max(VOTES, key=lambda s, args=(rows, beside, members, worth): right(s, *args))  # type: ignore[misc]
    return found


def describe(pools: Pools, places: Ints) -> Floats:
    """Features (R, F) of lists given as places in the pools (R, S), in the order of PAIR + LIST."""
    taken = {name: np.take_along_axis(own, places, axis=1) for name, own in pools.known.items()}
    shots = places.shape[1]
    answers = np.take_along_axis(pools.answers, places, axis=1)
    again = (answers[:, :, None] == answers[:, None, :]) & np.tri(shots, k=-1, dtype=bool)  # shown before
    fresh = ~again.any(axis=2)  # (R, S)
    rows = np.arange(len(places))
    among = pools.alike[rows[:, None, None], places[:, :, None], places[:, None, :]]
    alike = (among.sum(axis=(1, 2)) - np.einsum("rss->r", among)) / max(1, shots * (shots - 1))
    place = np.linspace(-1.0, 1.0, shots) if shots > 1 else np.zeros(1)
    columns = [taken[name].mean(axis=1) for name in PAIR]
    columns += [taken["vote"].max(axis=1), (taken["vote"] * fresh).sum(axis=1) / shots, fresh.mean(axis=1), alike]
    columns += [taken["question"][:, -1], taken["vote"][:, -1]]
    columns += [(taken[name] * place).mean(axis=1) for name in ("question", "vote")]
    return np.stack(columns, axis=1)


def scaled(values: Floats) -> Floats:
    """Less the mean of a question's pool, in standard deviations of it."""
    return np.asarray(
        (values - values.mean(axis=1, keepdims=True)) / np.maximum(values.std(axis=1, keepdims=True), 1e-9)
    )


def pick(pools: Pools, score: Floats, shots: int, unlike: Floats, fresh: Floats) -> Ints:
    """Places (R, S), best first, one by one by the score less `unlike` (R,) times the likeness to the nearest taken,
    less `fresh` (R,) where the answer was shown already."""
    rows = np.arange(len(score))
    nearest = np.zeros(score.shape)
    seen = np.zeros(score.shape, bool)
    taken = np.zeros((len(score), shots), np.int64)
    open_ = np.ones(score.shape, bool)
    for turn in range(shots):
        value = score - unlike[:, None] * nearest - fresh[:, None] * seen
        taken[:, turn] = best = np.where(open_, value, -np.inf).argmax(axis=1)
        open_[rows, best] = False
        nearest = np.maximum(nearest, pools.alike[rows, best])
        seen |= pools.answers == pools.answers[rows, best][:, None]
    return taken
