"""Reads a user's examples, whatever they come in: files of every usual format, and Python objects.

The one reader of `lever fit`, `leverplus.fit`, `lever task check` and of recipes with `task.file`. The same records
give the same items in every format; whatever is wrong is collected with its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from leverplus.data.fields import (
    MESSAGES,
    QUESTION,
    TOOLS,
    as_text,
    chat_example,
    clean_fields,
    plain_value,
    render_fields,
)
from leverplus.data.formats import (
    SPLIT_NAMES,
    Problems,
    RecordSource,
    Row,
    open_source,
    shortened,
)
from leverplus.data.parsing import parse_json
from leverplus.data.pictures import KeptPictures
from leverplus.data.rundir import write_atomically
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, WrongUsage

LOOKED_AT = 200
"""Records at the beginning by which the form of all is recognised."""

QUESTIONS = (
    "question", "text", "prompt", "query", "utterance", "sentence", "instruction", "input", "content", "title",
)  # fmt: skip
"""Keys that may hold a question, the likeliest first."""

LABELS = ("label_text", "label", "labels", "coarse_label", "class", "category", "intent")  # fmt: skip
"""Answers under these keys make the example a text with a label."""

ANSWERS = (
    "answers", "answer", "completion", "output", "response", *LABELS, "multiple_choice_answer", "target", "sql", "query",
    "summary", "translation",
)  # fmt: skip
"""Keys that may hold an answer, the likeliest first."""

PICTURES = ("image", "img", "picture", "images")
OWN = ("id", "image_id", "split", "meta")
ROLES = ("question", "text", "answer", "answers", "label", "image", *OWN)
"""What `columns` may map by our names; any other name is a named input."""

STANDARD = (("question", "answer"), ("question", "answers"), ("text", "label"))
"""Keys of which nothing has to be told."""


@dataclass(frozen=True)
class ReadOptions:
    """How records are read; the settings of a recipe's [task] of the same names."""

    columns: str | Mapping[str, str] | None = None
    split_key: str = "split"
    skip_empty: bool = False
    pictures: Path | None = None
    """The folder that pictures are written to which stand inside the data."""


@dataclass(frozen=True)
class RecordForm:
    """Which keys of a record hold what.

    `inputs` are our names with the record's keys; a single one is the question, none are looked for in a chat or under
    `fields`. `several` says that a list is several right answers (else it is one answer, a JSON list), `texts` that
    prompts speak of texts and labels. `own` has the keys of picture, id, image_id, split and meta.
    """

    inputs: Mapping[str, str]
    answer: str
    own: Mapping[str, str]
    several: bool = False
    texts: bool = False
    said: str = ""
    """What was recognised; "" for our own names."""


@dataclass(frozen=True)
class Examples:
    """What a reader gives. An item's split is "" where the data have none, its image is as the record names it."""

    items: list[Item]
    places: list[int]
    """The line or record of each item."""
    source: RecordSource
    form: RecordForm | None
    said: tuple[str, ...] = ()
    written: bool = False
    """Whether pictures that stood inside the data were written as files."""

    def place(self, number: int) -> str:
        """Where the item with this position stands."""
        return self.source.place(self.places[number])


def read_examples(data: Any, options: ReadOptions, problems: Problems) -> Examples:
    """The examples of a file, a folder or an object; what is wrong with single records goes to `problems`.

    What cannot be read at all is a DataError, MissingFile or WrongUsage with one sentence.
    """
    source = open_source(data, problems)
    first = list(islice(source.rows, LOOKED_AT))
    keys = list(source.columns)
    for _, row in first:
        keys += [str(key) for key in row if key not in keys]
    if not keys:
        return Examples([], [], source, None)
    form = find_form(keys, source.name, parse_columns(options.columns))
    reader = _Reader(source, form, options)
    items: list[Item] = []
    places: list[int] = []
    for number, row in chain(first, source.rows):
        try:
            item = reader.item(number, row)
        except (DataError, JSONDecodeError, UnicodeEncodeError) as error:
            problems.add(source.place(number), _sentence(error))
            continue
        if item is not None:
            items.append(item)
            places.append(number)
    if not items and reader.unlabelled:
        raise DataError(
            f"{source.name}: none of {reader.unlabelled:,} records has a label or an answer; a demonstration needs one"
        )
    said = tuple(reader.said(keys))
    return Examples(items, places, source, form, said, reader.pictures.written)


def _sentence(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "holds half of a character (a lone surrogate); take it out"
    if isinstance(error, JSONDecodeError):
        return f"holds a text that is not JSON ({error})"
    return str(error)


def parse_columns(text: str | Mapping[str, str] | None) -> dict[str, str]:
    """`question=COL,answer=COL,context=COL` as a mapping of our names to columns.

    >>> parse_columns("question=Frage,answer=Antwort")
    {'question': 'Frage', 'answer': 'Antwort'}
    """
    if not isinstance(text, str):
        return dict(text or {})
    columns: dict[str, str] = {}
    if not text:
        return columns
    for part in text.split(","):
        name, _, column = map(str.strip, part.partition("="))
        if not name or not column:
            raise WrongUsage(
                f"--columns {text[:100]}: write NAME=COLUMN, such as question=Frage,answer=Antwort"
            )
        if name in columns:
            raise WrongUsage(f"--columns names {name} twice; write each name once")
        columns[name] = column
    return columns


def find_form(
    keys: Sequence[str], where: str, columns: Mapping[str, str]
) -> RecordForm:
    """The form of records with these keys; `columns` name some, others go by their usual names."""
    for name, column in columns.items():
        if column not in keys and column.partition(".")[0] not in keys:
            raise DataError(
                f"{where} has no column {column!r} for {name}; it has {', '.join(keys)[:200]}"
            )
    known: dict[str, str] = {}
    for key in keys:
        if key not in columns.values():
            known.setdefault(key.strip().lower(), key)
    own = {}
    for name in (*OWN, "fields"):
        if name in known:
            own[name] = known[name]
    for name in reversed(PICTURES):
        if name in known:
            own["image"] = known[name]
    for name in (*OWN, "image"):
        if name in columns:
            own[name] = columns[name]
    if "question" not in (*known, *columns):
        for name in (MESSAGES, TOOLS):
            if name in known:
                own[name] = known[name]
    if MESSAGES in own:
        said = (
            f"{own[MESSAGES]} are chats: the last assistant turn of each is the answer"
        )
        return RecordForm({}, own[MESSAGES], own, said=said)
    inputs = {name: key for name, key in columns.items() if name not in ROLES}
    asked = columns.get("question", columns.get("text", ""))
    questions = [name for name in QUESTIONS if name in known]
    if asked or inputs or ("fields" in own and "question" not in known):
        questions = [""]  # they are named already
    named = [name for name in ("answers", "answer", "label") if name in columns]
    for question in questions:
        usual = [name for name in ANSWERS if name in known and name != question]
        if named or usual:
            break
    else:
        raise DataError(
            f"{where} has {', '.join(keys)[:200]}; every record needs question and answer, text and label, prompt and "
            "completion, messages, or fields and answer; else say which are which: --columns "
            "question=COLUMN,answer=COLUMN"
        )
    answer = (named or usual)[0]
    column = columns.get(answer) or known[answer]
    said = ""
    if asked:
        inputs[QUESTION] = asked
    elif question == "instruction" and "input" in known:
        inputs = {name: known[name] for name in ("instruction", "input")}
    elif question:
        inputs[QUESTION] = known[question]
    if question and (question, answer) not in STANDARD:
        said = f"{' and '.join(inputs.values())} is taken as the question, {column} as the answer"
    return RecordForm(
        inputs, column, own, answer == "answers", texts=answer in LABELS, said=said
    )


@dataclass
class _Reader:
    """Makes items of records of one form, and counts what is to be told."""

    source: RecordSource
    form: RecordForm
    options: ReadOptions
    unlabelled: int = 0
    lists: int = 0
    """Records whose answer is a list under a key that holds one answer."""
    pictures: KeptPictures = field(init=False)

    def __post_init__(self) -> None:
        self.pictures = KeptPictures(self.options.pictures, self.source.name)

    def item(self, number: int, row: Row) -> Item | None:
        """The item of a record; None where nobody labelled it, an error with a sentence where it is faulty."""
        form = self.form
        shown = self._own(row, "image")
        if MESSAGES in form.own:
            tools = plain_value(self._own(row, TOOLS))
            chat = chat_example(plain_value(self._own(row, MESSAGES)), tools)
            question = chat.question
            fields = chat.fields
            answers = [chat.answer]
            if chat.image is not None:
                shown = chat.image
        else:
            answers = self._answers(value_at(row, form.answer), form.several)
            if not answers and form.several:  # some records have answers, others answer
                answers = self._answers(row.get("answer"), several=False)
            if not answers and self.source.skips_unlabelled:
                self.unlabelled += 1
                return None
            question, fields = self._inputs(row)
        if not question.strip():
            asked = " and ".join(form.inputs.values()) or form.answer
            raise DataError(
                f"the question is empty; it is read from {asked}, and the record has {', '.join(map(str, row))[:100]}"
            )
        answers = [answer for answer in answers if answer.strip()]
        if not answers and not self.options.skip_empty:
            raise DataError(
                "the answer is empty; task.skip_empty = true leaves such out"
            )
        (question + "".join(answers)).encode()  # an object may hold what no file can
        image = self.pictures.name_of(shown)
        image_id = as_text(self._own(row, "image_id"))
        if image_id is None and image is None:
            image_id = text_id(question)
        return Item(
            id=self._id(row, number),
            question=question,
            answers=tuple(answers),
            split=self._split(row),
            image=image,
            image_id=image_id,
            meta=self._meta(row),
            fields=fields,
        )

    def _own(self, row: Row, name: str) -> Any:
        key = self.form.own.get(name)
        if key is None:
            return None
        return value_at(row, key)

    def _inputs(self, row: Row) -> tuple[str, Mapping[str, str]]:
        """The question of a record, and its named inputs where it has several."""
        value = self._own(row, "fields")
        if value is not None:
            if isinstance(value, str):
                value = parse_json(value)
            fields = clean_fields(value)
            return render_fields(fields), fields
        named = {name: value_at(row, key) for name, key in self.form.inputs.items()}
        if list(named) == [QUESTION]:
            value = plain_value(named[QUESTION])
            if isinstance(value, (list, dict, bool)):
                key = self.form.inputs[QUESTION]
                raise DataError(f"{key} must be a text; it is {shortened(value)}")
            return as_text(value) or "", {}
        fields = clean_fields(named)
        text = render_fields(fields)
        if len(fields) == 1 and len(named) > 1:
            fields = {}
        return text, fields

    def _answers(self, value: Any, several: bool) -> list[str]:
        """The right answers of a record; none where it has none."""
        if several and isinstance(value, str) and value.startswith("["):
            value = _listed(value)
        value = plain_value(value)
        if several and isinstance(value, dict) and isinstance(value.get("text"), list):
            value = value["text"]  # answers of SQuAD
        if several and isinstance(value, list):
            texts = []
            for one in value:
                if isinstance(one, dict) and one.get("answer") is not None:
                    one = one["answer"]  # answers of VQA are objects  # noqa: PLW2901
                text = as_text(one)
                if text is not None:
                    texts.append(text)
            return texts
        if isinstance(value, list):
            if self.form.texts and len(value) == 1:
                value = value[0]  # a list of one label
            else:
                self.lists += 1
        text = as_text(value)
        if not text:
            return []
        return [text]

    def _id(self, row: Row, number: int) -> ItemId:
        """The id of a record; whoever gives none finds an item again by its line."""
        name = plain_value(self._own(row, "id"))
        if name is None:
            name = number
        if isinstance(name, str) and name.strip():
            return ItemId(name)
        if isinstance(name, bool) or not isinstance(name, int):
            raise DataError("id must be a text or a whole number")
        return ItemId(str(name))

    def _split(self, row: Row) -> str:
        key = self.options.split_key
        if key == "split":
            value = plain_value(self._own(row, "split"))
        else:
            value = plain_value(value_at(row, key))
            if value is None:
                raise DataError(f"there is no {key}, which task.split_key names")
        split = SPLIT_NAMES.get(str(value or "").strip().lower())
        if split is None:
            raise DataError(
                f"split is {shortened(value)}; allowed: {', '.join(filter(None, SPLIT_NAMES))}"
            )
        return split

    def _meta(self, row: Row) -> dict[str, str]:
        value = plain_value(self._own(row, "meta"))
        if not isinstance(value or {}, dict):
            raise DataError("meta must be an object")
        return {key: as_text(inner) or "" for key, inner in (value or {}).items()}

    def said(self, keys: Sequence[str]) -> list[str]:
        """What the user is told: what was recognised, what is not used, what was left out."""
        form = self.form
        said = []
        if form.said:
            said.append(form.said)
        if self.lists:
            said.append(
                f"{self.lists:,} answers are lists and count as JSON; if they are several right answers, give "
                f"--columns answers={form.answer}"
            )
        used = {*form.inputs.values(), form.answer, *form.own.values()}
        for key in (*used, self.options.split_key):
            used.add(key.partition(".")[0])
        unused = [key[:40] for key in keys if key not in used]
        if unused:
            listed = ", ".join(unused[:8])
            if len(unused) > 8:
                listed += ", ..."
            said.append(
                f"keys that are not used: {listed}; --columns NAME={unused[0]} shows one as an input"
            )
        if self.unlabelled:
            said.append(
                f"{self.unlabelled:,} records without a label or an answer are left out"
            )
        return said


def value_at(row: Row, key: str) -> Any:
    """The value under a key; a key with dots that is not there as it is goes into objects (`meta.query_split`)."""
    if key in row or "." not in key:
        return row.get(key)
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _listed(text: str) -> Any:
    """A cell that is a JSON list of answers, or one answer that begins with a bracket."""
    try:
        return parse_json(text)
    except JSONDecodeError:
        return [text]


def text_id(text: str) -> str:
    """The `image_id` of an item without a picture: texts that differ only in case and spaces get the same one."""
    normal = " ".join(text.lower().split())
    return "text:" + hashlib.sha256(normal.encode()).hexdigest()[:16]


def write_examples(path: Path, items: Sequence[Item]) -> None:
    """Items as a JSONL file that this reader reads as the same items."""
    with write_atomically(path) as part, part.open("w", encoding="utf-8") as file:
        for item in items:
            row: dict[str, Any] = {"id": item.id, "answers": item.answers}
            if item.fields:
                row["fields"] = item.fields
            else:
                row["question"] = item.question
            own = {"split": item.split, "image": item.image, "meta": item.meta}
            if item.image_id != text_id(item.question):
                own["image_id"] = item.image_id
            row |= {key: value for key, value in own.items() if value}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
