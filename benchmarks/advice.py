"""How much accuracy is lost by following the advice, from recorded answers; no model is asked.

    python benchmarks/advice.py [--draws 400] [RUN ...]

Two rules are compared: the plain figure on dev, and the one corrected for choosing (leverplus.evaluate.stats.choosing).
A RUN is a folder with predictions of dev and test: `lever run world --out RUN`, then `lever eval RUN --split dev`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leverplus.data import rundir
from leverplus.evaluate.advice import ALONE, is_deployable
from leverplus.evaluate.names import facts_of
from leverplus.evaluate.predictions import read_predictions
from leverplus.evaluate.stats.choosing import Way, correct
from leverplus_lab.real import read_file, recommended, shots_of_setting
from leverplus_lab.structured.records import read_records

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parent / "leverplus" / "tables"
REAL = SHIPPED / "real"
SIZES = (20, 60, 150)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Scores of the ways that could be deployed, (n, K), on dev (where its items are known) and on test."""

    name: str
    ways: Sequence[Way]
    dev: Floats | None
    test: Floats

    def asking(self) -> Table:
        """Only ways that ask a model."""
        kept = [place for place, way in enumerate(self.ways) if not way.alone]
        dev = None if self.dev is None else self.dev[:, kept]
        ways = [self.ways[place] for place in kept]
        return Table(self.name, ways, dev, self.test[:, kept])


def plain(scores: Floats, ways: Sequence[Way]) -> tuple[int, float, float, float]:
    """The place of the best way, its figure and the ends of its interval."""
    means = scores.mean(axis=0)
    best = first(means, ways)
    half = 1.96 * scores[:, best].std(ddof=1) / len(scores) ** 0.5
    return best, means[best], means[best] - half, means[best] + half


def corrected(scores: Floats, ways: Sequence[Way]) -> tuple[int, float, float, float]:
    found = correct(scores, ways)
    best = first([own.estimate for own in found], ways)
    return best, found[best].estimate, *found[best].ci95


Rule = Callable[[Floats, Sequence[Way]], tuple[int, float, float, float]]
RULES: dict[str, Rule] = {"plain": plain, "corrected": corrected}


def first(values: Sequence[float] | Floats, ways: Sequence[Way]) -> int:
    """The place of the highest value, the cheapest among equals."""
    keys = []
    for place, way in enumerate(ways):
        keys.append((-round(float(values[place]), 9), not way.alone, way.shots, place))
    return min(keys)[-1]


def structured() -> Iterator[Table]:
    for path in sorted((SHIPPED / "structured" / "records").glob("*.parquet")):
        parts: dict[str, dict[str, dict[Way, dict[str, float]]]] = {}
        records = read_records(path)
        for record in records.rows:
            row = record.row
            if "/" not in row.split_key and is_deployable(row.arm):
                alone = row.shots == 0 and row.arm != ALONE
                way = Way(row.arm, row.shots, alone)
                own = parts.setdefault(row.split_key, {}).setdefault(row.part, {})
                own.setdefault(way, {})[row.query] = record.accuracy
        for key, by_part in parts.items():
            ways = list(by_part["dev"])
            scores = {}
            for part, by_way in by_part.items():
                items = sorted(by_way[ways[0]])
                columns = [[by_way[way][item] for item in items] for way in ways]
                scores[part] = np.array(columns).T
            name = records.task + (" by query" if "query" in key else "")
            yield Table(name, ways, scores["dev"], scores["test"])


def real() -> Iterator[Table]:
    """The fifteen tables, with the networks trained on them; their dev items are not kept."""
    for path in sorted(REAL.glob("*.parquet")):
        records = read_file(path)
        items = records[0].items
        network = HERE / "real" / "network" / path.name
        if network.is_file():
            records += [own for own in read_file(network) if own.arm != "effects"]
        ways, columns = [], []
        for own in records:
            usable = own.kind != "looks" and is_deployable(own.arm)
            usable &= not np.isnan(own.accuracy).any()
            way = Way(
                own.arm,
                int(shots_of_setting(own.setting) or 0),
                own.arm.startswith("label_") and own.arm != "label_rank",
            )
            if usable and list(own.items) == list(items) and way not in ways:
                ways.append(way)
                columns.append(own.accuracy)
        yield Table(path.stem, ways, None, np.stack(columns, axis=1))


def by_recorded_dev() -> None:
    """The fifteen tables, chosen by what their files keep of train and dev: one figure a way."""
    lost = []
    for path in sorted(REAL.glob("*.parquet")):
        records = [own for own in read_file(path) if is_deployable(own.arm)]
        own = recommended(records)
        usable = [r for r in records if r.shots == "best" and r.kind != "looks"]
        top = max(usable, key=lambda record: record.mean)
        lost.append(top.mean - own.mean)
        print(
            f"{path.stem} ({len(own.items)}) | {own.arm} {100 * own.mean:.1f} | {top.arm} {100 * top.mean:.1f} | "
            f"{100 * lost[-1]:.1f}"
        )
    print(f"all | mean, worst | | {percent(lost)}")


def run_table(folder: Path) -> Table:
    scores, ways = {}, []
    for part in ("dev", "test"):
        results = read_predictions(folder / rundir.of_split(rundir.PREDICTIONS, part))
        if not ways:
            for arm in filter(is_deployable, results.draws):
                for shots in results.shots(arm):
                    alone = not facts_of(arm).asks_model
                    if not alone or shots == results.shots(arm)[0]:
                        ways.append(Way(arm, shots, alone))
        columns = [results.accuracy(way.arm, way.shots) for way in ways]
        scores[part] = np.stack(columns, axis=1)
    return Table(folder.name, ways, scores["dev"], scores["test"])


def percent(values: Sequence[float] | Floats) -> str:
    """Mean and worst over tables, in points."""
    return f"{100 * np.mean(values):.2f}, {100 * np.max(values):.2f}"


def drawn(tables: Sequence[Table], draws: int) -> None:
    """Items drawn with replacement from dev, from test where dev's are not kept: the truth is the whole of them."""
    print("rule, dev items | regret: mean, worst table | figure less truth | covered")
    for size in (*SIZES, None):
        for name, rule in RULES.items():
            lost, excess, held = [], [], []
            for table in tables:
                items = table.test if table.dev is None else table.dev
                truth = items.mean(axis=0)
                rng = np.random.default_rng(0)
                rows = []
                for _ in range(draws):
                    places = rng.integers(0, len(items), size or len(items))
                    best, figure, low, high = rule(items[places], table.ways)
                    own = truth[best]
                    rows.append((truth.max() - own, figure - own, low <= own <= high))
                means = np.mean(rows, axis=0)
                lost.append(means[0])
                excess.append(means[1])
                held.append(means[2])
            print(
                f"{name}, {size or 'all'} | {percent(lost)} | {100 * np.mean(excess):+.1f} "
                f"({100 * min(excess):+.1f} to {100 * max(excess):+.1f}) | {100 * np.mean(held):.1f} "
                f"({100 * min(held):.0f} to {100 * max(held):.0f})"
            )


def halves(scores: Floats, advised: int, rng: np.random.Generator) -> float:
    """How far the advised way is behind the best on one half, judged on the other."""
    order = rng.permutation(len(scores))
    middle = len(scores) // 2
    best = scores[order[:middle]].mean(axis=0).argmax()
    rest = scores[order[middle:]].mean(axis=0)
    return float(rest[best] - rest[advised])


def on_test(tables: Sequence[Table], draws: int) -> None:
    """All dev items choose; then samples of them."""
    for name, rule in RULES.items():
        lost, honest = [], []
        for table in tables:
            assert table.dev is not None
            best = rule(table.dev, table.ways)[0]
            means = table.test.mean(axis=0)
            rng = np.random.default_rng(0)
            lost.append(means.max() - means[best])
            honest.append(
                float(np.mean([halves(table.test, best, rng) for _ in range(draws)]))
            )
            top, own = table.ways[int(means.argmax())], table.ways[best]
            print(
                f"{name} | {table.name} ({len(table.dev)}, {len(table.test)}) | {own.arm} ({own.shots}) "
                f"{100 * means[best]:.1f} | {top.arm} ({top.shots}) {100 * means.max():.1f} | {100 * lost[-1]:.1f} | "
                f"{100 * honest[-1]:+.1f}"
            )
        print(f"{name} | all | mean, worst | | {percent(lost)} | {percent(honest)}")


def sampled(tables: Sequence[Table], draws: int) -> None:
    """Some items choose, others judge: dev and test, or two parts of test where dev's items are not known."""
    print("rule, items | regret: mean, worst table | by halves: mean, worst | worst")
    for size in SIZES:
        for name, rule in RULES.items():
            lost, honest = [], []
            for table in tables:
                rng = np.random.default_rng(0)
                rows = []
                for _ in range(draws):
                    choosing, judging = table.dev, table.test
                    if choosing is None:
                        order = rng.permutation(len(table.test))
                        choosing = table.test[order[:size]]
                        judging = table.test[order[size:]]
                    places = rng.permutation(len(choosing))[:size]
                    best = rule(choosing[places], table.ways)[0]
                    means = judging.mean(axis=0)
                    rows.append((means.max() - means[best], halves(judging, best, rng)))
                lost.append(np.mean(rows, axis=0)[0])
                honest.append(np.mean(rows, axis=0)[1])
            worst = tables[int(np.argmax(lost))].name
            print(f"{name}, {size} | {percent(lost)} | {percent(honest)} | {worst}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--draws", type=int, default=400)
    given = parser.parse_args(words)
    kept = list(structured())
    runs = [run_table(folder) for folder in given.runs]
    print("Fifteen tables: table (test items) | advised by train and dev | best | less")
    by_recorded_dev()
    for title, asking in (("every way", False), ("ways that ask a model", True)):
        print(f"\n## {title}\n\nDrawn from dev, {given.draws} times")
        own = [table.asking() if asking else table for table in (*kept, *runs)]
        drawn(own[: len(kept)], given.draws)
        print(
            "\nOn test: rule | table (dev, test items) | advised | best | less | by halves"
        )
        on_test(own, given.draws)
        sampled(own, given.draws)
        print("\nFifteen tables, parts of their test items")
        others = [table.asking() if asking else table for table in real()]
        sampled(others, given.draws)
        print("\nTheir test items, drawn")
        drawn(others, given.draws)
        print("\nTest items of the first tables, drawn")
        drawn([replace(table, dev=None) for table in own], given.draws)


if __name__ == "__main__":
    main()
