"""OK-VQA by captions over all 5,045 questions: every question is tested once, by what the four other folds teach.

    python benchmarks/real_crossfit.py prepare FILE --data DATA --cache vectors [--task okvqa] [--model NAME]
    python benchmarks/real_crossfit.py fold FILE F [--curve]          one fold, in some seconds
    python benchmarks/real_crossfit.py table FILE [--out RECORDS]     of all folds

To test fold f, only rows whose query and whose demonstration are both outside f are learnt from, labels of f are not
voted with, and settings (fields of similarity, parts of the score) are chosen on one of the other folds. One
demonstration. `--curve` repeats it with fewer calls, asked by chance and by Thompson sampling.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parent))
from real_arms import COMBINATIONS, MIXES, first
from real_data import ANCHORS, CHANCE, Floats, Ints, ModelTable, TaskData, embedder

from leverplus.effects.estimate import Measured, estimate_effects
from leverplus.lab.real import WayRecord, write_records
from leverplus.ranking.linear import bends, cross_features, effect_features, fit_ranker

FOLDS = 5
BUDGETS = (1000, 4000, 16000, 64000)
EACH = 16
"""Candidates asked of a query when calls are few."""
ROUNDS = 8
VOTERS, WARMTH = 64, 0.05
Mask = NDArray[np.bool_]
Found = dict[str, Floats]


NEIGHBOURS = 400
"""Nearest items kept of every item, of which 64 outside a fold vote."""


def prepare(args: argparse.Namespace) -> None:
    """Everything that folds share, in one file: rows, similarities, votes by fold."""
    task = TaskData(args.task, args.data, embedder(args.cache).of_texts)
    table = ModelTable.read(task, args.model)
    shown = task.shown[table.candidates]
    rows: dict[str, Any] = {name: own[table.queries[:, None], table.candidates] for name, own in task.likeness.items()}
    for name in ("question", "both"):
        near = task.likeness[name].astype(np.float32)
        near[task.group[:, None] == task.group] = -np.inf
        best = np.argpartition(-near, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(near, best, axis=1), axis=1), axis=1)
        for fold in range(FOLDS):
            expected = _vote(task, near, best, fold)
            rows[f"vote{fold} by {name}"] = np.take_along_axis(expected[table.queries], shown, axis=1)
    np.savez(
        args.file,
        candidates=table.candidates,
        accuracy=table.accuracy,
        probability=table.probability,
        fold=task.fold,
        queries=table.queries,
        group=task.group,
        ids=np.array([str(item.id) for item in task.items]),
        about=np.array([args.task, args.model]),
        vectors=task.vectors["question"],
        **{name: own.astype(np.float32) for name, own in rows.items()},
    )


def _vote(task: TaskData, near: NDArray[np.float32], best: Ints, fold: int) -> Floats:
    """What every answer may expect (N, A), by the 64 nearest outside a fold, weighed by exp(similarity / warmth)."""
    outside = task.fold[best] != fold
    order = np.argsort(~outside, axis=1, kind="stable")[:, :VOTERS]
    voters = np.take_along_axis(best, order, axis=1)
    value = np.take_along_axis(near, voters, axis=1)
    weight = np.exp((value - value.max(axis=1, keepdims=True)) / WARMTH) * np.take_along_axis(outside, order, axis=1)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    starts = np.arange(0, voters.size + 1, VOTERS)
    votes = sparse.csr_matrix((weight.ravel(), voters.ravel(), starts), shape=near.shape)
    return np.asarray((votes @ sparse.csr_matrix(task.answer_accuracy)).todense())


class Crossfit:
    """A crossed task with one model's table, from what `prepare` wrote."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as kept:
            self.kept = {name: kept[name] for name in kept.files}
        self.candidates: Ints = self.kept["candidates"]
        self.accuracy: Floats = self.kept["accuracy"]
        self.items = len(self.kept["fold"])
        self.fold = self.kept["fold"][self.kept["queries"]]
        self.demo_fold = self.kept["fold"][self.candidates]
        self.groups = self.kept["group"][self.kept["queries"]]
        self.likeness = {name: self.kept[name].astype(np.float64) for name in ("question", "both", "caption")}
        self.known: tuple[bytes, Found] = (b"", {})

    @cached_property
    def cross(self) -> Found:
        vectors = self.kept["vectors"].astype(np.float64)
        return cross_features(vectors[self.kept["queries"]], vectors, self.candidates)

    def votes(self, fold: int) -> Found:
        """What the answer of each candidate may expect to score, by a vote of items outside the tested fold."""
        return {
            f"vote by {name}": self.kept[f"vote{fold} by {name}"].astype(np.float64) for name in ("question", "both")
        }

    def mixes(self) -> Found:
        """Similarities that a rival may use: fields alone, together, and the question with some of the caption."""
        found = dict(self.likeness)
        for weight in MIXES:
            mixed = (1 - weight) * self.likeness["question"] + weight * self.likeness["caption"]
            found[f"question + {weight:g} caption"] = mixed
        return found

    def score(self, names: tuple[str, ...], used: Mask, votes: Found) -> Floats:
        """The fitted score of all rows; effects and weights from the used ones."""
        features: Found = {}
        if "similarity" in names:
            for name, own in self.likeness.items():
                features |= bends(name, own, used)
        if "labels" in names:
            features |= votes
        if "interaction" in names:
            features |= self.cross
        if "effects" in names:
            features |= self.effects(used)
        return fit_ranker(features, self.accuracy, used, self.groups).score(features)

    def effects(self, used: Mask) -> Found:
        """Effects on accuracy and probability from the used rows; kept for the next combination with the same rows."""
        key = used.tobytes()
        if self.known[0] != key:
            found = {}
            for name in ("accuracy", "probability"):
                feature, _ = effect_features(name, self.candidates, self.kept[name], used, self.items)
                found[f"effect on {name}"] = feature
            self.known = key, found
        return self.known[1]

    def run(
        self,
        folds: Sequence[int] = range(FOLDS),
        asked: Mask | None = None,
        combinations: tuple[tuple[str, ...], ...] = COMBINATIONS,
    ) -> Found:
        """Accuracy (Q,) of every arm; `asked` are the rows that were paid for (all of them unless told)."""
        everyone = np.arange(len(self.fold))
        found: dict[str, Floats] = {}

        def put(name: str, tested: Mask, places: Ints) -> None:
            found.setdefault(name, np.full(len(everyone), np.nan))[tested] = self.accuracy[everyone, places][tested]

        for fold in folds:
            tested, inner = self.fold == fold, self.fold == (fold + 1) % FOLDS
            allowed = (self.demo_fold != fold) | tested[:, None]
            votes = self.votes(fold)
            used = allowed & ~tested[:, None] & (True if asked is None else asked)
            for name, own in self.mixes().items():
                put(f"nearest by {name}", tested, first(own, allowed))
            put("nearest, field chosen", tested, first(self._best(self.mixes(), ~tested, allowed), allowed))
            put("vote + similarity", tested, first(votes["vote by both"] + 0.1 * self.likeness["question"], allowed))
            put("one for all, chosen on train", tested, self._fixed(~tested, allowed))
            inner_used = used & ~inner[:, None] & (self.demo_fold != (fold + 1) % FOLDS)
            tries: Found = {}
            for names in combinations:
                put(" + ".join(names), tested, first(self.score(names, used, votes), allowed))
            for names in combinations if len(combinations) > 1 else ():
                tries[" + ".join(names)] = self.score(names, inner_used, votes)
            if tries:
                put(
                    "effects, parts chosen",
                    tested,
                    first(self._chosen_score(tries, inner, allowed, used, votes), allowed),
                )
        return found

    def _best(self, values: Found, learn: Mask, allowed: Mask) -> Floats:
        """The similarity whose first choice is best on the queries outside the tested fold."""
        everyone = np.arange(len(learn))

        def right(own: Floats) -> float:
            return float(self.accuracy[everyone, first(own, allowed)][learn].mean())

        return max(values.values(), key=right)

    def _chosen_score(self, tries: Found, inner: Mask, allowed: Mask, used: Mask, votes: Found) -> Floats:
        """The combination that is best on the inner fold (mean of its first three), fitted on all that may be used."""

        def right(own: Floats) -> float:
            order = np.argsort(-np.where(allowed, own, -np.inf)[inner], axis=1)[:, :3]
            return float(np.take_along_axis(self.accuracy[inner], order, axis=1).mean())

        best = max(tries, key=lambda name: right(tries[name]))
        return self.score(tuple(best.split(" + ")), used, votes)

    def _fixed(self, learn: Mask, allowed: Mask) -> Ints:
        """The anchor that gained most over the random candidates of the same training queries, for every query."""
        gain = self.accuracy - self.accuracy[:, CHANCE].mean(axis=1, keepdims=True)
        anchors, counts = np.unique(self.candidates[learn][:, ANCHORS], return_counts=True)
        anchors = anchors[counts > len(learn) // 4]
        there = {anchor: (self.candidates == anchor) & allowed for anchor in anchors.tolist()}
        common = {anchor: own for anchor, own in there.items() if own[~learn].any(axis=1).mean() > 0.9}
        nearest = first(self.likeness["question"], allowed)
        if not common:  # a table without shared demonstrations
            return nearest
        best = max(common, key=lambda anchor: gain[common[anchor] & learn[:, None]].mean())
        return np.where(common[best].any(axis=1), common[best].argmax(axis=1), nearest)

    def by_chance(self, calls: int, rng: np.random.Generator) -> Mask:
        """Rows asked at random: some queries, sixteen of their candidates each."""
        asked = np.zeros(self.candidates.shape, bool)
        for query in rng.permutation(len(asked))[: calls // EACH]:
            asked[query, rng.permutation(asked.shape[1])[:EACH]] = True
        return asked

    def by_thompson(self, calls: int, rng: np.random.Generator) -> Mask:
        """Rows asked in rounds: of new queries those candidates whose effect, drawn from what is known, is largest."""
        asked = np.zeros(self.candidates.shape, bool)
        order = rng.permutation(len(asked))[: calls // EACH]
        mean, error = np.zeros(self.items), np.ones(self.items)
        queries = np.broadcast_to(np.arange(len(asked))[:, None], asked.shape)
        for part in np.array_split(order, ROUNDS):
            drawn = mean + error * rng.normal(size=len(mean))
            best = np.argsort(-drawn[self.candidates[part]], axis=1)[:, :EACH]
            asked[part[:, None], best] = True
            data = Measured.of(queries[asked], self.candidates[asked], self.accuracy[asked], len(mean))
            known = estimate_effects(data)
            if known.spread > 0.0:
                mean, error = known.effect, known.error
        return asked


def show(found: Mapping[str, Floats], groups: Ints) -> None:
    from leverplus.stats import compare

    print("| chooser | accuracy | less nearest by question | less nearest by both |\n|---|---|---|---|")
    for name, own in found.items():
        cells = []
        for rival in ("nearest by question", "nearest by both"):
            c = compare(own, found[rival], clusters=groups.tolist(), resamples=2000)
            cells.append(f"{100 * c.diff:+.2f} ({100 * c.ci95[0]:+.2f} to {100 * c.ci95[1]:+.2f})")
        print(f"| {name} | {100 * own.mean():.2f} | {cells[0]} | {cells[1]} |", flush=True)


CURVE = (("similarity", "effects", "labels"),)


def curve(own: Crossfit, folds: Sequence[int]) -> Found:
    """The same with fewer calls, asked by chance and by Thompson sampling."""
    found = {}
    for calls in BUDGETS:
        for name, ask in (("by chance", own.by_chance), ("by Thompson sampling", own.by_thompson)):
            asked = ask(calls, np.random.default_rng(calls))
            found[f"{calls:,} calls, {name}"] = own.run(folds, asked, CURVE)[" + ".join(CURVE[0])]
    return found


def part_of(file: Path, fold: int, kind: str) -> Path:
    return file.with_name(f"{file.stem}-{fold}{kind}.npz")


def one_fold(args: argparse.Namespace) -> None:
    own = Crossfit(args.file)
    found = curve(own, [args.fold]) if args.curve else own.run([args.fold])
    np.savez(part_of(args.file, args.fold, "-curve" if args.curve else ""), **found)


def table(args: argparse.Namespace) -> None:
    own, found = Crossfit(args.file), {}
    for kind in ("", "-curve"):
        files = [part_of(args.file, fold, kind) for fold in range(FOLDS)]
        if all(file.is_file() for file in files):
            parts = [dict(np.load(file)) for file in files]
            # a fold's file holds its own questions and no number for the others
            found |= {name: np.nansum([part[name] for part in parts], axis=0) for name in parts[0]}
    task, model = own.kept["about"].tolist()
    print(f"{task}, {model}, n = {len(own.fold):,}, one demonstration\n")
    show(found, own.groups)
    if args.out:
        items = own.kept["ids"][own.kept["queries"]].tolist()
        records = [
            WayRecord(task, model, name, "calls", "1", name, 1, float("nan"), items, own.groups.tolist(), values)
            for name, values in found.items()
        ]
        write_records(args.out, records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("prepare")
    sub.add_argument("file", type=Path)
    sub.add_argument("--data", type=Path, required=True)
    sub.add_argument("--cache", type=Path, default=Path("vectors"))
    sub.add_argument("--task", choices=("okvqa", "aokvqa"), default="okvqa")
    sub.add_argument("--model", default="qwen2.5-coder-1.5b")
    sub.set_defaults(run=prepare)
    sub = commands.add_parser("fold")
    sub.add_argument("file", type=Path)
    sub.add_argument("fold", type=int)
    sub.add_argument("--curve", action="store_true")
    sub.set_defaults(run=one_fold)
    sub = commands.add_parser("table")
    sub.add_argument("file", type=Path)
    sub.add_argument("--out", type=Path, help="file of the accuracies item by item")
    sub.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
