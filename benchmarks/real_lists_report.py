"""Tables of what lists of demonstrations scored: every arm at every number of shots, paired with the best rival."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_ask import Record, read_records
from real_lists_pools import FOLDS, Floats, Ints

FREE = (
    "nearest by question",
    "nearest by both",
    "nearest by mixed",
    "MMR by question",
    "MMR by mixed",
    "fixed anchors",
)
"""Rivals that know neither labels beyond those they show nor any answer of the model."""
BY_LABELS = ("vote + similarity", "vote + similarity, answers once")
"""Rivals that know the labels of all demonstrations."""
ASIDE = ("company", "check")
RESAMPLES = 2000
WHOLE = 0.98
"""Share of the questions that an arm must have answered to be among those that are chosen from."""


@dataclass(frozen=True)
class Way:
    """An arm with a number of shots: accuracy and probability of every question (N,), NaN where it was not asked."""

    arm: str
    shots: int
    accuracy: Floats
    gt_prob: Floats
    demos: dict[int, list[int]]

    @property
    def asked(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.accuracy)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.shots}"

    @property
    def kind(self) -> str:
        return "free" if self.arm in FREE else "labels" if self.arm in BY_LABELS else "calls"


def ways_of(records: Sequence[Record], items: int) -> list[Way]:
    found: dict[tuple[str, int], Way] = {}
    for record in records:
        if record.arm in ASIDE:
            continue
        key = (record.arm, record.shots)
        if key not in found:
            found[key] = Way(*key, np.full(items, np.nan), np.full(items, np.nan), {})
        found[key].accuracy[record.query] = record.accuracy
        found[key].gt_prob[record.query] = record.gt_prob
        found[key].demos[record.query] = record.demos
    return sorted(found.values(), key=lambda way: (way.kind, way.arm, way.shots))


def tokens_of(way: Way, lengths: Ints) -> tuple[float, float]:
    """Tokens of a prompt on average, and how many are left where every beginning that was seen before is kept."""
    whole, fresh = 0, 0
    seen = set[tuple[int, ...]]()
    for query, demos in way.demos.items():
        whole += int(lengths[demos, 0].sum() + lengths[query, 1])
        fresh += int(lengths[query, 1])
        for count in range(1, len(demos) + 1):
            begun = tuple(demos[:count])
            if begun not in seen:
                seen.add(begun)
                fresh += int(lengths[demos[count - 1], 0])
    return whole / len(way.demos), fresh / len(way.demos)


def chosen_elsewhere(ways: Sequence[Way], fold: Ints) -> tuple[Floats, list[str]]:
    """Accuracy (N,) of the way that is best on the questions of the other folds, and which it is for every fold."""
    value, names = np.full(len(fold), np.nan), []
    for own in range(FOLDS):
        best = max(ways, key=lambda way, own=own: float(np.nanmean(way.accuracy[fold != own])))  # type: ignore[misc]
        value[fold == own] = best.accuracy[fold == own]
        names.append(best.name)
    return value, names


def paired(own: Floats, rival: Floats, groups: Ints) -> str:
    """The difference on the questions that both were asked, with an interval over pictures."""
    from leverplus.stats import compare

    both = ~np.isnan(own) & ~np.isnan(rival)
    if both.sum() < 2:
        return "-"
    found = compare(own[both], rival[both], clusters=groups[both].tolist(), resamples=RESAMPLES)
    return f"{100 * found.diff:+.2f} ({100 * found.ci95[0]:+.2f} to {100 * found.ci95[1]:+.2f})"


def report(args: argparse.Namespace) -> None:
    from record_plan import read_plan

    from leverplus.tasks.files import group_of

    items = read_plan(args.inputs, "okvqa").items
    groups = np.unique([group_of(item) for item in items], return_inverse=True)[1]
    fold = np.array([int(item.meta["fold"]) for item in items])
    ways = ways_of(read_records(args.out), len(items))
    lengths = np.array(json.loads((args.out / "lengths.json").read_text()))
    most = max(int(way.asked.sum()) for way in ways)
    whole = [way for way in ways if way.asked.sum() >= WHOLE * most]
    sides = {
        "rivals without labels": [way for way in whole if way.kind == "free"],
        "all rivals": [way for way in whole if way.kind != "calls"],
        "learned from answers": [way for way in whole if way.kind == "calls"],
    }
    hindsight = {name: max(own, key=lambda way: float(np.nanmean(way.accuracy))) for name, own in sides.items() if own}
    _print_ways(ways, hindsight, lengths, groups)
    _print_choices(sides, hindsight, fold, groups)
    learnt = args.out / "learnt.json"
    if learnt.is_file():
        _print_learnt(json.loads(learnt.read_text()))


def _print_ways(ways: Sequence[Way], hindsight: dict[str, Way], lengths: Ints, groups: Ints) -> None:
    rivals = [name for name in ("rivals without labels", "all rivals") if name in hindsight]
    heads = [f"less {hindsight[name].name}" for name in rivals]
    print("| arm | kind | shots | n | accuracy | probability | tokens | fresh |" + "".join(f" {h} |" for h in heads))
    print("|---|---|---|---|---|---|---|---|" + "---|" * len(heads))
    for way in ways:
        tokens, fresh = tokens_of(way, lengths)
        figures = f"{100 * np.nanmean(way.accuracy):.2f} | {np.nanmean(way.gt_prob):.4f} | {tokens:.0f} | {fresh:.0f}"
        cells = [paired(way.accuracy, hindsight[name].accuracy, groups) for name in rivals]
        print(
            f"| {way.arm} | {way.kind} | {way.shots} | {way.asked.sum():,} | {figures} |"
            + "".join(f" {cell} |" for cell in cells)
        )
    print()


def _print_choices(sides: dict[str, list[Way]], hindsight: dict[str, Way], fold: Ints, groups: Ints) -> None:
    """Each side's way chosen on the other folds, and the best of the rivals as seen afterwards."""
    chosen = {name: chosen_elsewhere(own, fold) for name, own in sides.items() if own}
    for name, (value, names) in chosen.items():
        print(
            f"{name}, {len(sides[name])} ways: chosen on the other folds {100 * np.nanmean(value):.2f}"
            f" ({'; '.join(names)});"
            f" best afterwards {hindsight[name].name} {100 * np.nanmean(hindsight[name].accuracy):.2f}"
        )
    ours = chosen.get("learned from answers")
    for name in ("rivals without labels", "all rivals"):
        if ours is not None and name in chosen:
            print(
                f"learned, chosen on the other folds, less {name} chosen so:"
                f" {paired(ours[0], chosen[name][0], groups)};"
                f" less the best of them afterwards: {paired(ours[0], hindsight[name].accuracy, groups)}"
            )
    print()


def _print_learnt(notes: list[dict[str, Any]]) -> None:
    """What lists for learning told: how much members add in company, and the weights of the features."""
    print("| fold | lists | questions | noise (points) | spread in company (points) | share known |")
    print("|---|---|---|---|---|---|")
    for note in notes:
        own = note["company"]
        print(
            f"| {note['fold']} | {note['lists']:,} | {note['questions']:,} | {100 * own['noise'] ** 0.5:.1f} | "
            f"{100 * own['spread'] ** 0.5:.2f} | {100 * own['reliability']:.1f} % |"
        )
    print("\n| feature of a list | weight in every fold |\n|---|---|")
    for name in notes[0]["weights"]["learned"]:
        print(f"| {name} | {', '.join(format(note['weights']['learned'][name], '+.3f') for note in notes)} |")
