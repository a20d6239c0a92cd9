"""Tables of what lists of demonstrations scored: every arm at every number of shots, paired with the best rival."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_keep import CHECK, COMPANY, Kept, read_kept
from real_lists_pools import FOLDS, Floats, Ints
from real_lists_shares import majority, print_promises, print_shares

if TYPE_CHECKING:
    from leverplus.stats import Comparison

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
    rows: Ints
    """Its rows among all that is kept."""

    @property
    def asked(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.accuracy)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.shots}"

    @property
    def kind(self) -> str:
        return "free" if self.arm in FREE else "labels" if self.arm in BY_LABELS else "calls"


def ways_of(kept: Kept) -> list[Way]:
    found = []
    for arm in np.unique(kept.arm).tolist():
        if arm in (COMPANY, CHECK):
            continue
        for shots in np.unique(kept.shots[kept.arm == arm]).tolist():
            rows = kept.rows_of(arm, shots)
            scores = np.full((2, len(kept.fold)), np.nan)
            scores[:, kept.query[rows]] = kept.accuracy[rows], kept.gt_prob[rows]
            found.append(Way(arm, shots, scores[0], scores[1], rows))
    return sorted(found, key=lambda way: (way.kind, way.arm, way.shots))


def tokens_of(way: Way, kept: Kept) -> tuple[float, float]:
    """Tokens of a prompt on average, and how many are left where every beginning that was seen before is kept."""
    asked = kept.lengths[kept.query[way.rows], 1].sum()
    whole = fresh = int(asked)
    seen: dict[tuple[int, int], int] = {}  # (number of a beginning, next demonstration) -> number of the longer one
    tokens = kept.lengths[:, 0].tolist()
    for demos in kept.demos[way.rows, : way.shots].tolist():
        begun = 0
        for demo in demos:
            whole += tokens[demo]
            if (begun, demo) not in seen:
                seen[begun, demo] = len(seen) + 1
                fresh += tokens[demo]
            begun = seen[begun, demo]
    return whole / len(way.rows), fresh / len(way.rows)


def chosen_elsewhere(ways: Sequence[Way], fold: Ints) -> tuple[Floats, list[str]]:
    """Accuracy (N,) of the way that is best on the questions of the other folds, and which it is for every fold."""
    value, names = np.full(len(fold), np.nan), []
    for own in range(FOLDS):
        best = max(ways, key=lambda way, own=own: float(np.nanmean(way.accuracy[fold != own])))  # type: ignore[misc]
        value[fold == own] = best.accuracy[fold == own]
        names.append(best.name)
    return value, names


def paired(own: Floats, rival: Floats, groups: Ints) -> Comparison:
    """The difference on the questions that both were asked, with an interval over pictures."""
    from leverplus.stats import compare

    both = ~np.isnan(own) & ~np.isnan(rival)
    return compare(own[both], rival[both], clusters=groups[both].tolist(), resamples=RESAMPLES)


def told(found: Comparison) -> str:
    return f"{100 * found.diff:+.2f} ({100 * found.ci95[0]:+.2f} to {100 * found.ci95[1]:+.2f})"


def report(path: Path) -> None:
    kept = read_kept(path)
    ways = ways_of(kept)
    found = Results(kept, ways)
    _print_ways(found)
    _print_choices(found)
    _print_comparisons(found)
    print_shares(kept)
    print_promises(kept, "vote + similarity")
    _print_learnt(kept.notes)


class Results:
    """Ways, the best of each side as seen afterwards, what the other folds choose, and answers by majority."""

    def __init__(self, kept: Kept, ways: Sequence[Way]) -> None:
        self.kept, self.ways = kept, ways
        whole = [way for way in ways if way.asked.sum() >= WHOLE * len(kept.fold)]
        self.sides = {
            "rivals without labels": [way for way in whole if way.kind == "free"],
            "all rivals": [way for way in whole if way.kind != "calls"],
            "learned from answers": [way for way in whole if way.kind == "calls"],
        }
        self.afterwards = {
            name: max(own, key=lambda way: float(way.accuracy.mean())) for name, own in self.sides.items()
        }
        self.chosen = {name: chosen_elsewhere(own, kept.fold) for name, own in self.sides.items()}

    def of(self, arm: str, shots: int) -> Floats:
        return next(way.accuracy for way in self.ways if (way.arm, way.shots) == (arm, shots))

    def committees(self) -> dict[str, tuple[int, Floats]]:
        """Answers by majority: how many lists, and the accuracy (N,). No list was chosen for it."""
        found = {}
        drawn = self.kept.drawn(8)
        for count in (3, drawn.shape[1]):
            found[f"{count} drawn lists of 8"] = (count, majority(self.kept, drawn.T[:count]))
        long = {name: [way for way in own if way.shots in (8, 16)] for name, own in self.sides.items()}
        sixteen = [way for way in self.sides["rivals without labels"] if way.shots == 16]
        parts = {
            "rivals without labels, 16": sixteen,
            "all rivals, 8 and 16": long["all rivals"],
            "learned from answers, 8 and 16": long["learned from answers"],
            "all arms, 8 and 16": long["all rivals"] + long["learned from answers"],
        }
        for name, own in parts.items():
            found[name] = (len(own), majority(self.kept, [self._by_question(way) for way in own]))
        return found

    def _by_question(self, way: Way) -> Ints:
        return way.rows[np.argsort(self.kept.query[way.rows])]

    def comparisons(self) -> dict[str, Comparison]:
        """What matters, corrected together by Holm's rule."""
        from leverplus.stats import adjust

        free, rivals, ours = (self.chosen[name][0] for name in self.sides)
        best = self.afterwards["rivals without labels"]
        vote, group = self.of("vote + similarity", 8), self.committees()
        pairs = {
            "learned from answers - rivals without labels, each chosen on the other folds": (ours, free),
            "learned from answers - all rivals, each chosen on the other folds": (ours, rivals),
            f"learned from answers, chosen on the other folds - {best.name}": (ours, best.accuracy),
            "vote + similarity, 8 - rivals without labels, chosen on the other folds": (vote, free),
            f"vote + similarity, 8 - {best.name}": (vote, best.accuracy),
            "vote + similarity, 8 - MMR by question, 8": (vote, self.of("MMR by question", 8)),
            "learned, 8 - vote + similarity, 8": (self.of("learned", 8), vote),
            "learned, 8 - MMR by question, 8": (self.of("learned", 8), self.of("MMR by question", 8)),
            "learned, 16 - nearest by question, 16": (self.of("learned", 16), self.of("nearest by question", 16)),
            "MMR + effects, 8 - MMR by question, 8": (self.of("MMR + effects", 8), self.of("MMR by question", 8)),
            "MMR + company, 8 - MMR by question, 8": (self.of("MMR + company", 8), self.of("MMR by question", 8)),
            "fixed by effects, then nearest, 16 - nearest by mixed, 16": (
                self.of("fixed by effects, then nearest", 16),
                self.of("nearest by mixed", 16),
            ),
            f"majority of rivals without labels, 16 - {best.name}": (
                group["rivals without labels, 16"][1],
                best.accuracy,
            ),
            "majority of all rivals - vote + similarity, 8": (group["all rivals, 8 and 16"][1], vote),
            "majority of all arms - vote + similarity, 8": (group["all arms, 8 and 16"][1], vote),
            "majority of all arms - majority of all rivals": (
                group["all arms, 8 and 16"][1],
                group["all rivals, 8 and 16"][1],
            ),
        }
        found = [paired(own, rival, self.kept.group) for own, rival in pairs.values()]
        return dict(zip(pairs, adjust(found), strict=True))


def _print_ways(found: Results) -> None:
    rivals = [found.afterwards[name] for name in ("rivals without labels", "all rivals")]
    heads = [f"less {way.name}" for way in rivals]
    print("| arm | kind | shots | n | accuracy | probability | tokens | fresh |" + "".join(f" {h} |" for h in heads))
    print("|---|---|---|---|---|---|---|---|" + "---|" * len(heads))
    for way in found.ways:
        tokens, fresh = tokens_of(way, found.kept)
        figures = f"{100 * np.nanmean(way.accuracy):.2f} | {np.nanmean(way.gt_prob):.4f} | {tokens:.0f} | {fresh:.0f}"
        cells = [
            "" if way is rival else told(paired(way.accuracy, rival.accuracy, found.kept.group)) for rival in rivals
        ]
        print(
            f"| {way.arm} | {way.kind} | {way.shots} | {way.asked.sum():,} | {figures} |"
            + "".join(f" {cell} |" for cell in cells)
        )
    print()


def _print_choices(found: Results) -> None:
    """Each side's way chosen on the other folds, the best as seen afterwards, and answers by majority."""
    for name, (value, names) in found.chosen.items():
        best = found.afterwards[name]
        print(
            f"{name}, {len(found.sides[name])} ways: chosen on the other folds {100 * value.mean():.2f}"
            f" ({'; '.join(names)}); best afterwards {best.name} {100 * best.accuracy.mean():.2f}"
        )
    print("\n| answer of the majority of | lists | accuracy |\n|---|---|---|")
    for name, (count, accuracy) in found.committees().items():
        print(f"| {name} | {count} | {100 * accuracy.mean():.2f} |")
    print()


def _print_comparisons(found: Results) -> None:
    print("| compared | difference | p, corrected | |\n|---|---|---|---|")
    for name, own in found.comparisons().items():
        verdict = "within" if own.within_noise else "above" if own.diff > 0 else "below"
        print(f"| {name} | {told(own)} | {own.p_adjusted:.2g} | {verdict} |")
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
