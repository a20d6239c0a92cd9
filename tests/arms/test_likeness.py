"""Answers and questions taken apart, by hand: parts, shapes, masked values, swaps, and leave-one-out by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from leverplus.arms import foretell
from leverplus.arms.answers import Form, form_of, take_apart
from leverplus.arms.forecast import forecast_shapes
from leverplus.arms.foretell import (
    Trial,
    choose_constants,
    left_out_likeness,
    principal_axes,
    unit_rows,
)
from leverplus.arms.ridge import (
    KERNEL_GRID,
    exact_weights,
    fit_ridge,
    kernel_of,
    ridge_inverse,
)
from leverplus.arms.values import KnownValues, answer_values, swap_values
from leverplus.arms.words import (
    Bm25,
    Vocabulary,
    hash_terms,
    word_spans,
    words_of,
)
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item

SQL, EXACT = AnswerRules("sql"), AnswerRules("exact")


def shape(form: Form, answer: str, question: str = "") -> str:
    return take_apart(form, EXACT, answer, question).shape


def likeness(form: Form, first: str, second: str, rules: AnswerRules = EXACT) -> float:
    """The cosine of two answers where all parts weigh the same."""
    one = set(take_apart(form, rules, first, "").parts.tolist())
    other = set(take_apart(form, rules, second, "").parts.tolist())
    return len(one & other) / math.sqrt(len(one) * len(other))


def item(question: str, answer: str) -> Item:
    return Item(f"{question} {answer}", question, (answer,), "train")


def test_words_are_cut_in_any_script() -> None:
    assert words_of("Wie heißt's, São-Paulo?") == ("wie", "heisst", "s", "são", "paulo")
    assert words_of("北京有多少人") == tuple("北京有多少人")
    assert words_of("كم عدد") == ("كم", "عدد")
    hindi = "हिन्दी भाषा"
    assert [hindi[a:b] for a, b in word_spans(hindi)] == ["हिन्दी", "भाषा"]
    assert words_of("") == ()


def test_tf_idf_by_hand() -> None:
    texts = [hash_terms(["a", "b"]), hash_terms(["a", "a"])]
    words = Vocabulary.learn(texts)
    rows = words.unit_rows([*texts, hash_terms(["b", "new"])]).toarray()
    common, rare = 1.0, math.log(3 / 2) + 1.0
    first = np.array([common, rare]) / math.hypot(common, rare)
    columns = [int(np.searchsorted(words.hashes, hash_terms([w])[0])) for w in "ab"]
    unknown = rare / math.hypot(rare, words.unseen)  # counts in the length alone
    wanted = [first, [1.0, 0.0], [0.0, unknown]]
    assert rows[:, columns] == pytest.approx(np.array(wanted), abs=1e-7)
    assert Vocabulary.learn([]).unit_rows([hash_terms(["a"])]).shape == (1, 0)
    assert Vocabulary.learn(texts, most=1).hashes == hash_terms(["a"])


def test_the_share_of_a_text_with_itself_is_one() -> None:
    texts = [words_of("a red ball and a red hat"), words_of("ball"), words_of("x y")]
    shares = Bm25(texts).shares(texts)
    assert np.diag(shares) == pytest.approx(1.0, abs=1e-6)
    assert shares[0, 2] == 0.0


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (Form.SQL, "SELECT a FROM t WHERE b = {}"),
        (Form.PARSE, "[IN:GET [SL:DATE day {} ] ]"),
        (Form.JSON, '{{"name": "x{}"}}'),
        (Form.CODE, "ls -la | grep x{} > f"),
        (Form.WORDS, "it is the {}th day of a rather long year"),
    ],
)
def test_the_data_tell_how_answers_are_taken_apart(form: Form, answer: str) -> None:
    items = [item("q", answer.format(n)) for n in range(20)]
    assert form_of(items, EXACT) is form
    assert form_of(items, AnswerRules("label_accuracy")) is Form.LABEL
    labels = [item("q", "yes" if n % 2 else "no") for n in range(40)]
    assert form_of(labels, EXACT) is Form.LABEL


ONE = "SELECT COUNT(*) FROM city WHERE state = 'ohio' LIMIT 1"
ROME = '{"tool": "weather", "city": "Rome"}'


@pytest.mark.parametrize(
    ("form", "first", "second", "same"),
    [
        (Form.SQL, (ONE, ""), ('select count( * ) from city where state = "new york" limit 1 ;', ""), True),
        (Form.SQL, (ONE, ""), (ONE.replace("city", "river"), ""), False),
        (Form.SQL, ("SELECT a WHERE b > 5", "above 5"), ("SELECT a WHERE b > 6", "above 6"), True),
        (Form.SQL, ("SELECT a WHERE b > 5", "above five"), ("SELECT a WHERE b > 6", "above 6"), False),
        (Form.PARSE, ("[IN:GET [SL:A x y ] ]", ""), ("[IN:GET [SL:A z ] ]", ""), True),
        (Form.PARSE, ("[IN:GET [SL:A x ] ]", ""), ("[IN:GET [SL:A ] [SL:B x ] ]", ""), False),
        (Form.JSON, (ROME, "in Rome?"), ('{"city": "Oslo", "tool": "weather"}', "in Oslo?"), True),
        (Form.JSON, (ROME, "in Rome?"), (ROME.replace("weather", "music"), "in Rome?"), False),
        (Form.JSON, ("{broken", ""), ("{broken", ""), True),
        (Form.CODE, ('find . -name "*.txt"', ""), ("find . -name '*.py'", ""), True),
        (Form.CODE, ("find /etc -type f", "files in /etc"), ("find /usr -type f", "files in /usr"), True),
        (Form.CODE, ("ls > f", ""), ("ls >> f", ""), False),
    ],
)  # fmt: skip
def test_shapes_are_equal_where_only_values_differ(
    form: Form, first: tuple[str, str], second: tuple[str, str], same: bool
) -> None:
    assert (shape(form, *first) == shape(form, *second)) is same


def test_likeness_by_hand() -> None:
    labels = AnswerRules("label_accuracy")
    assert likeness(Form.LABEL, "Positive.", "positive", labels) == 1.0
    assert likeness(Form.LABEL, "positive", "negative", labels) == 0.0
    # words a b c / a b d: parts a b c ab bc abc / a b d ab bd abd share a, b, ab
    assert likeness(Form.WORDS, "a b c", "a b d") == pytest.approx(3 / 6)
    # paths /a=1 /a and /a=2 /a share /a
    assert likeness(Form.JSON, '{"a": "1"}', '{"a": "2"}') == pytest.approx(1 / 2)
    # "top > IN:A", "IN:A", "]", "IN:A ]" against the same with IN:B share "]"
    assert likeness(Form.PARSE, "[IN:A x ]", "[IN:B x ]") == pytest.approx(1 / 4)
    assert take_apart(Form.PARSE, EXACT, "]]] [", "").shape
    assert take_apart(Form.SQL, EXACT, "", "").parts.tolist() == []


SAO_PAULO = (
    'SELECT a FROM t WHERE c.city = "São Paulo" AND name LIKE "%Kang%" AND n IN (3, 4)'
)


@pytest.mark.parametrize(
    ("form", "answer", "wanted"),
    [
        (Form.SQL, SAO_PAULO, "São Paulo=city Kang=name 3=n 4=n"),
        (Form.PARSE, "[IN:CALL [SL:WHO Ann Lee ] [SL:TIME at 5 pm ] ]", "Ann Lee=SL:WHO at 5 pm=SL:TIME"),
        (Form.PARSE, "[IN:CALL now", "now=IN:CALL"),
        (Form.JSON, '{"to": {"city": "Rome"}, "n": 3}', "Rome=city 3=n"),
        (Form.CODE, "grep -i err /var/log.txt", "var/log.txt=err"),
        (Form.LABEL, "yes", ""),
    ],
)  # fmt: skip
def test_values_of_answers_have_slots(form: Form, answer: str, wanted: str) -> None:
    found = []
    for place in answer_values(form, answer):
        found.append(f"{answer[place.start : place.end]}={place.slot}")
    assert " ".join(found) == wanted


def test_values_are_masked_by_their_slot_and_plain_words_are_not() -> None:
    pairs = []
    for name in ("texas", "ohio", "new york"):
        pairs.append((f"rivers in {name}", f'SELECT r FROM s WHERE state = "{name}"'))
    # "rivers" is a value once, and a plain word otherwise
    pairs.append(("songs of rivers", 'SELECT s FROM t WHERE band = "rivers"'))
    known = KnownValues(pairs, Form.SQL)
    assert known.masked("towns in New York") == ("towns", "in", "<state>")
    assert known.masked("rivers in Utah?") == ("rivers", "in", "<value>")
    two = known.masked('say "hello there" 12 times')
    assert two == ("say", "<value>", "<value>", "times")


def test_values_are_swapped_by_slot_place_and_turn() -> None:
    pairs = [
        ("flights from rome to oslo", '{"from": "Rome", "to": "Oslo"}'),
        ("flights from paris to bonn", '{"from": "Paris", "to": "Bonn"}'),
    ]
    known = KnownValues(pairs, Form.JSON)
    asked = "flights from bonn to rome"
    assert swap_values(*pairs[0], asked, known) == '{"from": "Bonn", "to": "Rome"}'
    unknown = "flights from Lima to Quito"
    assert swap_values(*pairs[0], unknown, known) == '{"from": "Lima", "to": "Quito"}'
    assert swap_values("hello", '{"a": 1}', "bye", known) == '{"a": 1}'
    twice = ("cities of ohio", "SELECT a FROM t WHERE s = 'ohio' OR r = 'ohio'")
    other = ("cities of utah", "SELECT a FROM t WHERE s = 'utah' OR r = 'utah'")
    known = KnownValues([twice, other], Form.SQL)
    assert swap_values(*twice, "cities of utah", known) == other[1]


def test_leave_one_out_equals_fitting_without_each_group() -> None:
    rng = np.random.default_rng(1)
    points = rng.standard_normal((14, 3))
    kernel = points @ points.T + np.eye(14)
    groups = np.array([0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 9])
    goal, ridge = rng.standard_normal((14, 5)), 0.3
    weights, left_out = fit_ridge(kernel, ridge, goal, groups)
    solved = np.linalg.solve(kernel + ridge * np.eye(14), goal)
    assert weights == pytest.approx(solved, abs=1e-9)
    for group in range(10):
        inside = groups == group
        others = kernel[np.ix_(~inside, ~inside)] + ridge * np.eye((~inside).sum())
        brute = kernel[np.ix_(inside, ~inside)] @ np.linalg.solve(others, goal[~inside])
        assert left_out[inside] == pytest.approx(brute, abs=1e-9)


def test_the_likeness_of_what_is_foretold_without_each_group_is_that_of_brute_force() -> (
    None
):
    rng = np.random.default_rng(2)
    points = rng.standard_normal((9, 4))
    kernel, answers = points @ points.T, np.abs(rng.standard_normal((9, 6)))
    answers /= np.linalg.norm(answers, axis=1, keepdims=True)
    groups = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7])
    inverse = ridge_inverse(kernel, 0.5)
    found = left_out_likeness(inverse, answers @ answers.T, groups)
    for row in range(9):
        others = groups != groups[row]
        regular = kernel[np.ix_(others, others)] + 0.5 * np.eye(others.sum())
        foretold = kernel[row, others] @ np.linalg.solve(regular, answers[others])
        foretold /= np.linalg.norm(foretold)
        assert found[row] == pytest.approx(answers @ foretold, abs=1e-8)


def test_products_are_the_same_to_the_last_bit_in_any_batch() -> None:
    rng = np.random.default_rng(0)
    near = np.rint(rng.random((37, 900)) * KERNEL_GRID) / KERNEL_GRID
    weights = (3.0 * rng.standard_normal((900, 40))).astype(np.float32)
    rounded = exact_weights(weights)
    assert rounded == pytest.approx(weights, abs=1e-4)
    together = unit_rows(near @ rounded)
    for row in range(len(near)):
        assert (unit_rows(near[row : row + 1] @ rounded)[0] == together[row]).all()
    shuffled = rng.permutation(900)
    again = near[:, shuffled] @ exact_weights(weights[shuffled])
    assert (unit_rows(again) == together).all()
    assert (kernel_of(np.ones((1, 1)), 0.3) == 1.0).all()


def test_principal_axes_span_what_few_parts_need() -> None:
    rng = np.random.default_rng(0)
    rows = np.abs(rng.standard_normal((80, 5))) @ np.abs(rng.standard_normal((5, 400)))
    axes = principal_axes(sparse.csr_matrix(rows), 5).astype(np.float64)
    assert axes.shape == (400, 5)
    assert axes.T @ axes == pytest.approx(np.eye(5), abs=1e-5)
    assert rows @ axes @ axes.T == pytest.approx(rows, abs=1e-3)


def test_the_constants_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where words decide and vectors are noise, the words are taken, and the other way round."""
    monkeypatch.setattr(foretell, "WIDTHS", (0.6,))
    monkeypatch.setattr(foretell, "RIDGES", (0.1,))
    rng = np.random.default_rng(0)
    kinds = np.arange(60) % 3
    items = [
        item(f"q{n}", f"SELECT {'abc'[kind]} FROM t") for n, kind in enumerate(kinds)
    ]
    shown = [take_apart(Form.SQL, SQL, own.answer, "").parts for own in items]
    trial = Trial.of(items, Form.SQL, SQL, Vocabulary.learn(shown))
    points = [np.eye(3)[kinds] + 0.05 * rng.standard_normal((60, 3))]
    points.append(rng.standard_normal((60, 2)))
    near = []
    for own in points:
        lengths = np.linalg.norm(own, axis=1)
        near.append(own @ own.T / np.outer(lengths, lengths))
    for text, words, wanted in ((near[1], near[0], True), (near[0], near[1], False)):
        found = choose_constants(trial, {"text": text, "words": words})
        assert ("words" in found[0]) is wanted
    assert trial.quality(trial.likeness) > 0.99


def test_the_forecast_counts_shapes() -> None:
    def town(name: str, what: str) -> Item:
        return item(f"{what} of {name}", f"SELECT {what} FROM t WHERE n = '{name}'")

    examples = {3: town("a", "age"), 5: town("b", "age"), 8: town("c", "size")}
    asked = [town("d", "age"), town("e", "size"), town("f", "rank")]
    lists = {"one": {1: [[8], [8], [3]], 2: [[8, 5], [3, 8], [3, 8]]}}
    found = forecast_shapes(asked, examples, SQL, lists)
    assert found.possible == pytest.approx(2 / 3)
    assert found.shapes == 2
    assert found.arms[0].shares == pytest.approx({1: 1 / 3, 2: 2 / 3})
    assert found.arms[0].likeness[2] > found.arms[0].likeness[1] > 0.0
    # of the two shown 1 and 1 of 2 fit for the two questions that any fits
    assert found.arms[0].density == pytest.approx({1: 1 / 3, 2: 1 / 3})
    assert (
        "one shows one for 33 % among 1, 67 % among 2; 33 % of 2 have it"
        in found.lines()
    )
    assert found.best(1) is found.arms[0]


def test_the_forecast_prefers_arms_that_show_more_of_the_right_shape() -> None:
    def town(name: str, what: str) -> Item:
        return item(f"{what} of {name}", f"SELECT {what} FROM t WHERE n = '{name}'")

    examples = {3: town("a", "age"), 5: town("b", "age"), 8: town("c", "size")}
    lists = {"wide": {2: [[8, 3]]}, "narrow": {2: [[3, 5]]}}
    found = forecast_shapes([town("d", "age")], examples, SQL, lists)
    assert found.arms[0].shares == found.arms[1].shares
    assert found.best(2) is found.arms[1]
    assert [line.split()[0] for line in found.lines()[1:]] == ["narrow", "wide"]
    new = forecast_shapes([town("d", "age AND size")], examples, SQL, lists)
    assert new.possible == 0.0
    assert "of the right answer's parts" in new.lines()[1]


def test_the_forecast_of_labels_speaks_of_answers() -> None:
    examples = {row: item(f"q{row}", "yn"[row % 2]) for row in range(6)}
    lists = {"first": {1: [[0], [0]]}}
    rules = AnswerRules("label_accuracy")
    asked = [item("one", "y"), item("two", "n")]
    found = forecast_shapes(asked, examples, rules, lists)
    assert found.lines() == [
        "without a call, for 2 dev questions: 100 % have an example with the right answer itself (2 different ones "
        "among the examples)",
        "first shows one for 50 % among 1; 50 % of 1 have it",
    ]
