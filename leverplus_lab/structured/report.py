"""What may be said of records: every arm at the shots that dev prefers, asked on test once, with paired intervals.

Of recorded tables: the spread of answers to one question, over the examples it was asked with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.data.types import ItemId
from leverplus.evaluate.stats import Comparison, adjust, compare
from leverplus.scores.tables import Floats, read_table
from leverplus_lab.structured.records import Records

SIMPLE = ("nearest_text", "bm25", "hybrid", "mmr", "random")
"""Ways that are not about answers; the best of them by dev is the rival."""
OURS = ("by_answer", "cover", "masked")
"""Ways that are; the best of them by dev is what is advised."""
WITHOUT_MODEL = "copy_nearest"
SPLIT_WORDS = {"split": "", "meta.query_split": " by query"}
"""How tables call a split."""

Scores = Mapping[ItemId, float]


@dataclass(frozen=True)
class Setting:
    """An arm at a number of shots: what each question scored on dev and on test."""

    arm: str
    shots: int
    dev: Scores
    test: Scores

    @property
    def dev_mean(self) -> float:
        """Accuracy on dev."""
        return _mean(self.dev)

    @property
    def test_mean(self) -> float:
        """Accuracy on test."""
        return _mean(self.test)

    @property
    def label(self) -> str:
        """Arm and shots in words."""
        if self.shots:
            return f"{self.arm} ({self.shots})"
        return self.arm


@dataclass(frozen=True)
class Against:
    """One question asked of test: an arm less another, both at the shots that dev prefers."""

    arm: Setting
    rival: Setting
    found: Comparison

    @property
    def difference(self) -> str:
        """The difference with its interval, in points."""
        low, high = self.found.ci95
        return f"{_signed(self.found.diff)} ({_signed(low)} to {_signed(high)})"


@dataclass(frozen=True)
class SplitReport:
    """One split of a task with one model; `best` has each arm at its best shots, `every` all its shots."""

    task: str
    model: str
    split_key: str
    best: Mapping[str, Setting]
    every: Sequence[Setting]
    simple: Setting
    advised: Setting
    against: Sequence[Against]

    @property
    def title(self) -> str:
        """Task, split and model in words."""
        return f"{self.task_name}, {self.model_name}"

    @property
    def task_name(self) -> str:
        """Task and split."""
        return self.task + SPLIT_WORDS.get(self.split_key, "")

    @property
    def model_name(self) -> str:
        """The model without the form of its file."""
        model = self.model.removesuffix(".gguf").replace("-Instruct", "")
        return model.partition(".Q")[0]

    def of(self, rival: Setting | None) -> Against | None:
        """The advised arm less another."""
        for own in self.against:
            if own.arm == self.advised and own.rival == rival:
                return own
        return None

    def less(self, rival: Setting | None) -> str:
        """The same in words, with its interval."""
        own = self.of(rival)
        if own is None:
            return ""
        noise = ""
        if own.found.within_noise:
            noise = ", noise"
        return f"{own.arm.label}: {own.difference}{noise}"


def _mean(scores: Scores) -> float:
    if scores:
        return float(np.mean(list(scores.values())))
    return float("nan")


def reports_of(records: Records) -> list[SplitReport]:
    """One report for each split of the data; corpora of another size are left to `by_size`."""
    found = []
    for split_key in dict.fromkeys(record.row.split_key for record in records.rows):
        if "/" not in split_key:
            found.append(_report(records, split_key))
    return found


def settings_of(records: Records, split_key: str) -> list[Setting]:
    """Every arm at every number of shots."""
    parts: dict[tuple[str, int], dict[str, dict[ItemId, float]]] = {}
    for record in records.rows:
        row = record.row
        if row.split_key == split_key and row.part in ("dev", "test"):
            fresh: dict[str, dict[ItemId, float]] = {"dev": {}, "test": {}}
            own = parts.setdefault((row.arm, row.shots), fresh)
            own[row.part][row.query] = record.accuracy
    found = []
    for (arm, shots), own in sorted(parts.items()):
        found.append(Setting(arm, shots, own["dev"], own["test"]))
    return found


def _report(records: Records, split_key: str) -> SplitReport:
    every = [own for own in settings_of(records, split_key) if own.dev and own.test]
    best: dict[str, Setting] = {}
    for setting in every:
        held = best.get(setting.arm)
        if held is None or setting.dev_mean > held.dev_mean:
            best[setting.arm] = setting
    simple = _best([best[arm] for arm in SIMPLE if arm in best])
    advised = _best([best[arm] for arm in OURS if arm in best])
    pairs = [(best[arm], simple) for arm in OURS if arm in best]
    for name in (*SIMPLE, WITHOUT_MODEL):
        if name in best and name != simple.arm:
            pairs.append((advised, best[name]))
    compared = [paired(first, second) for first, second in pairs]
    against = []
    for (arm, rival), found in zip(pairs, adjust(compared), strict=True):
        against.append(Against(arm, rival, found))
    told = (records.task, records.model, split_key)
    return SplitReport(*told, best, every, simple, advised, against)


def _best(settings: Sequence[Setting]) -> Setting:
    """The one with the best dev; among equals the one with fewer shots."""
    return max(settings, key=lambda own: (own.dev_mean, -own.shots))


def paired(first: Setting, second: Setting) -> Comparison:
    """The difference on the test questions of both."""
    ids = [item for item in first.test if item in second.test]
    left = [first.test[item] for item in ids]
    return compare(left, [second.test[item] for item in ids])


def as_markdown(reports: Sequence[SplitReport]) -> str:
    """One row a task, split and model."""
    head = (
        "task, model (test questions)",
        "no example",
        "random",
        "best simple",
        "masked",
        "by answer",
        "cover",
        "best without a model",
        "advised less best simple (95 %)",
        "advised less best without a model (95 %)",
    )
    rows = []
    for report in reports:
        simple = report.simple
        copied = report.best.get(WITHOUT_MODEL)
        cells = [f"{report.title} ({len(simple.test):,})"]
        cells += [_cell(report.best.get(arm)) for arm in ("zero_shot", "random")]
        cells.append(f"{simple.label} {_percent(simple.test_mean)}")
        for arm in ("masked", "by_answer", "cover", WITHOUT_MODEL):
            cells.append(_cell(report.best.get(arm)))
        rows.append([*cells, report.less(simple), report.less(copied)])
    return _table(head, rows)


def shots_as_markdown(reports: Sequence[SplitReport]) -> str:
    """Every arm at every number of shots: test, and dev in brackets."""
    shots = sorted({own.shots for report in reports for own in report.every})
    rows = []
    for report in reports:
        for arm in report.best:
            cells = dict.fromkeys(shots, "")
            for own in report.every:
                if own.arm == arm:
                    dev = _percent(own.dev_mean)
                    cells[own.shots] = f"{_percent(own.test_mean)} ({dev})"
            rows.append([report.title, arm, *cells.values()])
    return _table(("task", "arm", *map(str, shots)), rows)


def pairs_as_markdown(reports: Sequence[SplitReport]) -> str:
    """All comparisons with their intervals; p is corrected within a task, split and model."""
    rows = []
    for report in reports:
        for own in report.against:
            found = own.found
            cells = [report.title, own.arm.label, own.rival.label, own.difference]
            counts = f"{found.helped}, {found.harmed}"
            rows.append([*cells, f"{found.p_adjusted:.4f}", counts, str(found.n)])
    head = ("task", "this", "less", "difference (95 %)", "p, corrected")
    return _table((*head, "better, worse", "n"), rows)


def sizes_as_markdown(records: Sequence[Records]) -> str:
    """Accuracy on test by the size of the corpus; all: the whole of it, where the same shots were asked."""
    lines = []
    for own in records:
        # (split, arm, shots) -> the accuracy with so many examples to choose from; infinity: all
        by_size: dict[tuple[str, str, int], dict[float, float]] = {}
        for split_key in dict.fromkeys(record.row.split_key for record in own.rows):
            name, _, size = split_key.partition("/")
            for setting in settings_of(own, split_key):
                if setting.test:
                    key = (name, setting.arm, setting.shots)
                    sizes = by_size.setdefault(key, {})
                    sizes[float(size or np.inf)] = setting.test_mean
        for (name, arm, shots), sizes in sorted(by_size.items()):
            for count, accuracy in sorted(sizes.items()) if len(sizes) > 1 else ():
                examples = "all"
                if count != np.inf:
                    examples = f"{count:,.0f}"
                task = own.task + SPLIT_WORDS.get(name, "")
                lines.append([task, arm, str(shots), examples, _percent(accuracy)])
    return _table(("task", "arm", "shots", "examples", "test"), lines)


def as_json(reports: Sequence[SplitReport]) -> list[dict[str, Any]]:
    """The same for programs."""
    found = []
    for report in reports:
        arms = []
        for own in report.every:
            row = {"arm": own.arm, "shots": own.shots, "dev": own.dev_mean}
            arms.append({**row, "test": own.test_mean, "n": len(own.test)})
        pairs = []
        for pair in report.against:
            names = {"arm": pair.arm.label, "rival": pair.rival.label}
            pairs.append({**names, **pair.found.as_json()})
        about = {"task": report.task, "model": report.model, "split": report.split_key}
        found.append({**about, "arms": arms, "comparisons": pairs})
    return found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cells in rows:
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(setting: Setting | None) -> str:
    """Accuracy and shots."""
    if setting is None:
        return ""
    shots = ""
    if setting.shots:
        shots = f" ({setting.shots})"
    return f"{_percent(setting.test_mean)}{shots}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _signed(value: float) -> str:
    """A difference in points."""
    return f"{100 * value:+.1f}"


LEAST = 1e-300
"""Probabilities below it are told apart no further."""


@dataclass(frozen=True)
class Spread:
    """Questions that were asked with one example at a time.

    `differ` is the share of questions with a right and a wrong answer among theirs, `within` the share of the variance
    of the log-probability of the right answer that lies inside questions, `agrees` how often, of two examples of which
    one gave the right answer, that one had the higher log-probability (NaN without such pairs).
    """

    questions: int
    prompts: int
    accuracy: float
    best: float
    differ: float
    within: float
    agrees: float


def spread_of(path: Path) -> Spread:
    """The spread of a recorded table's prompts with one example."""
    table = read_table([path])
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    logprobs = np.log(np.maximum(table.gt_prob, LEAST))
    accuracies: list[Floats] = []
    weights: list[Floats] = []
    agreed = pairs = 0
    for query in np.unique(table.queries[alone]):
        rows = alone[table.queries[alone] == query]
        if len(rows) < 2:
            continue
        accuracy = table.accuracy[rows]
        logprob = logprobs[rows]
        accuracies.append(accuracy)
        weights.append(logprob)
        better = accuracy[:, None] > accuracy[None, :]  # (K, K)
        pairs += int(better.sum())
        likelier = logprob[:, None] > logprob[None, :]
        agreed += int((better & likelier).sum())
    best = np.array([accuracy.max() for accuracy in accuracies])
    least = np.array([accuracy.min() for accuracy in accuracies])
    everything = np.concatenate(weights)
    inside = np.concatenate([own - own.mean() for own in weights])
    return Spread(
        questions=len(accuracies),
        prompts=len(everything),
        accuracy=float(np.concatenate(accuracies).mean()),
        best=float(best.mean()),
        differ=float((best > least).mean()),
        within=float((inside**2).mean() / everything.var()),
        agrees=agreed / pairs if pairs else float("nan"),
    )


def spread_as_markdown(found: Mapping[str, Spread]) -> str:
    """One row a table."""
    rows = []
    for name, own in found.items():
        shares = (own.accuracy, own.best, own.differ, own.within, own.agrees)
        cells = [name, f"{own.questions:,}", f"{own.prompts:,}"]
        rows.append([*cells, *map(_percent, shares)])
    head = (
        "table",
        "questions",
        "prompts",
        "right",
        "best example right",
        "questions with both",
        "variance within questions",
        "likelier where right",
    )
    return _table(head, rows)
