"""Looks at a user's data before anything is decided, and says what is there in sentences.

Three forms are taken: a JSONL file of texts with labels, a JSONL file of questions with answers (pictures or none),
and the name of a task with its folder, NAME:FOLDER. A file that lacks only ids, or whose answers are a small set of
labels, is written anew beside the bundle in the form that the tasks read.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from leverplus import catalog
from leverplus.errors import DataError, MissingFile
from leverplus.metrics import postprocess_named
from leverplus.parsing import parse_json
from leverplus.rundir import shipped, write_text
from leverplus.tasks.base import Task
from leverplus.tasks.jsonl import KEYS
from leverplus.tasks.reading import as_word, other_format
from leverplus.types import Item

FEWEST_ITEMS = 40
"""Below this a fifth for dev and a fifth for test leave too little to say anything."""

DEALT_BELOW = 200
"""Fewer records than this are dealt exactly where they have no splits."""

FEW_OF_A_LABEL = 5
"""A label with fewer records than this is warned of."""

FEW_LABELS = 60
"""So many different answers may be a set of labels."""

ALIKE = 0.8
"""Two texts are near-duplicates when they share this part of their words."""

SPLITS = {"train": "train", "validation": "dev", "valid": "dev", "val": "dev", "dev": "dev", "test": "test"}
"""Names of splits elsewhere, and ours."""

COMPARED = 200
"""Texts that one text is compared with at most: those that share its rarest words."""


@dataclass(frozen=True)
class FoundData:
    """Where the data are, in the terms of a recipe's [task] section, and what was seen on the way."""

    name: str
    values: Mapping[str, Any]
    said: tuple[str, ...]
    source: str = ""
    """What the user gave, where `values` name a file that was written anew."""
    texts: bool = False
    """Whether the file calls its items texts and labels, so that prompts do too; else questions and answers."""


def find_data(data: str | Path, images: str | None, prepared: Path) -> FoundData:
    """The data of a fit. `prepared` is where a file is written that has to be brought into form."""
    text = str(data)
    name, colon, folder = text.partition(":")
    if name in catalog.TASKS and not Path(text).exists():
        values = {"name": name, **({"folder": folder} if colon else {})}
        return FoundData(name, values, (f"the data are task {name}",))
    path = shipped(text)
    if path.is_dir() or (path.is_file() and path.suffix == ".parquet"):
        from leverplus.fitting.tables import read_tables

        found = read_tables(path, prepared.with_suffix(""))
        made = _of_rows(found.rows, path, found.pictures, prepared, written=True)
        return replace(made, said=(*made.said, *found.said))
    if not path.is_file():
        raise MissingFile(
            f"there is no file {path}; give a JSONL file, a folder of a data set, or a task as NAME:FOLDER"
        )
    return replace(_of_rows(_read(path), path, images, prepared, written=False), source=text)


def _read(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file; whatever is wrong is one sentence with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8; save it as UTF-8"
        raise DataError(f"{path} cannot be read ({reason})") from error
    if other := other_format(path, text):
        raise DataError(f"{path} {other}")
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: is not JSON ({error.msg}, column {error.colno}); write one record a line, "
                'such as {"text": "...", "label": "..."}'
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: must be an object in braces")
        rows.append(row)
    return rows


def _of_rows(rows: list[dict[str, Any]], path: Path, images: str | None, prepared: Path, *, written: bool) -> FoundData:
    """Which task reads these records, after they were brought into its form where that is needed."""
    if not rows:
        raise DataError(f"{path} is empty; write one record a line, such as " + '{"text": "...", "label": "..."}')
    if len(rows) < FEWEST_ITEMS:
        held = "1 record" if len(rows) == 1 else f"{len(rows)} records"
        raise DataError(f"{path} has {held}; at least {FEWEST_ITEMS} are needed, 200 or more make sense")
    if _group(rows[0]) and len({_group(row) for row in rows}) == 1:
        raise DataError(
            f"{path}: all {len(rows):,} records have the same text or picture; there is nothing to choose by"
        )
    place = {"images": images} if images else {}
    given, rows = rows, [_with_words(row) for row in rows]
    if all("text" in row and "label" in row for row in rows):
        rows = _dealt(rows)
        changed = rows != given
        if written or changed:
            _write(prepared, rows)
        where = prepared if written or changed else path
        said = (f"{len(rows):,} texts with labels", *_unused(rows, ("id", "text", "label", "split", "image")))
        return FoundData("labels", {"name": "labels", "file": str(where), **place}, said, texts=True)
    missing = next((number for number, row in enumerate(rows, start=1) if not _question(row)), None)
    if missing is not None:
        keys = ", ".join(map(str, rows[missing - 1]))[:100]
        if "text" in rows[missing - 1] and any(_question(row) for row in rows):
            raise DataError(
                f"{path}: some records have a text and others a question, record {missing} has {keys}; write all with "
                "text and label, or all with question and answer"
            )
        raise DataError(
            f"{path}, record {missing} has {keys or 'no keys'}; every record needs text and label, or "
            "question and answer"
        )
    unanswered = [number for number, row in enumerate(rows, start=1) if not _answers(row)]
    if unanswered:
        raise DataError(
            f"{path}: {len(unanswered):,} of {len(rows):,} records have no answer, first record {unanswered[0]}; "
            "give every record an answer, or leave these out"
        )
    if len({answer for row in rows for answer in _answers(row)}) == 1:
        raise DataError(
            f"{path}: all questions have the answer {_answers(rows[0])[0]!r}; give data with different answers"
        )
    if pictures_beside(rows) and not place and not written:
        place["images"] = str(path.parent)  # a file that is written anew lies elsewhere
    rows = _dealt(rows)
    anew = written or rows != given or any("id" not in row for row in rows)
    return _questions(rows, path, {**place}, prepared, anew=anew)


def pictures_beside(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many records name a picture."""
    return sum(bool(row.get("image")) for row in rows)


def _with_words(row: dict[str, Any]) -> dict[str, Any]:
    """A record whose label and answers are texts (numbers as JSON writes them), with our name of its split."""
    own = {key: as_word(value) if key in ("label", "answer") else value for key, value in row.items()}
    if isinstance(own.get("split"), str):
        own["split"] = SPLITS.get(own["split"].strip().lower(), own["split"])
    if isinstance(row.get("answers"), list):
        own["answers"] = [as_word(value) for value in row["answers"]]
    return own


def _dealt(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Few records without splits are dealt exactly: a fifth for test, a fifth for dev, copies of a text together.

    A task decides for every record by itself, so that a growing file keeps its splits; of 40 records that may leave 4.
    """
    if len(rows) >= DEALT_BELOW or any(row.get("split") for row in rows):
        return rows
    groups: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[_group(row)].append(place)
    order = sorted(groups, key=lambda name: sha256(name.encode()).digest())
    split: dict[int, str] = {}
    for wanted in ("test", "dev"):
        count = 0
        while order and count < len(rows) // 5:
            own = groups[order.pop()]
            count += len(own)
            split |= dict.fromkeys(own, wanted)
    return [{**row, "split": split.get(place, "train")} for place, row in enumerate(rows)]


def _group(row: Mapping[str, Any]) -> str:
    """What must stay in one split: its picture, or the words of its text."""
    text = str(row.get("text", row.get("question", "")))
    return str(row.get("image") or " ".join(text.lower().split()))


def _questions(
    rows: list[dict[str, Any]], path: Path, place: dict[str, Any], prepared: Path, *, anew: bool
) -> FoundData:
    """Questions with answers: labels where they are few and nobody looks at pictures."""
    pictures = pictures_beside(rows)
    if _are_labels(rows) and not pictures:
        _write(prepared, [_as_label(row, number) for number, row in enumerate(rows, start=1)])
        known = len({_answers(row)[0] for row in rows})
        said = f"{len(rows):,} questions, each with one of {known} answers: they are labels"
        used = ("id", "question", "answer", "answers", "split", "image")
        return FoundData("labels", {"name": "labels", "file": str(prepared)}, (said, *_unused(rows, used)))
    if anew:
        own = [{"id": f"{number:06d}", **row} for number, row in enumerate(rows, start=1)]
        _write(prepared, [_known_keys(row) for row in own])
        path = prepared
    said = f"{len(rows):,} questions with free answers, {pictures:,} with a picture"
    unused = [f"{own}; what is to be kept with an item goes under meta" for own in _unused(rows, KEYS)]
    return FoundData("jsonl", {"name": "jsonl", "file": str(path), **place}, (said, *unused))


def _unused(rows: Sequence[Mapping[str, Any]], used: Sequence[str]) -> list[str]:
    """One line that names the keys of records that nothing reads; none where all are read."""
    others = list(dict.fromkeys(str(key) for row in rows for key in row if key not in used))
    shown = ", ".join(key[:40] for key in others[:8]) + (", ..." if len(others) > 8 else "")
    return [f"keys that are not used: {shown}"] if others else []


def _question(row: Mapping[str, Any]) -> str:
    own = row.get("question")
    return own if isinstance(own, str) and own.strip() else ""


def _answers(row: Mapping[str, Any]) -> list[str]:
    own = row.get("answers", [row["answer"]] if "answer" in row else [])
    return [answer for answer in own if isinstance(answer, str) and answer.strip()] if isinstance(own, list) else []


def _are_labels(rows: Sequence[Mapping[str, Any]]) -> bool:
    """One answer each, few different ones, and all can be cut from a model's text as they are."""
    found = [set(_answers(row)) for row in rows]
    known = set().union(*found)
    if any(len(own) != 1 for own in found) or not 2 <= len(known) <= min(FEW_LABELS, len(rows) // 5):
        return False
    return all(postprocess_named("vqa")(label) == label for label in known)


def _as_label(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    own = {"id": str(row.get("id", f"{number:06d}")), "text": row["question"], "label": _answers(row)[0]}
    return {**own, "split": row["split"]} if row.get("split") else own


def _known_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key in KEYS}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def describe_task(task: Task) -> list[str]:
    """What a task holds: splits, answers, pictures, repeated and nearly repeated questions, how answers are judged."""
    items = {split: list(task.items(split)) for split in ("train", "dev", "test")}
    every = [item for own in items.values() for item in own]
    counts = ", ".join(f"{len(own):,} {split}" for split, own in items.items())
    answers = Counter(item.answer for item in every)
    common, times = answers.most_common(1)[0]
    pictures = len({item.image for item in every} - {None})
    lines = [f"splits: {counts}; demonstrations and training queries come from train, choices are made on dev"]
    if getattr(task, "labels", ()):
        shares = ", ".join(f"{label} {count / len(every):.0%}" for label, count in answers.most_common(8))
        lines.append(f"labels: {shares}{', ...' if len(answers) > 8 else ''}")
        if rare := [f"{label} {count}" for label, count in answers.items() if count < FEW_OF_A_LABEL]:
            lines.append(
                f"warning: too few records to learn or to measure a label: {', '.join(rare[:8])} of {len(every):,}; "
                "give more of them, or leave them out"
            )
    else:
        lines.append(f"answers: {len(answers):,} different ones, the most common is {common!r} ({times:,} times)")
    lines.append(f"pictures: {pictures:,}" if pictures else "pictures: none")
    lines.append(f"judged by {task.metric}" + "".join(f"; {note}" for note in getattr(task, "notes", ())))
    return [*lines, *_repeated(items)]


def _repeated(items: Mapping[str, Sequence[Item]]) -> list[str]:
    every = [item for own in items.values() for item in own]
    seen: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for item in every:
        seen[" ".join(item.question.lower().split()), item.image].add(item.answer)
    lines = []
    if twice := len(every) - len(seen):
        odd = sum(len(answers) > 1 for answers in seen.values())
        said = f"; {odd:,} questions were answered differently" if odd else ""
        lines.append(f"repeated: {twice:,} questions occur more than once{said}")
    held_out = [*items["dev"], *items["test"]]
    if all(item.image is None for item in every) and (near := near_duplicates(items["train"], held_out)):
        lines.append(
            f"warning: {near:,} of {len(held_out):,} dev and test texts have a near-duplicate in train; accuracy there "
            "says little about new texts"
        )
    return lines


def near_duplicates(train: Sequence[Item], held_out: Sequence[Item]) -> int:
    """How many held-out texts share at least 80 % of their words with a text of train."""
    sets = [frozenset(item.question.lower().split()) for item in train]
    holders: dict[str, list[int]] = defaultdict(list)  # word -> places of the training texts that have it
    for place, words in enumerate(sets):
        for word in words:
            holders[word].append(place)
    found = 0
    for item in held_out:
        words = frozenset(item.question.lower().split())
        # texts that share 80 % of their words nearly always share one of the four rarest
        rare = sorted((word for word in words if word in holders), key=lambda word: (len(holders[word]), word))[:4]
        near = {place for word in rare for place in holders[word][:COMPARED]}
        found += any(len(words & sets[place]) >= ALIKE * len(words | sets[place]) for place in near)
    return found
