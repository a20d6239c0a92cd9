"""Every way of choosing on a recorded table: what each shows to each query, as rows of the table, setting by setting.

An arm is a name with settings (a field, a number of shots, a weight); each setting is an array of rows (Q,),
or of shape (Q, draws) where it draws by chance. Settings are chosen on dev queries, one for each arm; how many were
tried is kept. Calibrated forms subtract the mean log-probability that a label has over the training queries shown
demonstrations in the same way (batch calibration, Zhou et al. 2024).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_data import ANCHORS, CHANCE, NONE, Floats, Ints, ModelTable
from real_labels import tuned

from leverplus.ranking.linear import bends, cross_features, effect_features, fit_ranker

SHOTS = (2, 4, 8, 16)
MIXES = (0.15, 0.3, 0.5)
"""Weights of the caption beside the question, where there is one."""
LABEL_WEIGHTS = (0.0, 0.1, 0.3, 1.0)
"""Weights of similarity beside the expected score of a demonstration's answer."""

PARTS = 5
"""Parts of the training queries; effects that choose for one are learnt from the others."""

Mask = NDArray[np.bool_]


@dataclass
class Arm:
    """Rows of every setting; `answers` instead where no model is asked. `calls`: whether it learns from answers."""

    name: str
    kind: str
    settings: dict[str, Ints] = field(default_factory=dict)
    scores: dict[str, Floats] = field(default_factory=dict)
    """Accuracy (Q,) of settings that no row holds."""


def first(values: Floats, allowed: Mask) -> Ints:
    """The place of the largest allowed value of every query."""
    return np.where(allowed, values, -np.inf).argmax(axis=1)


class Arms:
    """All arms of one table."""

    def __init__(self, table: ModelTable) -> None:
        self.table, self.task = table, table.task
        self.train, self.dev, self.test = (table.splits(name) for name in ("train", "dev", "test"))
        self.everyone = np.arange(len(table.queries))
        queries, candidates = table.queries, table.candidates
        self.likeness = {
            name: own[queries[:, None], candidates] for name, own in self.task.likeness.items()
        }  # (Q, 64) by field
        self.allowed = table.usable
        if not self.task.labels:  # the same for all models
            self.task.labels = tuned(self.task, self.task.split == "train", self.task.split != "test")
        self.labels = self.task.labels

    def rows(self, places: Ints) -> Ints:
        return self.table.one_shot[self.everyone, places]

    def longer(self, chooser: str) -> dict[str, Ints]:
        found = {f"{chooser}, {shots} shots": self.table.rows_of(chooser, shots) for shots in SHOTS}
        return {name: rows for name, rows in found.items() if (rows[self.dev] != NONE).any()}

    def all(self) -> list[Arm]:
        made: list[Callable[[], list[Arm]]] = [self.plain, self.nearest, self.by_label, self.fixed, self.without_model]
        return [arm for make in made for arm in make()]

    def plain(self) -> list[Arm]:
        table = self.table
        chance = {"1 shot": table.one_shot[:, CHANCE]}
        for shots in SHOTS[:3]:
            draws = np.stack([table.rows_of(f"random_{draw}", shots) for draw in (0, 1)], axis=1)
            if (draws[self.dev] != NONE).any():
                chance[f"{shots} shots"] = draws
        return [
            Arm("zero_shot", "free", {"no demonstration": table.zero_shot}),
            Arm("random", "free", chance),
        ]

    def nearest(self) -> list[Arm]:
        """By every field alone and together, by MMR: each with its own number of shots."""
        settings = {f"{name}, 1 shot": self.rows(first(own, self.allowed)) for name, own in self.likeness.items()}
        if "caption" in self.likeness:
            for weight in MIXES:
                mixed = (1 - weight) * self.likeness["question"] + weight * self.likeness["caption"]
                settings[f"question + {weight:g} caption, 1 shot"] = self.rows(first(mixed, self.allowed))
        for name in self.likeness:
            settings |= self.longer(f"nearest_{name}")
        diverse: dict[str, Ints] = {}
        for name in self.likeness:
            diverse |= self.longer(f"mmr_{name}")
        arms = [Arm("nearest", "free", settings), Arm("mmr", "free", diverse)]
        if self.task.source.labels:
            arms.append(Arm("balanced", "free", self.longer("balanced")))
        return [arm for arm in arms if arm.settings]

    def by_label(self) -> list[Arm]:
        """Demonstrations of the answer that labels predict; ranked by what their answer may expect, and similarity."""
        shown = self.task.shown[self.table.candidates]
        found = []
        for name, source in (("vote_demos", "vote"), ("label_rank", "regression")):
            expected = np.take_along_axis(self.labels[source][0][self.table.queries], shown, axis=1)
            settings = {}
            for weight in LABEL_WEIGHTS:
                value = expected + max(weight, 1e-6) * self.likeness["question"]
                settings[f"similarity x {weight:g}, 1 shot"] = self.rows(first(value, self.allowed))
            if name == "vote_demos" and self.task.source.labels:
                settings |= self.longer("vote")
            found.append(Arm(name, "labels", settings))
        return found

    def without_model(self) -> list[Arm]:
        found = []
        for name, source in (("label_vote", "vote"), ("label_regression", "regression")):
            likeliest = self.labels[source][0][self.table.queries].argmax(axis=1)
            score = self.task.answer_accuracy[self.table.queries, likeliest]
            found.append(Arm(name, "labels", scores={"no model": score}))
        return found

    def fixed(self) -> list[Arm]:
        """One demonstration for all queries, the best of the anchors on training queries; and the anchors as a list."""
        table = self.table
        anchors, counts = np.unique(table.candidates[:, ANCHORS], return_counts=True)
        anchors = anchors[counts > len(table.queries) // 4]
        anchors = anchors[self.task.split[anchors] != "test"]
        settings = {}
        for anchor in anchors.tolist():
            there = (table.candidates == anchor) & self.allowed
            if there[self.test].any(axis=1).mean() > 0.9:
                places = np.where(
                    there.any(axis=1), there.argmax(axis=1), first(self.likeness["question"], self.allowed)
                )
                settings[f"anchor {anchor}, 1 shot"] = self.rows(places)
        return [Arm("fixed", "calls", settings | self.longer("fixed"))]

    def effects(self) -> Arm:
        """Every combination of parts; training queries are chosen for by what the other training queries teach."""
        part = self.parts_of_queries()
        places = self.effect_places(self.train)
        for number in range(PARTS):
            held = self.train & (part == number)
            for name, own in self.effect_places(self.train & ~held).items():
                places[name][held] = own[held]
        return Arm("effects", "calls", {f"{name}, 1 shot": self.rows(own) for name, own in places.items()})

    def effect_places(self, learn: Mask) -> dict[str, Ints]:
        """The place that each combination of parts chooses (similarity, effects, labels, interactions).

        Effects and weights are learnt from the queries marked.
        """
        parts = self.effect_parts(learn)
        return {
            " + ".join(names): first(self.linear_score(parts, names, learn), self.allowed) for names in COMBINATIONS
        }

    def effect_parts(self, learn: Mask) -> dict[str, dict[str, Floats]]:
        """The features (Q, 64) of every part of the score; effects are learnt from the queries marked."""
        table = self.table
        used = self.allowed & learn[:, None]
        count = len(self.task.items)
        similarity: dict[str, Floats] = {}
        for name, own in self.likeness.items():
            similarity |= bends(name, own, used)
        shown = self.task.shown[table.candidates]
        labels = {}
        for source in ("vote", "regression"):
            labels[source] = np.take_along_axis(self.labels[source][0][table.queries], shown, axis=1)
        effects = {}
        for name, score in (("accuracy", table.accuracy), ("probability", table.probability)):
            effects[f"effect on {name}"] = effect_features(name, table.candidates, score, used, count)[0]
        vectors = self.task.vectors["question"].astype(np.float64)
        cross = cross_features(vectors[table.queries], vectors, table.candidates)
        return {"similarity": similarity, "effects": effects, "labels": labels, "interaction": cross}

    def linear_score(self, parts: dict[str, dict[str, Floats]], names: Sequence[str], learn: Mask) -> Floats:
        """The score (Q, 64) by some parts, its weights learnt from the queries marked."""
        features = {key: value for name in names for key, value in parts[name].items()}
        used = self.allowed & learn[:, None]
        ranker = fit_ranker(features, self.table.accuracy, used, self.task.group[self.table.queries])
        return ranker.score(features)

    def parts_of_queries(self) -> Ints:
        """The part of the cross-fit of every query; the queries of a picture are in one."""
        group = self.task.group[self.table.queries]
        return np.asarray(np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % PARTS)


COMBINATIONS = (
    ("similarity",),
    ("effects",),
    ("similarity", "effects"),
    ("similarity", "labels"),
    ("similarity", "effects", "labels"),
    ("similarity", "effects", "labels", "interaction"),
)
