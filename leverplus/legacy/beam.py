"""Beam data of the earlier code: `id_list` and `score_list` per query, read and written.

A list ends with its query; before it stand the demonstrations in prompt order. A score is the gain of the information
score by the last demonstration added, not an accuracy: such sequences can be imitated or measured anew, not rewarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.errors import NotMeasured
from leverplus.legacy.rl import ITEM_IDS, is_query, item_names, raise_problems, whole_numbers
from leverplus.scoring.group_file import Candidate, GroupEntry, GroupFile, numbers_of_items
from leverplus.types import Demos, Group, ItemId, Score


def read_beam(value: Mapping[str, Any], source: str) -> GroupFile:
    """A file of beam data, checked as a whole."""
    problems: list[str] = []
    names = item_names(value)
    entries = []
    for key, entry in value.items():
        if is_query(key, entry):
            fault = _fault(int(key), entry, names)
            if fault:
                problems.append(f"query {key}: {fault}")
            else:
                entries.append(_entry(int(key), entry, names))
    raise_problems(source, problems)
    return GroupFile("beam", tuple(entries), {key: entry for key, entry in value.items() if not is_query(key, entry)})


def _fault(query: int, entry: Mapping[str, Any], names: Sequence[str] | None) -> str | None:
    lists, scores, steps = entry.get("id_list"), entry.get("score_list"), entry.get("shot_scores")
    if not isinstance(lists, list) or not isinstance(scores, list) or len(lists) != len(scores):
        return "needs id_list and score_list of the same length"
    if steps is not None and (not isinstance(steps, list) or len(steps) != len(lists)):
        return f"shot_scores must have {len(lists)} rows as id_list has"
    for ids in lists:
        if not whole_numbers(ids) or not ids:
            return "id_list must hold lists of whole numbers"
        if ids[-1] != query:
            return f"the list {ids} does not end with the query"
        if len(set(ids)) != len(ids):
            return f"the list {ids} names an item twice"
        if names is not None and max(ids) >= len(names):
            return f"item {max(ids)} is not among the {len(names):,} names of _meta.{ITEM_IDS}"
    return None


def _entry(key: int, entry: Mapping[str, Any], names: Sequence[str] | None) -> GroupEntry:
    def name(number: int) -> ItemId:
        return ItemId(str(number) if names is None else names[number])

    lists, steps = entry["id_list"], entry.get("shot_scores")
    candidates = tuple(
        Candidate(
            demos=tuple(name(n) for n in ids[:-1]),
            source="beam",
            measured={} if score is None else {"info_score": score},
            extra={} if steps is None else {"shot_scores": steps[place]},
        )
        for place, (ids, score) in enumerate(zip(lists, entry["score_list"], strict=True))
    )
    return GroupEntry(
        query=name(key),
        pool=tuple(name(n) for n in sorted({n for ids in lists for n in ids[:-1]})),
        candidates=candidates,
        extra={key: value for key, value in entry.items() if key not in ("id_list", "score_list", "shot_scores")},
    )


def write_beam(file: GroupFile) -> dict[str, Any]:
    """Beam data as the earlier code reads it."""
    names = item_names(file.other)
    numbers = None if names is None else {ItemId(name): place for place, name in enumerate(names)}

    def number(item: ItemId) -> int:
        return int(item) if numbers is None else numbers[item]

    out: dict[str, Any] = dict(file.other)
    for entry in file.entries:
        plain: dict[str, Any] = {
            "id_list": [[*map(number, c.demos), number(entry.query)] for c in entry.candidates],
            "score_list": [c.measured.get("info_score") for c in entry.candidates],
        }
        if any("shot_scores" in c.extra for c in entry.candidates):
            plain["shot_scores"] = [c.extra["shot_scores"] for c in entry.candidates]
        out[str(number(entry.query))] = {**plain, **entry.extra}
    return out


def beam_from_groups(groups: Sequence[Group], shots: int, width: int) -> GroupFile:
    """The `width` sequences of `shots` demonstrations with the largest last gain of each group measured here."""
    numbers = numbers_of_items(groups)
    names = sorted(numbers, key=numbers.__getitem__)
    entries = []
    for group in groups:
        known = {score.demos: score for score in group.scores}
        gains = [(gain, demos) for demos in known if len(demos) == shots and (gain := _gain(known, demos)) is not None]
        best = sorted(gains, key=lambda pair: (-pair[0], pair[1]))[:width]
        candidates = tuple(Candidate(demos, "beam", None, {"info_score": gain}) for gain, demos in best)
        if candidates:
            entries.append(GroupEntry(group.query, group.pool.candidates, candidates, extra={"few_shot_num": shots}))
    if not entries:
        raise NotMeasured(f"no sequence of {shots} demonstrations has a measured gain; export --format rl instead")
    own = all(name.isdecimal() for name in names)
    return GroupFile("beam", tuple(entries), {} if own else {"_meta": {ITEM_IDS: names}})


def _gain(known: Mapping[Demos, Score], demos: Demos) -> float | None:
    """What the demonstration added last brought, where the shorter sequence was measured too."""
    shorter = known.get(demos[1:]) or known.get(demos[:-1])
    return None if shorter is None else known[demos].gt_prob - shorter.gt_prob
