"""Names and values in questions and answers: which stand for others, where they stand, and how they are swapped.

A value is what a question gives and its answer takes over: a quoted text, a number, a name, the leaf of a parse or of
JSON. The place that it takes in the answer, its slot, is named by the word or the label before it. Values are learnt
from examples, so that `texas` is known for one wherever it is written small.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from leverplus.arms.answers import LONGEST, Form, form_of, is_name
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.words import find_words, plain_word, word_spans

Words = tuple[str, ...]

LONGEST_VALUE = 12
"""Words that a value has at most."""
LEAST_SHARE = 0.5
"""A word is taken for a value where at least this part of the questions with it uses it as one."""
MOSTLY = 0.95
"""Where so many values stand in answers as in their questions, the others are taken for slips."""
COMMON = 0.01
SELDOM = 0.1
"""A capitalised word is no name where such a part of the questions has it, and so few of these in a value."""

SAME_SLOT, OPPOSITE, SAME_VALUE, SAME_TURN = 4.0, 2.0, 0.5, 0.5
"""What speaks for swapping in a value: it fills such slots elsewhere; it stands where the example's value stood; it is
the same; it comes at the same turn."""
VALUE_TOKEN = "\x00"

_QUOTED = re.compile(r'"((?:[^"\\]|\\.|"")*)"|\'((?:[^\'\\]|\\.|\'\')*)\'|`([^`]*)`')
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_NAME = re.compile(r"[\w./~*$@%+-]*\w[\w./~*$@%+-]*")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|(-?\d+(?:\.\d+)?)')
_PARSE_PIECE = re.compile(r"[\[(][^\s\[\]()]+|[\])]|[^\s\[\]()]+")
_WORD = re.compile(r"\w+")
_BETWEEN = re.compile(r"like|ilike|glob|in|between|and|or|not|is|as|by|limit", re.I)
"""Words between a slot and its value."""
_IN_QUESTION = re.compile(
    r'"[^"]{1,80}"|“[^”]{1,80}”|`[^`]{1,80}`|(?<!\w)\'[^\']{1,80}\'(?!\w)'
)


@dataclass(frozen=True)
class Place:
    """A value in a text: where it begins and ends, its slot and its words; `at` counts the words before it."""

    start: int
    end: int
    slot: str
    words: Words
    at: int = 0


def value_words(text: str) -> Words:
    """The words of a value as they are compared."""
    return tuple(plain_word(text[start:end]) for start, end in word_spans(text))


@lru_cache(maxsize=1 << 15)
def answer_values(form: Form, answer: str) -> tuple[Place, ...]:
    """The values of an answer in their order, whether a question gives them or not.

    >>> text = 'SELECT a FROM city WHERE STATE_NAME = "new york" AND size > 5'
    >>> [(text[place.start : place.end], place.slot) for place in answer_values(Form.SQL, text)]
    [('new york', 'STATE_NAME'), ('5', 'size')]
    """
    answer = answer[:LONGEST]
    if form is Form.LABEL:
        return ()
    if form is Form.JSON:
        found = _json_values(answer)
    elif form is Form.PARSE:
        found = _parse_values(answer)
    else:
        found = _text_values(answer, with_names=form is not Form.SQL)
    places = []
    for start, end, slot in found:
        spans = word_spans(answer[start:end])
        if spans and len(spans) <= LONGEST_VALUE:
            first = start + spans[0][0]
            last = start + spans[-1][1]
            words = value_words(answer[first:last])
            places.append(Place(first, last, slot, words))
    return tuple(places)


def _text_values(answer: str, *, with_names: bool) -> Iterator[tuple[int, int, str]]:
    """Quoted texts and numbers; outside SQL also names, such as paths."""
    spans = [match.span(match.lastindex or 0) for match in _QUOTED.finditer(answer)]
    for pattern in (_NUMBER, _NAME)[: 1 + with_names]:
        for match in pattern.finditer(answer):
            is_inside = any(start <= match.start() < end for start, end in spans)
            if not is_inside and (pattern is _NUMBER or is_name(match.group())):
                spans.append(match.span())
    slot = ""
    before = 0
    for start, end in sorted(spans):
        for word in _WORD.findall(answer[before:start]):
            if not _BETWEEN.fullmatch(word):
                slot = word
        before = end
        yield start, end, slot


def _json_values(answer: str) -> Iterator[tuple[int, int, str]]:
    """Texts and numbers under their keys."""
    slot = ""
    for match in _JSON_STRING.finditer(answer):
        text, colon, number = match.groups()
        if colon is not None:
            slot = text
        else:
            yield (*match.span(1 if number is None else 3), slot)


def _parse_values(answer: str) -> Iterator[tuple[int, int, str]]:
    """Runs of words under their innermost label."""
    labels = [""]
    start = end = -1
    for match in _PARSE_PIECE.finditer(f"{answer} ]"):
        piece = match.group()
        if piece[0] not in "[(" and piece not in "])":
            start = match.start() if start < 0 else start
            end = match.end()
            continue
        if start >= 0:
            yield start, end, labels[-1]
            start = -1
        if piece in "])":
            labels = labels[:-1] or [""]
        else:
            labels.append(piece[1:])


class KnownValues:
    """The values that examples have in their questions and answers, by their words, with the slots that they fill."""

    def __init__(self, examples: Iterable[tuple[str, str]], form: Form) -> None:
        self.form = form
        self.slots: dict[Words, Counter[str]] = {}
        self.written: dict[Words, Counter[str]] = {}
        """How answers write a value."""
        self.asked: Counter[str] = Counter()
        """How many questions have a word."""
        self.valued: Counter[str] = Counter()
        """How many questions have it in a value."""
        questions = []
        verbatim = []
        for question, answer in examples:
            asked = value_words(question)
            questions.append(asked)
            self.asked.update(set(asked))
            filled = set()
            for place in answer_values(form, answer):
                if find_words(place.words, asked) >= 0:
                    text = answer[place.start : place.end]
                    filled.add((place.words, place.slot, text))
            self.valued.update({word for words, _, _ in filled for word in words})
            for words, slot, text in filled:
                self.slots.setdefault(words, Counter())[slot] += 1
                self.written.setdefault(words, Counter())[text] += 1
                verbatim.append(text in question)
        self.as_asked = sum(verbatim) >= MOSTLY * len(verbatim)
        self.longest = max(map(len, self.slots), default=0)
        self._common = max(4.0, COMMON * len(questions))
        self._forget_rare_uses(questions)

    def _forget_rare_uses(self, questions: Sequence[Words]) -> None:
        """Leave out words that most questions use otherwise: `state` may be a value once and a plain word for ever."""
        seen: Counter[Words] = Counter()
        for asked in questions:
            runs = set()
            for start in range(len(asked)):
                most = min(self.longest, len(asked) - start)
                for size in range(1, most + 1):
                    runs.add(asked[start : start + size])
            seen.update(runs & self.slots.keys())
        for words, slots in list(self.slots.items()):
            if max(slots.values()) < LEAST_SHARE * seen[words]:
                del self.slots[words]

    def spelling(self, words: Words, text: str) -> str:
        """How answers write a value: as the question does, where nearly all do so; else as most answers with it."""
        if self.as_asked or words not in self.written:
            return text
        return _most_often(self.written[words])

    def places(self, question: str) -> list[Place]:
        """The values of a question: known ones, the longest first, then quoted texts, numbers and names."""
        spans = word_spans(question)
        words = value_words(question)
        quoted = [match.span() for match in _IN_QUESTION.finditer(question)]
        places = []
        at = 0
        while at < len(words):
            slot = ""
            size = self._known_at(words, at)
            if size:
                slot = _most_often(self.slots[words[at : at + size]])
            else:
                size = self._unknown_at(question, spans, quoted, at)
            if size:
                start = spans[at][0]
                end = spans[at + size - 1][1]
                places.append(Place(start, end, slot, words[at : at + size], at))
            at += size or 1
        return places

    def _known_at(self, words: Words, at: int) -> int:
        """How many words from here on are a known value."""
        most = min(self.longest, len(words) - at)
        for size in range(most, 0, -1):
            if words[at : at + size] in self.slots:
                return size
        return 0

    def _unknown_at(
        self,
        question: str,
        spans: Sequence[tuple[int, int]],
        quoted: Sequence[tuple[int, int]],
        at: int,
    ) -> int:
        """How many words from here on are a quoted text, a number or a name; 0 for plain words."""
        start, end = spans[at]
        for first, last in quoted:
            if first <= start and end <= last:
                return sum(span[1] <= last for span in spans[at:])
        if question[start].isdigit():
            return 1
        size = 0
        for first, last in spans[at:] if at else []:  # any sentence begins large
            is_apart = size and question[spans[at + size - 1][1] : first] != " "
            begins = question[:first].rstrip()[-1:] in ".?!:"
            if is_apart or begins or not question[first].isupper():
                break
            if self._is_plain(plain_word(question[first:last])):
                break
            size += 1
        return size

    def _is_plain(self, word: str) -> bool:
        """Whether a word is common and hardly ever part of a value."""
        often = self.asked[word]
        return often > self._common and self.valued[word] < SELDOM * often

    def masked(self, question: str) -> Words:
        """The words of a question with its values replaced by their slots; where nothing else is left, with them.

        >>> examples = [("people in texas", 'SELECT p FROM s WHERE name = "texas"')]
        >>> KnownValues(examples, Form.SQL).masked("rivers in Texas")
        ('rivers', 'in', '<name>')
        """
        words: list[str] = []
        at = 0
        for place in self.places(question):
            words += value_words(question[at : place.start])
            words.append(f"<{place.slot or 'value'}>")
            at = place.end
        return (*words, *value_words(question[at:]))


def _most_often(counts: Counter[str]) -> str:
    return min(counts, key=lambda name: (-counts[name], name))


def corpus_form(corpus: Corpus) -> Form:
    """How the answers of a corpus are taken apart."""
    return corpus.derive(
        "form", lambda own: form_of(list(own.every_item.values()), own.rules)
    )


def known_values(corpus: Corpus, form: Form) -> KnownValues:
    """The values that the examples have in their questions and answers."""

    def make(own: Corpus) -> KnownValues:
        items = own.every_item.values()
        pairs = [(item.question, item.answer) for item in items if item.answers]
        return KnownValues(pairs, form)

    return corpus.derive(("values", form), make)


def masked_words(corpus: Corpus, form: Form) -> list[Words]:
    """The words of every question by row, names and values masked; none for a row that is gone."""

    def make(own: Corpus) -> list[Words]:
        found: list[Words] = [()] * len(own)
        known = known_values(own, form)
        for row, item in own.every_item.items():
            found[row] = known.masked(item.question)
        return found

    return corpus.derive(("masked words", form), make)


def masked_queries(queries: Queries, corpus: Corpus, form: Form) -> list[Words]:
    """The words of the queries, names and values masked."""
    known = known_values(corpus, form)
    return [known.masked(text) for text in queries.words]


Swap = tuple[Words, list[Place]]
"""A value of an example's answer that its question gives, and all its places."""


@dataclass(frozen=True)
class _Token:
    """A word of a question, or one of its values with its number (-1 for a word): from which word to which."""

    text: str
    number: int
    first: int
    last: int


def swap_values(example: str, answer: str, question: str, known: KnownValues) -> str:
    """The answer to the question `example`, with the values of another question.

    >>> pairs = [(f"people of {name}", f'SELECT p FROM s WHERE name = "{name}"') for name in ("ohio", "utah")]
    >>> swap_values(*pairs[0], "how many people has utah", KnownValues(pairs, Form.SQL))
    'SELECT p FROM s WHERE name = "utah"'
    """
    asked = value_words(example)
    by_words: dict[Words, list[Place]] = {}
    for place in answer_values(known.form, answer):
        if find_words(place.words, asked) >= 0:
            by_words.setdefault(place.words, []).append(place)
    swaps = sorted(by_words.items(), key=lambda swap: find_words(swap[0], asked))
    edits = []
    for (_, places), text in zip(
        swaps, _replacements(swaps, asked, question, known), strict=True
    ):
        if text is not None:
            edits += [(place.start, place.end, text) for place in places]
    for start, end, text in sorted(edits, reverse=True):
        answer = answer[:start] + text + answer[end:]
    return answer


def _replacements(
    swaps: Sequence[Swap], asked: Words, question: str, known: KnownValues
) -> list[str | None]:
    """The text that replaces each value; None where the question gives none."""
    places = known.places(question)
    spans = word_spans(question)
    stood = [(find_words(words, asked), len(words)) for words, _ in swaps]
    stands = [(place.at, len(place.words)) for place in places]
    across = _opposites(
        _tokens(asked, stood), _tokens(value_words(question), stands), len(swaps)
    )
    ranked = []
    for turn, swap in enumerate(swaps):
        for number, place in enumerate(places):
            value = _fitness(swap, place, known) + SAME_TURN * (turn == number)
            if any(token.number == number for token in across[turn]):
                value += OPPOSITE
            ranked.append((-value, turn, number))
    chosen: list[str | None] = [None] * len(swaps)
    taken = set()
    for _, turn, number in sorted(ranked):
        if chosen[turn] is None and number not in taken:
            taken.add(number)
            place = places[number]
            text = question[place.start : place.end]
            chosen[turn] = known.spelling(place.words, text)
    for turn, run in enumerate(across):
        if chosen[turn] is None and run:
            begins, _ = spans[run[0].first]
            _, ends = spans[run[-1].last]
            chosen[turn] = question[begins:ends]
    return chosen


def _fitness(swap: Swap, place: Place, known: KnownValues) -> float:
    """How well a value of the question fits the slots of the example's value."""
    words, places = swap
    value = SAME_VALUE * (place.words == words)
    slots = known.slots.get(place.words)
    if slots is not None:
        wanted = {own.slot for own in places}
        sure = slots.total() / (slots.total() + 1.0)  # seen once is hardly known
        value += SAME_SLOT * sure * len(wanted & set(slots)) / len(wanted)
    return value


def _tokens(words: Words, values: Sequence[tuple[int, int]]) -> list[_Token]:
    """The words of a question, each value as one; `values` are the word at which each begins, and its words."""
    begins = {at: (number, size) for number, (at, size) in enumerate(values)}
    tokens = []
    at = 0
    while at < len(words):
        number, size = begins.get(at, (-1, 1))
        text = words[at] if number < 0 else VALUE_TOKEN
        tokens.append(_Token(text, number, at, at + size - 1))
        at += size
    return tokens


def _opposites(
    asked: Sequence[_Token], tokens: Sequence[_Token], count: int
) -> list[list[_Token]]:
    """What stands in the question where each value of the example stood; nothing where that cannot be said."""
    first = [own.text for own in asked]
    second = [own.text for own in tokens]
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    across: list[list[_Token]] = [[] for _ in range(count)]
    for kind, start, end, other, last in blocks:
        for place in range(start, end):
            turn = asked[place].number
            if turn < 0 or kind == "delete":
                continue
            before = place - start
            after = end - place - 1
            stop = other + before + 1 if kind == "equal" else last - after
            across[turn] = list(tokens[other + before : stop])
    return across
