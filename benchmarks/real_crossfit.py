"""OK-VQA by captions over all 5,045 questions: every question is tested once, by what the four other folds teach.

    python benchmarks/real_crossfit.py --data DATA --cache vectors [--model NAME] [--out FILE] [--curve]

To test fold f, only rows whose query and whose demonstration are both outside f are learnt from, labels of f are not
voted with, and settings (fields of similarity, parts of the score) are chosen on one of the other folds. One
demonstration. `--curve` repeats it with fewer calls, asked by chance and by Thompson sampling.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_arms import COMBINATIONS, MIXES, first
from real_data import ANCHORS, CHANCE, Floats, Ints, ModelTable, TaskData, embedder
from real_labels import vote

from leverplus.effects.estimate import Measured, estimate_effects
from leverplus.effects.ranker import bends, cross_features, effect_features, fit_ranker
from leverplus.lab.real import Record, write_records

FOLDS = 5
BUDGETS = (1000, 4000, 16000, 64000)
EACH = 16
"""Candidates asked of a query when calls are few."""
ROUNDS = 8
VOTERS, WARMTH = 64, 0.05
Mask = NDArray[np.bool_]
Found = dict[str, Floats]


@dataclass
class Crossfit:
    """A crossed task with one model's table."""

    table: ModelTable

    def __post_init__(self) -> None:
        task, table = self.table.task, self.table
        self.task = task
        self.fold = task.fold[table.queries]
        self.demo_fold = task.fold[table.candidates]
        self.likeness = {name: own[table.queries[:, None], table.candidates] for name, own in task.likeness.items()}
        vectors = task.vectors["question"].astype(np.float64)
        self.cross = cross_features(vectors[table.queries], vectors, table.candidates)
        self.known: tuple[bytes, Found] = (b"", {})

    def mixes(self) -> Found:
        """Similarities that a rival may use: fields alone, together, and the question with some of the caption."""
        found = dict(self.likeness)
        for weight in MIXES:
            mixed = (1 - weight) * self.likeness["question"] + weight * self.likeness["caption"]
            found[f"question + {weight:g} caption"] = mixed
        return found

    def votes(self, outside: Mask) -> Found:
        """What the answer of each candidate may expect to score, by a vote of items outside the tested fold."""
        shown = self.task.shown[self.table.candidates]
        found = {}
        for name in ("question", "both"):
            expected = vote(self.task, name, outside, VOTERS, WARMTH)
            found[f"vote by {name}"] = np.take_along_axis(expected[self.table.queries], shown, axis=1)
        return found

    def score(self, names: tuple[str, ...], used: Mask, votes: Found) -> Floats:
        """The fitted score of all rows; effects and weights from the used ones."""
        table = self.table
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
        return fit_ranker(features, table.accuracy, used, self.task.group[table.queries]).score(features)

    def effects(self, used: Mask) -> Found:
        """Effects on accuracy and probability from the used rows; kept for the next combination with the same rows."""
        key = used.tobytes()
        if self.known[0] != key:
            table, found = self.table, {}
            for name, own in (("accuracy", table.accuracy), ("probability", table.probability)):
                feature, _ = effect_features(name, table.candidates, own, used, len(self.task.items))
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
        table, everyone = self.table, np.arange(len(self.table.queries))
        found: dict[str, Floats] = {}

        def put(name: str, tested: Mask, places: Ints) -> None:
            found.setdefault(name, np.full(len(everyone), np.nan))[tested] = table.accuracy[everyone, places][tested]

        for fold in folds:
            tested, inner = self.fold == fold, self.fold == (fold + 1) % FOLDS
            allowed = (self.demo_fold != fold) | tested[:, None]
            outside = self.task.fold != fold
            votes = self.votes(outside)
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
            return float(self.table.accuracy[everyone, first(own, allowed)][learn].mean())

        return max(values.values(), key=right)

    def _chosen_score(self, tries: Found, inner: Mask, allowed: Mask, used: Mask, votes: Found) -> Floats:
        """The combination that is best on the inner fold (mean of its first three), fitted on all that may be used."""

        def right(own: Floats) -> float:
            order = np.argsort(-np.where(allowed, own, -np.inf)[inner], axis=1)[:, :3]
            return float(np.take_along_axis(self.table.accuracy[inner], order, axis=1).mean())

        best = max(tries, key=lambda name: right(tries[name]))
        return self.score(tuple(best.split(" + ")), used, votes)

    def _fixed(self, learn: Mask, allowed: Mask) -> Ints:
        """The anchor that gained most over the random candidates of the same training queries, for every query."""
        table = self.table
        gain = table.accuracy - table.accuracy[:, CHANCE].mean(axis=1, keepdims=True)
        anchors = np.unique(table.candidates[learn][:, ANCHORS])
        there = {anchor: (table.candidates == anchor) & allowed for anchor in anchors.tolist()}
        common = {anchor: own for anchor, own in there.items() if own[~learn].any(axis=1).mean() > 0.9}
        best = max(common, key=lambda anchor: gain[common[anchor] & learn[:, None]].mean())
        nearest = first(self.likeness["question"], allowed)
        return np.where(common[best].any(axis=1), common[best].argmax(axis=1), nearest)

    def by_chance(self, calls: int, rng: np.random.Generator) -> Mask:
        """Rows asked at random: some queries, sixteen of their candidates each."""
        asked = np.zeros(self.table.candidates.shape, bool)
        for query in rng.permutation(len(asked))[: calls // EACH]:
            asked[query, rng.permutation(asked.shape[1])[:EACH]] = True
        return asked

    def by_thompson(self, calls: int, rng: np.random.Generator) -> Mask:
        """Rows asked in rounds: of new queries those candidates whose effect, drawn from what is known, is largest."""
        table = self.table
        asked = np.zeros(table.candidates.shape, bool)
        order = rng.permutation(len(asked))[: calls // EACH]
        mean, error = np.zeros(len(self.task.items)), np.ones(len(self.task.items))
        queries = np.broadcast_to(np.arange(len(asked))[:, None], asked.shape)
        for part in np.array_split(order, ROUNDS):
            drawn = mean + error * rng.normal(size=len(mean))
            best = np.argsort(-drawn[table.candidates[part]], axis=1)[:, :EACH]
            asked[part[:, None], best] = True
            data = Measured.of(queries[asked], table.candidates[asked], table.accuracy[asked], len(mean))
            known = estimate_effects(data)
            if known.spread > 0.0:
                mean, error = known.effect, known.error
        return asked


def show(found: Mapping[str, Floats], table: ModelTable, title: str) -> None:
    from leverplus.stats import compare

    groups = table.task.group[table.queries].tolist()
    print(f"\n{title}\n\n| chooser | accuracy | less nearest by question | less nearest by both |\n|---|---|---|---|")
    for name, own in found.items():
        cells = []
        for rival in ("nearest by question", "nearest by both"):
            c = compare(own, found[rival], clusters=groups, resamples=2000)
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


def joined(parts: Sequence[Found]) -> Found:
    """Every fold's accuracies in one array; an arm that a part lacks is left out."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.nansum([part[name] for part in parts], axis=0) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("vectors"))
    parser.add_argument("--task", choices=("okvqa", "aokvqa"), default="okvqa")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)))
    parser.add_argument("--parts", type=Path, help="folder that keeps what each fold gave; folds may run apart")
    parser.add_argument("--out", type=Path, help="file of the accuracies item by item")
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()
    started = time.perf_counter()
    own = Crossfit(ModelTable.read(TaskData(args.task, args.data, embedder(args.cache).of_texts), args.model))
    parts = []
    for fold in args.folds:
        kept = (
            args.parts / f"{args.task}-{args.model}-{fold}{'-curve' if args.curve else ''}.npz" if args.parts else None
        )
        if kept is None or not kept.is_file():
            found = curve(own, [fold]) if args.curve else own.run([fold])
            print(f"fold {fold}: {time.perf_counter() - started:.0f} s", flush=True)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                np.savez(kept, **found)
        else:
            with np.load(kept) as file:
                found = {name: file[name] for name in file.files}
        parts.append(found)
    if len(args.folds) < FOLDS:
        return
    found = joined(parts)
    if not args.curve:
        show(found, own.table, f"{args.task}, {args.model}, n = {len(own.fold):,}")
    else:
        for name, values in found.items():
            print(f"| {name} | {100 * values.mean():.2f} |")
    if args.out:
        items = [str(own.task.items[query].id) for query in own.table.queries]
        groups = own.task.group[own.table.queries].tolist()
        write_records(
            args.out,
            [
                Record(args.task, args.model, name, "calls", "1", name, 1, float("nan"), items, groups, values)
                for name, values in found.items()
            ],
        )


if __name__ == "__main__":
    main()
