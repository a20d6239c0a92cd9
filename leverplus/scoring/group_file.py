"""Imported groups: what a file said, field by field, kept as `groups.json`; what was never measured stays missing.

`load_groups` gives training its groups. A value the file did not hold raises `NotMeasured` when it is asked for.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leverplus.errors import DataError, MissingFile, NotMeasured, TrainingError
from leverplus.parsing import parse_json
from leverplus.rundir import disk_sentence, write_text
from leverplus.types import Demos, Group, Item, ItemId, Member, Pool, Reference, Score

FORMAT = "leverplus-groups"
VERSION = 1
FILE = "groups.json"

MEASURABLE = frozenset({"raw", "answer", "accuracy", "correct", "token_f1", "edit_similarity", "tokens", "seconds"})


@dataclass(frozen=True)
class Candidate:
    """One sequence of a file: where it came from, what was measured of it, and all else the file said of it.

    `measured` holds fields of `Score` (and `gt_prob`, `info_score`) that the file gave. `set_aside` says why training
    must not learn from it, "" if it may.
    """

    demos: Demos
    source: str = ""
    log_mu: float | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    set_aside: str = ""


@dataclass(frozen=True)
class GroupEntry:
    """One query of a file. `pool_given`: the file named the pool; else it is the union of what its sequences show."""

    query: ItemId
    pool: Demos
    candidates: tuple[Candidate, ...]
    pool_given: bool = False
    local: bool = False
    facts: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupFile:
    """A whole file: its kind ("beam" or "rl"), its queries, and keys that are no query.

    `numbers` are those that the file gave items which have the ids of a task here; an export gives them back.
    """

    kind: str
    entries: tuple[GroupEntry, ...]
    other: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[ItemId, ItemId] = field(default_factory=dict)

    def set_aside(self) -> Counter[str]:
        """How many sequences training must not learn from, by reason."""
        return Counter(c.set_aside for entry in self.entries for c in entry.candidates if c.set_aside)

    def measured(self) -> Counter[str]:
        """In how many sequences each field was measured."""
        return Counter(name for entry in self.entries for c in entry.candidates for name in c.measured)

    def groups(self) -> list[Group]:
        """What training may learn from; queries without any usable sequence are left out."""
        found = (_group(entry) for entry in self.entries)
        return [group for group in found if group.members]


@dataclass(frozen=True, eq=False, repr=False)
class ImportedScore(Score):
    """A score as far as it was measured: reading any other field raises `NotMeasured`.

    `gt_prob` is the file's own value where it gives one. The earlier code took the mean over tokens instead of their
    sum, so it compares sequences of one file, not with scores measured here.
    """

    missing: frozenset[str] = frozenset()
    stored_gt_prob: float | None = None
    info_score: float | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in MEASURABLE and name in object.__getattribute__(self, "missing"):
            query, demos = object.__getattribute__(self, "query"), object.__getattribute__(self, "demos")
            raise NotMeasured(
                f"the imported file holds no {name} for query {query} with ({', '.join(demos)}); "
                "measure the sequence again, or use a reward that does not need it"
            )
        return object.__getattribute__(self, name)

    @property
    def gt_prob(self) -> float:
        if self.stored_gt_prob is None:
            raise NotMeasured(
                f"the imported file holds no gt_prob for query {self.query} with ({', '.join(self.demos)})"
            )
        return self.stored_gt_prob

    def __repr__(self) -> str:
        known = {name: getattr(self, name) for name in sorted(MEASURABLE - self.missing)}
        return f"ImportedScore(query={self.query!r}, demos={self.demos!r}, {known})"


def _group(entry: GroupEntry) -> Group:
    usable = [candidate for candidate in entry.candidates if not candidate.set_aside]
    builder = "imported:given" if entry.pool_given else "imported:union"
    pool = Pool(entry.query, tuple(item for item in entry.pool if item != entry.query), builder)
    members = tuple(Member(candidate.demos, candidate.source, candidate.log_mu) for candidate in usable)
    return Group(entry.query, pool, members, tuple(_score(entry, candidate) for candidate in usable))


def _score(entry: GroupEntry, candidate: Candidate) -> ImportedScore:
    known = dict(candidate.measured)
    if "accuracy" in known:
        known.setdefault("correct", known["accuracy"] > 0)  # correct means just that
    answers = Counter((entry.facts or {}).get("gt_answers_norm") or ())
    return ImportedScore(
        query=entry.query,
        demos=candidate.demos,
        raw=known.get("raw", ""),
        answer=known.get("answer", ""),
        accuracy=known.get("accuracy", math.nan),
        correct=known.get("correct", False),
        references=tuple(Reference(text, count, None) for text, count in answers.items()),
        token_f1=known.get("token_f1", math.nan),
        edit_similarity=known.get("edit_similarity", math.nan),
        tokens=0,
        seconds=math.nan,
        missing=MEASURABLE - known.keys(),
        stored_gt_prob=known.get("gt_prob"),
        info_score=known.get("info_score"),
    )


def are_beams(groups: Sequence[Group]) -> bool:
    """Whether groups are beam data: lists with a gain and no accuracy, which can be imitated and not rewarded."""
    return bool(groups) and all("accuracy" in getattr(s, "missing", ()) for group in groups for s in group.scores)


def require_imitation(groups: Sequence[Group], stages: Sequence[str]) -> bool:
    """Whether groups are beam data; a stage that cannot learn from it is refused."""
    if not are_beams(groups):
        return False
    others = [stage for stage in stages if stage != "sft"]
    if others:
        raise TrainingError(
            f"score.groups holds beam data: gains and no accuracies, which only sft can imitate, not {others[0]}; "
            "add --set train.stages=['sft'], or import RL data"
        )
    return True


def beam_gain(score: Score) -> float:
    """The gain that a beam file gave a list; one without any is refused."""
    gain: float | None = getattr(score, "info_score", None)
    if gain is None:
        raise NotMeasured(f"the beam file gives no score for query {score.query} with ({', '.join(score.demos)})")
    return gain


def load_groups(path: Path) -> list[Group]:
    """The groups of a folder that `lever import` made, or of its `groups.json`."""
    return read_group_file(path).groups()


def save_group_file(file: GroupFile, folder: Path) -> Path:
    """Write `groups.json` into a folder, replaced at once."""
    value = {
        "format": FORMAT,
        "version": VERSION,
        "kind": file.kind,
        "other": dict(file.other),
        "numbers": dict(file.numbers),
        "entries": [_plain_entry(entry) for entry in file.entries],
    }
    return write_json_value(folder / FILE, value)


def read_group_file(path: Path) -> GroupFile:
    """What `save_group_file` wrote."""
    path = path / FILE if path.is_dir() else path
    value = read_json_value(path)
    if not isinstance(value, Mapping) or value.get("format") != FORMAT or value.get("version") != VERSION:
        raise DataError(f"{path} is not an imported group file; type `lever import FILE --into {path.parent}`")
    entries = tuple(_entry(plain) for plain in value["entries"])
    return GroupFile(value["kind"], entries, value["other"], value.get("numbers", {}))


def _plain_entry(entry: GroupEntry) -> dict[str, Any]:
    candidates = [
        {key: value for key, value in vars(candidate).items() if value not in ("", None, {})}
        for candidate in entry.candidates
    ]
    return {**vars(entry), "candidates": candidates}


def _entry(plain: Mapping[str, Any]) -> GroupEntry:
    candidates = tuple(
        Candidate(**{**candidate, "demos": tuple(candidate.get("demos", ()))}) for candidate in plain["candidates"]
    )
    return GroupEntry(**{**plain, "pool": tuple(plain["pool"]), "candidates": candidates})


def read_json_value(path: Path) -> Any:
    """The value of a JSON file."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is not there") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a JSON file ({error})") from error


def write_json_value(path: Path, value: Any) -> Path:
    """Write JSON so that a reader sees the old file or the whole new one."""
    with disk_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
    return path


def numbers_of_items(groups: Sequence[Group]) -> dict[ItemId, int]:
    """A whole number for every item, as files of the earlier code name them: its own where all ids are numbers."""
    ids = dict.fromkeys(
        item
        for group in groups
        for item in (group.query, *group.pool.candidates, *(demo for member in group.members for demo in member.demos))
    )
    if all(item.isdecimal() and str(int(item)) == item for item in ids):
        return {item: int(item) for item in ids}
    return {item: number for number, item in enumerate(sorted(ids))}


def rename_items(file: GroupFile, names: Mapping[ItemId, ItemId]) -> GroupFile:
    """The same file with other item ids; an id without a new name is an error."""

    def renamed(items: Sequence[ItemId]) -> Demos:
        strangers = [item for item in items if item not in names]
        if strangers:
            raise DataError(f"item {strangers[0]} is not in the task; is this the data set the file was made with?")
        return tuple(names[item] for item in items)

    entries = tuple(
        replace(
            entry,
            query=renamed([entry.query])[0],
            facts=_renumbered(entry.facts, names[entry.query]),
            pool=renamed(entry.pool),
            candidates=tuple(replace(c, demos=renamed(c.demos)) for c in entry.candidates),
        )
        for entry in file.entries
    )
    return replace(file, entries=entries)


def _renumbered(facts: Mapping[str, Any] | None, name: ItemId) -> Mapping[str, Any] | None:
    """A query's facts with the number it now has."""
    return {**facts, "query_id": int(name)} if facts and "query_id" in facts and name.isdecimal() else facts


def item_numbers(items: Sequence[Item]) -> dict[ItemId, ItemId]:
    """Item ids by the row numbers of the earlier code, where the task knows them (`meta["idx"]`)."""
    return {ItemId(item.meta["idx"]): item.id for item in items if "idx" in item.meta}
