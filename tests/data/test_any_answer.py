"""Whatever the reference is: the reference itself reaches the ceiling, and something else of the same length does not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leverplus.catalog import CUTS, METRICS
from leverplus.data.metrics import cut_named
from leverplus.data.metrics.base import MetricOptions
from leverplus.data.metrics.text import text_tokens
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError

NEEDS_A_DATABASE = ("sql_execution",)
"""Judged by rows: tests/data/test_sql_execution.py has its references."""

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=12)
NESTED = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
CODE = st.sampled_from(
    ["SELECT a,\n  b FROM t WHERE c > 5;", "ls > f", "ls >> f", "if x:\n    y()\n\nz()", "-5", "5", "a, b", "北京,上海"]
)  # fmt: skip
ANY_TEXT = st.text(min_size=1, max_size=60) | NUMBERS.map(str) | NESTED.map(json.dumps) | CODE  # fmt: skip


def rules_of(metric: str, cut: str) -> AnswerRules:
    return AnswerRules(
        metric, cut, MetricOptions(judge=lambda _answer, _example: False)
    )


def item_of(reference: str) -> Item:
    return Item(ItemId("1"), "What is it?", (reference,) * 10, "test")


def other_text(text: str) -> str:
    """As long, and another character wherever one stands."""
    return "".join(
        char if char.isspace() else "qz"[char.casefold() == "q"] for char in text
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "metric", [name for name in METRICS if name not in NEEDS_A_DATABASE]
)
@settings(max_examples=30, deadline=None)
@given(reference=ANY_TEXT)
def test_the_reference_reaches_the_ceiling_and_another_text_does_not(
    metric: str, cut: str, reference: str
) -> None:
    assume(reference.strip())
    item = item_of(reference)
    rules = rules_of(metric, cut).for_items([item, item_of("some other words")])
    kept, problems = rules.keep([item])
    assert bool(kept) != bool(problems)
    if not kept:
        return
    ceiling = rules.ceiling(item)
    assert ceiling > 0
    assert rules.score(rules.cut_answer(reference), item) == pytest.approx(ceiling)
    wrong = rules.cut_answer(other_text(reference))
    if rules.key(wrong) != rules.key(rules.cut_answer(reference)):
        assert rules.score(wrong, item) < ceiling


@pytest.mark.parametrize(
    "metric", ["exact", "json", "json_fields", "sql", "number", "judge"]
)
@settings(max_examples=100, deadline=None)
@given(reference=ANY_TEXT)
def test_no_text_is_left_out_where_answers_are_taken_whole(
    metric: str, reference: str
) -> None:
    assume(reference.strip())
    assert rules_of(metric, "plain").keep([item_of(reference)])[1] == {}


PAIRS = [
    (">", "<"),
    ("-5", "5"),
    ("ls > f", "ls >> f"),
    ("A", "a"),
    ("+1M", "1M"),
    ("p > 5", "p < 5"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_exact_tells_signs_apart(pair: tuple[str, str]) -> None:
    right, wrong = pair
    rules = rules_of("exact", "plain")
    assert rules.score(right, item_of(right)) == 1.0
    assert rules.score(wrong, item_of(right)) == 0.0


SCRIPTS = [
    ("北京是中国的首都", "天气很好啊", "北京是英国的首都"),
    ("Москва столица России", "Берлин город Германии", "Москва столица Германии"),
    ("القاهرة عاصمة مصر", "باريس مدينة فرنسا", "القاهرة عاصمة فرنسا"),
]


@pytest.mark.parametrize(("same", "other", "half"), SCRIPTS)
def test_words_of_every_script_are_compared(same: str, other: str, half: str) -> None:
    for metric in ("token_f1", "exact_match", "label_accuracy", "exact"):
        rules = rules_of(metric, "plain")
        assert rules.score(same, item_of(same)) == 1.0
        assert rules.score(other, item_of(same)) == 0.0
    assert 0.0 < rules_of("token_f1", "plain").score(half, item_of(same)) < 1.0
    assert len(text_tokens(same)) > 1


def nested_fences() -> Iterator[str]:
    yield "```sql\nSELECT 1\n```"
    yield 'Sure:\n```json\n{"a": [1, 2]}\n```\nDone.'


def test_cuts_take_out_what_stands_inside_a_sentence() -> None:
    sql, fenced_json = nested_fences()
    assert cut_named("fenced")(sql) == "SELECT 1"
    assert cut_named("json")(fenced_json) == '{"a": [1, 2]}'


def failing(answer: str, example: object) -> float:
    raise KeyError("intent")


def out_of_range(answer: str, example: object) -> float:
    return 7.0


def no_text(raw: str) -> None: ...


@pytest.mark.parametrize(
    ("metric", "cut", "said"),
    [
        (
            "failing",
            "plain",
            r"failed on the answer 'red' to 'What is it\?' \(KeyError",
        ),
        ("out_of_range", "plain", "gives '7.0' for the answer 'red'; it must give"),
        ("", "no_text", "gives a NoneType for 'red'; it must give a text"),
    ],
)
def test_a_part_of_ones_own_that_fails_is_one_sentence(
    metric: str, cut: str, said: str
) -> None:
    here = f"{__name__}:"
    rules = AnswerRules(
        f"{here}{metric}" if metric else "exact", cut if cut == "plain" else here + cut
    )
    with pytest.raises(ScoringError, match=said):
        rules.score(rules.cut_answer("red"), item_of("red"))
