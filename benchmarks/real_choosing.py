"""How to choose one arm out of many? Rules tried on training and dev queries of the recorded tables, not on test.

    python benchmarks/real_choosing.py [benchmarks/real/choosing] [--repeats 200]

Half of the queries that every setting of every arm was asked about choose, the other half judge, drawn anew each time
(pictures whole). Queries that only one-shot prompts were asked about may help to choose. A rule is judged by the
accuracy of what it chose, against the setting that is best over all queries of the table, and by how often its choice
is below the best setting of the judging half at p < 0.05 (paired, not corrected for that setting being the luckiest).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leverplus.stats.choosing import adjusted_means

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
HERE = Path(__file__).parent
FEW = 100
MISSING = 65535
CHEAP = ("label_vote", "label_regression", "zero_shot", "random", "nearest", "mmr", "balanced")
"""Arms without calls for training, cheapest first; every other one is dearer."""


@dataclass(frozen=True)
class Table:
    """Accuracies (n, S) of all settings on training and dev queries, NaN where not measured."""

    name: str
    settings: list[str]
    dev: Mask
    group: NDArray[np.int64]
    scores: Floats

    @classmethod
    def read(cls, path: Path) -> Table:
        with np.load(path) as kept:
            scores = np.where(kept["thousandths"] == MISSING, np.nan, kept["thousandths"] / 1000.0)
            return cls(path.stem, kept["names"].tolist(), kept["dev"], kept["group"], scores)

    @property
    def arms(self) -> list[str]:
        return [name.partition(" | ")[0] for name in self.settings]

    @property
    def costs(self) -> list[tuple[int, int]]:
        """By training, then by the number of shots."""
        found = []
        for name in self.settings:
            arm, _, setting = name.partition(" | ")
            plain = arm.removesuffix("_calibrated")
            shots = [int(word) for word in setting.replace(",", " ").split() if word.isdecimal()]
            found.append((CHEAP.index(plain) if plain in CHEAP else len(CHEAP), shots[-1] if shots else 0))
        return found


Rule = Callable[[Table, Floats, Mask], int]
"""(table, scores to choose by, which of them are of queries that all settings were asked about) -> setting."""


def best_of_few(_table: Table, scores: Floats, complete: Mask) -> int:
    return int(scores[np.flatnonzero(complete)[:FEW]].mean(axis=0).argmax())


def best_on_common(_table: Table, scores: Floats, complete: Mask) -> int:
    return int(scores[complete].mean(axis=0).argmax())


def best_by_all(_table: Table, scores: Floats, _complete: Mask) -> int:
    return int(adjusted_means(scores).mean.argmax())


def shrunk(table: Table, scores: Floats, _complete: Mask) -> int:
    """Means shrunk towards their arm's, and arms towards each other, by how much of their spread is noise."""
    mean, error = adjusted_means(scores).mean, errors(scores)
    _, arm = np.unique(table.arms, return_inverse=True)
    count = np.bincount(arm)
    middle = np.bincount(arm, mean) / count
    inside = mean - middle[arm]
    many = count[arm] > 1
    freedom = max(1, int(many.sum() - (count > 1).sum()))
    within = max(0.0, float((inside[many] ** 2).sum() / freedom - (error[many] ** 2).mean()))
    return int((middle[arm] + inside * within / (within + error**2)).argmax())


def shrunk_by_error(_table: Table, scores: Floats, _complete: Mask) -> int:
    """Means shrunk towards that of all settings: those of arms that were measured less, by more."""
    mean, error = adjusted_means(scores).mean, errors(scores)
    spread = max(0.0, float(mean.var(ddof=1) - (error**2).mean()))
    return int(((mean - mean.mean()) * spread / (spread + error**2)).argmax())


def within_one_error(scores: Floats) -> tuple[Floats, list[int]]:
    """Means, and the settings whose paired distance to the best is below one standard error."""
    mean = adjusted_means(scores).mean
    best = int(mean.argmax())
    near = []
    for setting in range(scores.shape[1]):
        apart = scores[:, best] - scores[:, setting]
        apart = apart[~np.isnan(apart)]
        if mean[best] - mean[setting] <= apart.std(ddof=1) / np.sqrt(len(apart)):
            near.append(setting)
    return mean, near


def one_error_cheaper(table: Table, scores: Floats, _complete: Mask) -> int:
    mean, near = within_one_error(scores)
    return min(near, key=lambda setting: (table.costs[setting], -mean[setting]))


def one_error_known(_table: Table, scores: Floats, _complete: Mask) -> int:
    mean, near = within_one_error(scores)
    known = (~np.isnan(scores)).sum(axis=0)
    return max(near, key=lambda setting: (known[setting], mean[setting]))


def errors(scores: Floats) -> Floats:
    """Standard errors of the settings' means, the difficulty of the query taken out."""
    rest = scores - np.nanmean(scores, axis=1, keepdims=True)
    return np.asarray(np.nanstd(rest, axis=0, ddof=1) / np.sqrt((~np.isnan(rest)).sum(axis=0)))


RULES: Mapping[str, Rule] = {
    f"best of {FEW} common queries": best_of_few,
    "best on the common queries": best_on_common,
    "best by all queries, adjusted": best_by_all,
    "the same, shrunk within arms": shrunk,
    "shrunk by their errors": shrunk_by_error,
    "the cheapest within one error": one_error_cheaper,
    "the best known within one error": one_error_known,
}


def trial(table: Table, complete: Mask, rng: np.random.Generator) -> dict[str, tuple[float, bool]]:
    """By rule: accuracy of what it chose less that of the table's best on the judging half; and whether it is below."""
    half = rng.permutation(int(table.group.max()) + 1)[table.group] % 2 == 0
    judging = complete & half
    order = rng.permutation(np.flatnonzero(~judging))
    judged = table.scores[judging]
    truth = int(adjusted_means(table.scores).mean.argmax())
    luckiest = int(judged.mean(axis=0).argmax())
    found = {}
    for name, rule in RULES.items():
        chosen = rule(table, table.scores[order], complete[order])
        apart = judged[:, luckiest] - judged[:, chosen]
        below = apart.mean() > 1.96 * max(apart.std(ddof=1), 1e-9) / np.sqrt(len(apart))
        found[name] = float((judged[:, chosen] - judged[:, truth]).mean()), bool(below)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "real" / "choosing")
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    sums: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
    print(f"| table | {' | '.join(RULES)} |\n|{'---|' * (len(RULES) + 1)}")
    for path in sorted(args.folder.glob("*.npz")):
        table = Table.read(path)
        complete = ~np.isnan(table.scores).any(axis=1)
        trials = [trial(table, complete, rng) for _ in range(args.repeats)]
        cells = []
        for name in RULES:
            lost = float(np.mean([own[name][0] for own in trials]))
            below = float(np.mean([own[name][1] for own in trials]))
            sums[name].append((lost, below))
            cells.append(f"{100 * lost:+.2f}, {100 * below:.0f} %")
        print(f"| {table.name}, {int(complete.sum())} common of {len(complete)} | {' | '.join(cells)} |", flush=True)
    means = [np.mean(own, axis=0) for own in sums.values()]
    print(f"| mean | {' | '.join(f'{100 * lost:+.2f}, {100 * below:.0f} %' for lost, below in means)} |")


if __name__ == "__main__":
    main()
