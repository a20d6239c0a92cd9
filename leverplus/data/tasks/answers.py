"""How a task judges answers: how one is cut out of a model's words, what it scores, which answers count as the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import file_digest

from leverplus.catalog import is_outside
from leverplus.data.metrics import cut_named, metric_named
from leverplus.data.metrics.base import (
    ConfiguredMetric,
    Example,
    Metric,
    MetricOptions,
)
from leverplus.data.metrics.sql import find_database, sql_key
from leverplus.data.metrics.text import plain_label, plain_text
from leverplus.data.metrics.values import json_key, number_key
from leverplus.data.metrics.vqa import normalise_answer
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, ScoringError

SHORT_METRICS = ("vqa_accuracy", "exact_match")
"""Metrics of short answers, which are compared after the normalisation of VQA."""

ROUNDING = 1e-9
"""Differences of scores below this come from adding them up."""

MOST_LEFT_OUT = 0.02
"""A data set of which more records cannot be answered right is refused."""

KEYS: Mapping[str, Callable[[str], str]] = {
    "label_accuracy": plain_label,
    "number": number_key,
    "json": json_key,
    "json_fields": json_key,
    "sql": sql_key,
    "sql_execution": sql_key,
}
"""The normal form of answers under a metric."""

_NO_OPTIONS = MetricOptions()


@dataclass(frozen=True)
class AnswerRules:
    """The rules by which a task's answers are cut, scored and told apart.

    >>> rules = AnswerRules("exact_match", "vqa")
    >>> rules.cut_answer(" Red, I think")
    'Red'
    >>> rules.score("red", Item("1", "Which colour?", ("Red",), "test"))
    1.0
    """

    metric: str
    cut: str = "plain"
    options: MetricOptions = _NO_OPTIONS

    @property
    def kind(self) -> str:
        """The kind of answers: "label", "short" (a word or a short phrase) or "long" (all others: sentences, SQL, JSON)."""
        if self.metric == "label_accuracy":
            return "label"
        if self._is_normalised:
            return "short"
        return "long"

    @property
    def _is_normalised(self) -> bool:
        """Whether answers are short, and compared after the normalisation of VQA."""
        return self.metric in SHORT_METRICS or self.cut in ("vqa", "vqa_stem")

    @cached_property
    def _judge(self) -> Metric:
        return metric_named(self.metric, self.options)

    def for_items(self, items: Iterable[Item]) -> AnswerRules:
        """The rules for these items: a metric that counts rare words counts them in their references."""
        if self.metric != "cider" or self.options.references:
            return self
        references = tuple(item.answers for item in items)
        return replace(self, options=replace(self.options, references=references))

    def cut_answer(self, raw: str) -> str:
        """The answer in a model's words."""
        cut = cut_named(self.cut)
        if not is_outside(self.cut):
            return cut(raw)
        try:
            answer = cut(raw)
        except Exception as error:  # whatever a user's cut does
            raise ScoringError(
                f"the cut {self.cut} failed on {_short(raw)} ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(answer, str):
            raise ScoringError(
                f"the cut {self.cut} gives a {type(answer).__name__} for {_short(raw)}; it must give a text"
            )
        return answer

    def score(self, answer: str, item: Item) -> float:
        """What an answer is worth as the answer to an item, in [0, 1]; no answer is worth nothing."""
        if not answer.strip():
            return 0.0  # to the official VQA metric "" is the same as "A", an article that normalises to nothing
        return _score(self, answer, item)

    def key(self, answer: str) -> str:
        """A normal form: answers with the same key count as one answer, in votes and among labels."""
        if self.metric in KEYS:
            return KEYS[self.metric](answer)
        if self._is_normalised:
            return normalise_answer(answer) or answer.strip()
        return plain_text(answer)

    def agree(self, first: str, second: str, item: Item) -> bool:
        """Whether two answers to an item are the same answer: for SQL that is run, whether they give the same rows."""
        if isinstance(self._judge, ConfiguredMetric):
            agreed = self._judge.agree(first, second, example_of(item))
            if agreed is not None:
                return agreed
        return self.key(first) == self.key(second)

    def ceiling(self, item: Item) -> float:
        """The most that an answer to an item can score: what its best reference scores."""
        references = dict.fromkeys(item.answers)
        return max((self.score(answer, item) for answer in references), default=0.0)

    def keep(self, items: Iterable[Item]) -> tuple[list[Item], dict[ItemId, str]]:
        """The items whose reference, cut like a model's words, reaches the ceiling; what is wrong with the others."""
        kept: list[Item] = []
        faults: dict[ItemId, str] = {}
        for item in items:
            if fault := self._fault(item):
                faults[item.id] = fault
            else:
                kept.append(item)
        return kept, faults

    def _fault(self, item: Item) -> str:
        """What keeps every answer to an item from being right; "" where a reference is."""
        reached = -1.0
        best = cut = ""
        for answer in dict.fromkeys(item.answers):
            own = self.cut_answer(answer)
            if (value := self.score(own, item)) > reached:
                reached = value
                best = answer
                cut = own
        ceiling = self.ceiling(item)
        if ceiling == 0:
            problem = ""
            if isinstance(self._judge, ConfiguredMetric):
                problem = self._judge.problem(example_of(item))
            return problem or f"its own reference {_short(best)} scores nothing"
        if reached >= ceiling - ROUNDING:
            return ""
        return f"its reference {_short(best)} is cut to {_short(cut)} and scores {reached:.2f} of {ceiling:.2f}"

    def fingerprint(self, items: Iterable[Item]) -> tuple[str, ...]:
        """Whatever an answer's score depends on besides the item: names, settings, the content of databases."""
        parts = [self.metric, self.cut]
        options = self.options
        if self.metric == "number" and options.tolerance:
            parts.append(str(options.tolerance))
        if self.metric == "judge":
            parts.append(str(getattr(options.judge, "mark", "")))
        if self.metric == "sql_execution":
            for named in sorted({item.meta.get("database", "") for item in items}):
                file = find_database(named, options.database, options.folder)
                with file.open("rb") as content:
                    parts.append(file_digest(content, "sha256").hexdigest()[:16])
        return tuple(parts)

    def weighed_references(self, item: Item) -> Mapping[str, int]:
        """Distinct references whose probability is measured, with how often each was given.

        Short answers are normalised; those that normalise to nothing are left out, unless there are no others. Other
        answers stand as a prompt shows them.
        """
        counts = _reference_counts(self, item.answers)
        if not counts:
            raise ScoringError(
                f"item {item.id} has no usable reference answer, so nothing can be scored on it; "
                "task.skip_empty = true leaves such items out, `lever task check` finds them"
            )
        return counts

    def label_texts(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels of a task as the model weighs them, each once."""
        return tuple(dict.fromkeys(map(_label_text, labels)))


def example_of(item: Item) -> Example:
    """What a metric sees of an item."""
    return Example(
        item.answers, question=item.question, meta=item.meta, fields=item.fields
    )


def without_unreachable(
    items: Sequence[Item],
    rules: AnswerRules,
    places: Mapping[ItemId, str] | None = None,
) -> tuple[list[Item], str]:
    """The items that can be answered right, and a sentence that names the others; "" where there are none.

    More than 2 % of them are a DataError: the cut or the metric does not suit the answers.
    """
    kept, faults = rules.keep(items)
    if not faults:
        return kept, ""
    if len(faults) > MOST_LEFT_OUT * len(items):
        first, fault = next(iter(faults.items()))
        place = (places or {}).get(first, f"item {first}")
        raise DataError(
            f"{len(faults):,} of {len(items):,} records could never be answered right with task.metric = "
            f"{rules.metric} and task.cut = {rules.cut}, such as {place}: {fault}; set others (--set task.cut=plain --set "
            f"task.metric={'sql' if rules.metric == 'sql_execution' else 'exact'}), or look at these records"
        )
    named = [f"{item} ({fault})" for item, fault in list(faults.items())[:5]]
    more = ""
    if len(faults) > len(named):
        more = ", ..."
    records = "1 record was"
    if len(faults) != 1:
        records = f"{len(faults):,} records were"
    return (
        kept,
        f"{records} left out that no answer could be right for: {', '.join(named)}{more}",
    )


@lru_cache(maxsize=1 << 16)
def _score(rules: AnswerRules, answer: str, item: Item) -> float:
    """The candidates of a query often get the same answer."""
    example = example_of(item)
    if not is_outside(rules.metric):
        return rules._judge(answer, example)
    try:
        value = rules._judge(answer, example)
    except Exception as error:  # whatever a user's metric does
        raise ScoringError(
            f"the metric {rules.metric} failed on the answer {_short(answer)} to {_short(example.question)} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ScoringError(
            f"the metric {rules.metric} gives {_short(str(value))} for the answer {_short(answer)}; it must give a "
            "number from 0 to 1"
        )
    return float(value)


@lru_cache(maxsize=1 << 16)
def _reference_counts(
    rules: AnswerRules, answers: tuple[str, ...]
) -> Mapping[str, int]:
    written = Counter(answer.strip() for answer in answers if answer.strip())
    if rules.kind == "label":
        return Counter(map(_label_text, written.elements()))
    if rules.kind == "long":
        return written
    counts = Counter(map(normalise_answer, answers))
    counts.pop("", None)
    return counts or written


def _label_text(label: str) -> str:
    """A label as it is weighed: normalised, unless that makes another label of it ("card_arrival", ">50K")."""
    normal = normalise_answer(label)
    same = normal and plain_label(normal) == plain_label(label)
    if same:
        return normal
    return label.strip()


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
