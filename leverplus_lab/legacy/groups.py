"""Groups of the earlier code: RL data (`pointer_candidates`) and beam data (`id_list`), one form in and out.

`lever import` checks a file as a whole and keeps it as `groups.json` in the same form: values stay what they were, to the
digit, and fields that nothing here uses are left out. `_meta.item_ids` names items where numbers are not their ids.
Whether a pointer holds item numbers or places in a pool follows from the fields beside it; where it does not, the file is
refused, since a wrong guess trains on other demonstrations than were measured.

A list of beam data ends with its query. Its score is the gain of the information score by the last demonstration, not
an accuracy: such lists can be imitated or measured anew, not rewarded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from leverplus.data.parsing import parse_json
from leverplus.data.rundir import disk_sentence, write_json
from leverplus.data.types import (
    Demos,
    Group,
    Item,
    ItemId,
    Member,
    Pool,
    Reference,
    Score,
)
from leverplus.errors import DataError, MissingFile, NotMeasured, TrainingError

FILE = "groups.json"
ITEM_IDS = "item_ids"
LISTED = 20
"""Problems of a file that are named one by one."""
SAMPLED = ("sample", "sft_temp")
"""Sources whose stored log-probability is that of drawing the list; a beam is not drawn."""
BORROWED = ("global_positive_transfer", "global_positive_injection")
GUESSED = ("fallback", "simple_match")
MEASURED = {
    "vqa_raw_generation": "raw",
    "vqa_pred_answer": "answer",
    "vqa_acc_score": "accuracy",
    "vqa_correct": "correct",
    "vqa_gt_prob": "recorded_gt_prob",
    "vqa_rel_token_f1": "token_f1",
    "vqa_rel_edit_sim": "edit_similarity",
}
"""What was measured of a list, there and as a field of `Score`."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Row(_Model):
    """One of a query's `pointer_candidates`."""

    pointer: list[NonNegativeInt]
    pointer_global: list[NonNegativeInt] | None = None
    pointer_pos: list[NonNegativeInt] | None = None
    gen_method: str | None = None
    vqa_raw_generation: str | None = None
    vqa_pred_answer: str | None = None
    vqa_acc_score: Annotated[float, Field(ge=0, le=1)] | None = None
    vqa_correct: Literal[0, 1] | None = None
    vqa_gt_prob: float | None = None
    vqa_rel_token_f1: float | None = None
    vqa_rel_edit_sim: float | None = None
    logprob_score: float | None = None
    vqa_eval_mode: str | None = None
    eval_failed: bool | None = None
    source_query: Any = None
    source_queries: Any = None

    @property
    def demos(self) -> list[int]:
        """The numbers of the items that are shown."""
        return self.pointer_global or self.pointer


class Facts(_Model):
    """What a file says of a query."""

    model_config = ConfigDict(extra="allow", strict=True)
    query_id: int | None = None
    gt_answers_norm: list[str] | None = None


class RlQuery(_Model):
    """A query of RL data."""

    pointer_candidates: list[Row]
    candidate_pool_ids: list[NonNegativeInt] | None = None
    query: Facts | None = None

    def __len__(self) -> int:
        return len(self.pointer_candidates)

    def faults(self, query: int) -> Iterator[str]:
        """What makes its pointers or itself ambiguous."""
        pool = self.candidate_pool_ids
        if self.query and self.query.query_id not in (None, query):
            yield f"its query_id is {self.query.query_id}"
        if pool is not None and len(set(pool)) != len(pool):
            yield "candidate_pool_ids names an item twice"
        for place, row in enumerate(self.pointer_candidates):
            fault = _pointer_fault(row, pool)
            if fault:
                yield f"pointer_candidates[{place}]: {fault}"

    def shown(self) -> set[int]:
        """The numbers of all items that it names."""
        found = set(self.candidate_pool_ids or ())
        for row in self.pointer_candidates:
            found.update(row.demos)
        return found


class BeamQuery(_Model):
    """A query of beam data."""

    id_list: list[Annotated[list[NonNegativeInt], Field(min_length=1)]]
    score_list: list[float | None]

    def __len__(self) -> int:
        return len(self.id_list)

    def faults(self, query: int) -> Iterator[str]:
        """What is wrong with its lists."""
        if len(self.id_list) != len(self.score_list):
            yield "needs id_list and score_list of the same length"
        for ids in self.id_list:
            if ids[-1] != query:
                yield f"the list {ids} does not end with the query"
            if len(set(ids)) != len(ids):
                yield f"the list {ids} names an item twice"

    def shown(self) -> set[int]:
        """The numbers of all items that it names."""
        found: set[int] = set()
        for ids in self.id_list:
            found.update(ids[:-1])
        return found


def _pointer_fault(row: Row, pool: list[int] | None) -> str:
    """Why the items of a candidate cannot be known."""
    pointer = row.pointer
    wide = row.pointer_global
    if wide is not None:
        if pool is None:
            return "pointer_global without candidate_pool_ids; the pool that pointer counts in is lost"
        if [pool[number] for number in pointer if number < len(pool)] != wide:
            return f"pointer {pointer} and pointer_global {wide} name different items of the pool"
    elif pool is not None:
        beyond = any(number >= len(pool) for number in pointer)
        if not beyond or not set(pointer) <= set(pool):
            return f"pointer {pointer} may be places in candidate_pool_ids or item numbers; add pointer_global"
    elif row.pointer_pos not in (None, pointer):
        return f"pointer {pointer} and pointer_pos {row.pointer_pos} differ, and no pool says what they count in"
    return ""


def _set_aside(query: int, row: Row) -> str:
    """Why training must not learn from a candidate; "" if it may."""
    source = row.gen_method or ""
    if row.eval_failed or row.vqa_eval_mode == "error":
        return "its evaluation failed"
    if row.vqa_eval_mode in GUESSED:
        return "its accuracy was guessed by comparing strings, not measured by the official metric"
    elsewhere = row.model_fields_set & {"source_query", "source_queries"}
    if source.startswith(BORROWED) or elsewhere:
        return "its label was taken over from another query, not measured"
    if row.vqa_acc_score is None:
        return "its accuracy was never measured"
    if row.vqa_correct not in (None, int(row.vqa_acc_score > 0)):
        return "vqa_correct contradicts vqa_acc_score"
    if query in row.demos:
        return "the query is among its own demonstrations"
    if len(set(row.demos)) != len(row.demos):
        return "a demonstration occurs twice"
    return ""


class ImportedScore(Score):
    """A score as far as it was measured: reading any other field raises `NotMeasured`.

    The earlier code took the mean over tokens for gt_prob instead of their sum, so it compares sequences of one file, not
    with scores measured here.
    """

    __hash__ = object.__hash__

    def __init__(self, query: ItemId, demos: Demos, **known: Any) -> None:
        vars(self).update(query=query, demos=demos, **known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImportedScore) and vars(self) == vars(other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotMeasured(
            f"the imported file holds no {name} for query {self.query} with ({', '.join(self.demos)}); "
            "measure the sequence again, or use a reward that does not need it"
        )

    def __repr__(self) -> str:
        return f"ImportedScore({vars(self)})"


@dataclass(frozen=True)
class GroupFile:
    """A whole file: its kind ("beam" or "rl"), its queries by number, and the names of items, where it gives some."""

    kind: str
    queries: Mapping[int, RlQuery | BeamQuery]
    names: Mapping[int, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """As the earlier code reads it."""
        value: dict[str, Any] = {}
        if self.names is not None:
            value["_meta"] = {ITEM_IDS: dict(self.names)}
        for number, query in self.queries.items():
            value[str(number)] = query.model_dump(exclude_unset=True)
        return value

    def rows(self) -> Iterator[tuple[int, Row]]:
        """All candidates of RL data, each with its query."""
        for number, query in self.queries.items():
            if isinstance(query, RlQuery):
                for row in query.pointer_candidates:
                    yield number, row

    def sequences(self) -> int:
        """How many lists there are."""
        return sum(map(len, self.queries.values()))

    def set_aside(self) -> Counter[str]:
        """How many sequences training must not learn from, by reason."""
        counts: Counter[str] = Counter()
        for number, row in self.rows():
            counts[_set_aside(number, row)] += 1
        del counts[""]
        return counts

    def measured(self) -> Counter[str]:
        """In how many sequences each field was measured."""
        counts: Counter[str] = Counter()
        for _, row in self.rows():
            for name in MEASURED:
                counts[name] += getattr(row, name) is not None
        return counts

    def groups(self) -> list[Group]:
        """What training may learn from; queries without any usable sequence are left out."""
        found = []
        for number, query in self.queries.items():
            own = self._item(number)
            given = None
            if isinstance(query, RlQuery):
                members, scores = self._rl(number, query)
                given = query.candidate_pool_ids
            else:
                members, scores = self._beams(own, query)
            builder = "imported:given"
            if given is None:
                given = sorted(query.shown())
                builder = "imported:union"
            candidates = self._items(other for other in given if other != number)
            pool = Pool(own, candidates, builder)
            if members:
                group = Group(own, pool, tuple(members), tuple(scores))
                found.append(group)
        return found

    def _item(self, number: int) -> ItemId:
        if self.names is None:
            return ItemId(str(number))
        return ItemId(self.names[number])

    def _items(self, numbers: Iterable[int]) -> Demos:
        return tuple(map(self._item, numbers))

    def _rl(
        self, number: int, query: RlQuery
    ) -> tuple[list[Member], list[ImportedScore]]:
        facts = query.query or Facts()
        answers = Counter(facts.gt_answers_norm or ())
        # without any reference gt_prob is not 0 but unknown
        answers = answers or Counter([""])
        references = tuple(Reference(*own, None) for own in answers.items())
        members = []
        scores = []
        for row in query.pointer_candidates:
            if _set_aside(number, row):
                continue
            source = row.gen_method or ""
            demos = self._items(row.demos)
            density = None
            if source.startswith(SAMPLED):
                density = row.logprob_score
            members.append(Member(demos, source, density))
            known: dict[str, Any] = {"references": references}
            for theirs, ours in MEASURED.items():
                value = getattr(row, theirs)
                if value is not None:
                    known[ours] = value
            known["correct"] = known["accuracy"] > 0  # correct means just that
            scores.append(ImportedScore(self._item(number), demos, **known))
        return members, scores

    def _beams(
        self, query: ItemId, beams: BeamQuery
    ) -> tuple[list[Member], list[ImportedScore]]:
        members = []
        scores = []
        for ids, gain in zip(beams.id_list, beams.score_list, strict=True):
            demos = self._items(ids[:-1])
            members.append(Member(demos, "beam"))
            known = {}
            if gain is not None:
                known["info_score"] = gain
            scores.append(ImportedScore(query, demos, **known))
        return members, scores


def is_query(key: str, entry: Any) -> bool:
    """Whether a key of a file and what stands there are a query."""
    return key.isdecimal() and isinstance(entry, Mapping)


def group_kind(entry: Mapping[str, Any]) -> str:
    """ "rl" or "beam", by the fields of a query; "" where it has neither."""
    if entry.get("pointer_candidates"):
        return "rl"
    if "id_list" in entry and "score_list" in entry:
        return "beam"
    return ""


def read_groups(
    value: Mapping[str, Any],
    source: str,
    names: Mapping[str, ItemId] | None = None,
) -> GroupFile:
    """A file of either kind; everything that cannot be understood is named, and nothing is half read.

    `names` gives items the ids that they have in a task, by their number as a text.
    """
    entries = {}
    kind = ""
    for key, entry in value.items():
        if is_query(key, entry):
            entries[int(key)] = entry
            kind = kind or group_kind(entry)
    form: type[RlQuery | BeamQuery] = RlQuery
    if kind == "beam":
        form = BeamQuery
    known: Mapping[str, str] | None = names
    if names is None:
        known = _item_names(value)
    problems: list[str] = []
    queries: dict[int, RlQuery | BeamQuery] = {}
    named: dict[int, str] = {}
    for number, entry in entries.items():
        try:
            query = form.model_validate(entry)
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                where = ".".join(map(str, problem["loc"]))
                where = re.sub(r"\.(\d+)", r"[\1]", where)
                said = f"{where}: {problem['msg']}, not {problem['input']!r:.40}"
                problems.append(f"query {number}: {said}")
            continue
        for fault in query.faults(number):
            problems.append(f"query {number}: {fault}")
        queries[number] = query
        if known is None:
            continue
        for item in sorted({number, *query.shown()}):
            if str(item) in known:
                named[item] = str(known[str(item)])
            else:
                problems.append(
                    f"query {number}: item {item} is not among the known names; is this the data set the file was made with?"
                )
    raise_problems(source, problems)
    if known is None:
        return GroupFile(kind or "rl", queries)
    return GroupFile(kind or "rl", queries, dict(sorted(named.items())))


def _item_names(value: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The names that item numbers of a file stand for, where it was made by an export of items without numbers."""
    meta = value.get("_meta")
    if not isinstance(meta, Mapping) or meta.get(ITEM_IDS) is None:
        return None
    try:
        found = _NAMES.validate_python(meta[ITEM_IDS])
    except ValidationError as error:
        raise DataError(f"_meta.{ITEM_IDS} must give names by number") from error
    return found


_NAMES = TypeAdapter(dict[Annotated[str, Field(pattern=r"^\d+$")], StrictStr])


def raise_problems(source: str, problems: Sequence[str]) -> None:
    """One error with the first twenty problems and the number of the others."""
    if not problems:
        return
    lines = [f"{source}: {len(problems):,} problems, nothing was imported"]
    lines += [f"  - {line}" for line in problems[:LISTED]]
    if len(problems) > LISTED:
        lines.append(f"  ... and {len(problems) - LISTED:,} more")
    raise DataError("\n".join(lines))


def are_beams(groups: Sequence[Group]) -> bool:
    """Whether groups are beam data: lists with a gain and no accuracy, which can be imitated and not rewarded."""
    for group in groups:
        for score in group.scores:
            if "accuracy" in vars(score):
                return False
    return bool(groups)


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
    return float(score.info_score)  # type: ignore[attr-defined]


def read_json_value(path: Path) -> Any:
    """The value of a JSON file."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is not there") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a JSON file ({error})") from error


def write_json_value(path: Path, value: Mapping[str, Any]) -> Path:
    """Write JSON so that a reader sees the old file or the whole new one."""
    with disk_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)
    return path


def read_group_file(path: Path) -> GroupFile:
    """What `lever import` wrote: a folder, or its `groups.json`."""
    if path.is_dir():
        path = path / FILE
    value = read_json_value(path)
    pairs = value.items() if isinstance(value, Mapping) else ()
    if not any(is_query(*own) for own in pairs):
        raise DataError(
            f"{path} is not an imported group file; type `lever import FILE --into {path.parent}`"
        )
    return read_groups(value, str(path))


def load_groups(path: Path) -> list[Group]:
    """The groups of a folder that `lever import` made, or of its `groups.json`."""
    return read_group_file(path).groups()


def item_numbers(items: Sequence[Item]) -> dict[str, ItemId]:
    """Item ids by the row numbers of the earlier code, where the task knows them (`meta["idx"]`)."""
    numbers = {}
    for item in items:
        if "idx" in item.meta:
            numbers[item.meta["idx"]] = item.id
    return numbers


def rl_from_groups(
    groups: Sequence[Group],
    facts: Mapping[ItemId, Mapping[str, Any]],
    numbers: Mapping[str, ItemId] | None = None,
) -> dict[str, Any]:
    """Groups measured here as RL data, each query with its pool and `facts` about it.

    Lists of every length are written; the bare query, which is no list, is left out. `numbers` are those that items have
    in a task; else they are counted.
    """
    number, value = _numbering(groups, numbers)
    for group in groups:
        pool = list(group.pool.candidates)
        rows = []
        for member, score in zip(group.members, group.scores, strict=True):
            if not member.demos:
                continue
            row: dict[str, Any] = {
                "pointer": [pool.index(demo) for demo in member.demos],
                "pointer_global": [number[demo] for demo in member.demos],
                "gen_method": member.source,
            }
            for theirs, ours in MEASURED.items():
                row[theirs] = getattr(score, ours)
            row["vqa_correct"] = int(score.correct)
            row["vqa_gt_prob"] = None
            if score.weighed:
                row["vqa_gt_prob"] = score.gt_prob
            row["logprob_score"] = member.log_mu
            rows.append({name: own for name, own in row.items() if own is not None})
        query = number[group.query]
        value[str(query)] = {
            "query": {"query_id": query, **facts.get(group.query, {})},
            "candidate_pool_ids": [number[item] for item in pool],
            "pointer_candidates": rows,
        }
    return value


def beam_from_groups(
    groups: Sequence[Group],
    shots: int,
    width: int,
    numbers: Mapping[str, ItemId] | None = None,
) -> dict[str, Any]:
    """The `width` lists of `shots` demonstrations with the largest last gain of each group measured here."""
    number, value = _numbering(groups, numbers)
    found = 0
    for group in groups:
        known = {score.demos: score.gt_prob for score in group.scores}
        gains = []
        for demos, likely in known.items():
            other = known.get(demos[:-1])
            shorter = known.get(demos[1:], other)
            if len(demos) == shots and shorter is not None:
                gains.append((shorter - likely, demos))
        lists = []
        scores = []
        for loss, demos in sorted(gains)[:width]:
            shown = (*demos, group.query)
            lists.append([number[item] for item in shown])
            scores.append(-loss)
        if lists:
            entry = {"id_list": lists, "score_list": scores}
            value[str(number[group.query])] = entry
            found += 1
    if not found:
        raise NotMeasured(
            f"no sequence of {shots} demonstrations has a measured gain; export --format rl instead"
        )
    return value


def _numbering(
    groups: Sequence[Group], numbers: Mapping[str, ItemId] | None
) -> tuple[dict[ItemId, int], dict[str, Any]]:
    """A whole number for every item, and a file that holds their names yet: none where ids are numbers themselves."""
    if numbers:
        return {item: int(row) for row, item in numbers.items()}, {}
    items: set[ItemId] = set()
    for group in groups:
        items.update((group.query, *group.pool.candidates))
        for member in group.members:
            items.update(member.demos)
    if all(item.isdecimal() and str(int(item)) == item for item in items):
        return {item: int(item) for item in items}, {}
    counted = {}
    names = {}
    for place, item in enumerate(sorted(items)):
        counted[item] = place
        names[str(place)] = item
    return counted, {"_meta": {ITEM_IDS: names}}
