"""Do the statistics keep their word? Thousands of simulated comparisons whose truth is known.

    python benchmarks/known_truth.py [--simulations 2000] [--only populations images seeds family] [--json]

Every test offered may raise at most 6.5 % false alarms at p < 0.05 when both arms are equally accurate; 95 % intervals
must cover the true difference in 93.5 to 96.5 % of simulations; an effect as large as the stated minimum detectable one
must be found in 77 to 83 %. Ends with exit code 1 if any row misses its band.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from leverplus.evaluate.stats import (
    compare,
    compare_seeds,
    holm,
    mcnemar_test,
    mean_interval,
    paired_bootstrap,
    sign_flip_test,
)

FALSE_ALARMS = (0.0, 0.065)
COVERAGE = (0.935, 0.965)
POWER = (0.77, 0.83)

RESAMPLES = 2000

Arms = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Row:
    """A share measured over simulations of one population, and the band it must lie in."""

    population: str
    n: int
    claim: str
    measured: float
    low: float
    high: float

    @property
    def kept(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Population:
    """Paired scores of n items: kinds of items (score of a, score of b) with their chances, equal accuracy at effect 0.

    `first[k], second[k]` are the scores of kind k; `tilt[k]` is how its chance moves with the effect, so that the true
    difference is the effect while the discordance and the sizes of change stay as they are.
    """

    name: str
    first: np.ndarray
    second: np.ndarray
    chance: np.ndarray
    tilt: np.ndarray

    def draw(self, n: int, effect: float, rng: np.random.Generator) -> Arms:
        chance = np.maximum(
            self.chance + effect * self.tilt, 0.0
        )  # rounding may leave a hair below zero
        kinds = rng.choice(len(chance), size=n, p=chance / chance.sum())
        return self.first[kinds], self.second[kinds]


def binary(accuracy: float, discordance: float) -> Population:
    """Right or wrong; both right, both wrong, or one of them."""
    both = accuracy - discordance / 2
    chance = np.array([both, 1 - both - discordance, discordance / 2, discordance / 2])
    return Population(
        f"binary, {discordance:.0%} differ",
        np.array([1.0, 0.0, 1.0, 0.0]),
        np.array([1.0, 0.0, 0.0, 1.0]),
        chance,
        np.array([0.0, 0.0, 0.5, -0.5]),
    )


def graded(discordance: float) -> Population:
    """VQA accuracies with correlated arms: equal on most items, else any two different values, either way round."""
    values = np.array([0.0, 0.3, 0.6, 0.9, 1.0])
    share = np.array([0.35, 0.12, 0.1, 0.08, 0.35])
    first, second = (grid.ravel() for grid in np.meshgrid(values, values))
    differ = (np.outer(share, share) * (1 - np.eye(5))).ravel()
    chance = (
        discordance * differ / differ.sum() + (1 - discordance) * np.diag(share).ravel()
    )
    sign = np.sign(first - second) * differ
    return Population(
        f"graded, {discordance:.0%} differ",
        first,
        second,
        chance,
        sign / (sign @ (first - second)),
    )


def skewed() -> Population:
    """Equal means, unequal shapes: more items gain than lose, but losses are larger; an effect turns large losses."""
    return Population(
        "graded, many small gains, few large losses",
        np.array([1.0, 0.0, 0.9, 0.6, 1.0, 0.3]),
        np.array([1.0, 0.0, 0.6, 0.9, 0.3, 1.0]),
        np.array([0.4, 0.33, 0.16, 0.02, 0.015, 0.075]),
        np.array([0.0, 0.0, 0.0, 0.0, 1.0, -1.0]) / 1.4,
    )


POPULATIONS = (binary(0.5, 0.1), binary(0.7, 0.25), graded(0.1), graded(0.25), skewed())


def rows_of_population(
    population: Population, n: int, simulations: int, seed: int
) -> Iterator[Row]:
    """False alarms, coverage without and with an effect, and power at the stated minimum detectable effect."""
    rng = np.random.default_rng([seed, n, len(population.name)])
    is_binary = population.name.startswith("binary")
    effect = 0.04
    alarms = {"sign flip": 0, "McNemar": 0}
    covered = {0.0: 0, effect: 0}
    mean_covered = found = 0
    true_mean = float(population.chance @ population.first)
    for trial in range(simulations):
        a, b = population.draw(n, 0.0, rng)
        stated = compare(a, b, resamples=RESAMPLES, seed=trial)
        alarms["sign flip"] += stated.p_value < 0.05
        if is_binary:
            alarms["McNemar"] += mcnemar_test(stated.helped, stated.harmed) < 0.05
        covered[0.0] += _inside(stated.ci95, 0.0)
        mean_covered += _inside(
            mean_interval(a, resamples=RESAMPLES, seed=trial), true_mean
        )
        shifted = population.draw(n, effect, rng)
        covered[effect] += _inside(
            paired_bootstrap(*shifted, resamples=RESAMPLES, seed=trial), effect
        )
        found += (
            sign_flip_test(
                *population.draw(n, _possible(population, stated.mde80), rng)
            )
            < 0.05
        )
    for test, count in alarms.items():
        if test == "sign flip" or is_binary:
            yield Row(
                population.name,
                n,
                f"false alarms, {test}",
                count / simulations,
                *FALSE_ALARMS,
            )
    for true, count in covered.items():
        yield Row(
            population.name,
            n,
            f"coverage, true difference {true:g}",
            count / simulations,
            *COVERAGE,
        )
    yield Row(
        population.name, n, "coverage, one mean", mean_covered / simulations, *COVERAGE
    )
    yield Row(population.name, n, "stated effect found", found / simulations, *POWER)


def _inside(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] - 1e-12 <= truth <= interval[1] + 1e-12


def _possible(population: Population, effect: float) -> float:
    """The effect, or the largest this population can have without a chance below zero."""
    falling = population.tilt < 0
    return min(
        effect, float(np.min(population.chance[falling] / -population.tilt[falling]))
    )


def rows_of_images(n: int, simulations: int, seed: int) -> Iterator[Row]:
    """Questions on one picture that tend to go the same way: pictures, not questions, are the independent pieces."""
    name = "binary, 4 questions a picture that agree"
    rng = np.random.default_rng([seed, n, 1])
    clusters = np.repeat(np.arange(n // 4), 4).tolist()
    alarms = covered = found = 0

    def draw(effect: float) -> Arms:
        lean = np.repeat(rng.choice([-0.2, 0.2], size=n // 4), 4)
        differ = rng.random(n) < 0.4
        up = rng.random(n) < 0.5 + lean + effect / 0.8
        base = rng.random(n) < 0.5
        a, b = np.where(differ, up, base), np.where(differ, ~up, base)
        return a.astype(float), b.astype(float)

    for trial in range(simulations):
        stated = compare(*draw(0.0), clusters=clusters, resamples=RESAMPLES, seed=trial)
        alarms += stated.p_value < 0.05
        covered += _inside(stated.ci95, 0.0)
        found += (
            sign_flip_test(*draw(min(stated.mde80, 0.24)), clusters=clusters) < 0.05
        )
    yield Row(
        name,
        n,
        "false alarms, sign flip by picture",
        alarms / simulations,
        *FALSE_ALARMS,
    )
    yield Row(name, n, "coverage, by picture", covered / simulations, *COVERAGE)
    yield Row(name, n, "stated effect found", found / simulations, *POWER)


def rows_of_seeds(n: int, seeds: int, simulations: int, seed: int) -> Iterator[Row]:
    """Two methods, several seeds each, seeds that are better or worse than others."""
    name = f"binary, {seeds} seeds an arm"
    rng = np.random.default_rng([seed, n, seeds])
    spread = 0.015

    def draw(effect: float) -> Arms:
        easy = rng.beta(0.6, 0.6, size=n) * 0.6 + 0.2
        lean = rng.normal(effect / 2, 0.05, size=n)
        luck = rng.normal(0.0, spread, size=(2, seeds, 1))
        a, b = rng.random((2, seeds, n)) < np.stack(
            [easy + lean + luck[0], easy - lean + luck[1]]
        )
        return a.astype(float), b.astype(float)

    alarms = covered = found = 0
    for trial in range(simulations):
        stated = compare_seeds(*draw(0.0), resamples=RESAMPLES, seed=trial)
        alarms += stated.p_value < 0.05
        covered += _inside(stated.ci95, 0.0)
        found += (
            compare_seeds(*draw(min(stated.mde80, 0.2)), resamples=50).p_value < 0.05
        )
    yield Row(
        name, n, "false alarms, seeds and items", alarms / simulations, *FALSE_ALARMS
    )
    yield Row(name, n, "coverage, seeds and items", covered / simulations, *COVERAGE)
    yield Row(name, n, "stated effect found", found / simulations, *POWER)


def rows_of_family(
    n: int, comparisons: int, simulations: int, seed: int
) -> Iterator[Row]:
    """One true difference among many comparisons, all corrected together: found as often as stated under correction."""
    population = graded(0.25)
    name = f"{population.name}, one of {comparisons} compared"
    rng = np.random.default_rng([seed, n, comparisons])
    found = promised = 0
    for trial in range(simulations):
        stated = compare(*population.draw(n, 0.0, rng), resamples=50, seed=trial)
        others = [
            sign_flip_test(*population.draw(n, 0.0, rng))
            for _ in range(comparisons - 1)
        ]
        for corrected in (True, False):
            effect = stated.detectable(comparisons) if corrected else stated.mde80
            p = sign_flip_test(*population.draw(n, _possible(population, effect), rng))
            hit = holm([p, *others])[0] < 0.05
            found, promised = (
                found + (hit and corrected),
                promised + (hit and not corrected),
            )
    yield Row(name, n, "stated effect found, corrected", found / simulations, *POWER)
    yield Row(
        name,
        n,
        "effect stated for one test, corrected",
        promised / simulations,
        0.0,
        0.77,
    )


KINDS = ("populations", "images", "seeds", "family")


def simulate(
    simulations: int,
    seed: int = 0,
    report: Callable[[Row], object] = id,
    only: Sequence[str] = KINDS,
) -> list[Row]:
    """All rows of the kinds asked for; `report` sees each as soon as it is known."""
    rows: list[Row] = []
    for n in (200, 1000):
        sources = {
            "populations": [
                rows_of_population(population, n, simulations, seed)
                for population in POPULATIONS
            ],
            "images": [rows_of_images(n, simulations, seed)],
            "seeds": [rows_of_seeds(n, seeds, simulations, seed) for seeds in (3, 5)],
            "family": [rows_of_family(n, 10, simulations, seed)],
        }
        for source in chain.from_iterable(sources[kind] for kind in only):
            for row in source:
                report(row)
                rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()

    def show(row: Row) -> None:
        mark = "kept" if row.kept else "MISSED"
        band = f"{row.low:.1%}-{row.high:.1%}"
        line = f"{row.population:<44} {row.n:>5}  {row.claim:<42} {row.measured:7.2%}  {band:<11}  {mark}"
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    rows = simulate(options.simulations, options.seed, show, options.only)
    kept = all(row.kept for row in rows)
    if options.json:
        table = [{**asdict(row), "kept": row.kept} for row in rows]
        print(
            json.dumps(
                {
                    "simulations": options.simulations,
                    "seed": options.seed,
                    "kept": kept,
                    "rows": table,
                }
            )
        )
    else:
        print(
            f"{options.simulations} simulations a row, {time.perf_counter() - start:.0f} s; all kept: {kept}"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
