"""RL data of the earlier code: `pointer_candidates` with what was measured of each, read and written.

Whether a pointer holds item numbers or places in a pool follows from the fields beside it; where it does not, the file
is refused, since a wrong guess trains on other demonstrations than were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.errors import DataError
from leverplus.scoring.group_file import Candidate, GroupEntry, GroupFile, numbers_of_items
from leverplus.types import Demos, Group, ItemId, Score

LISTED = 20

FIELDS = {
    "vqa_raw_generation": "raw",
    "vqa_pred_answer": "answer",
    "vqa_acc_score": "accuracy",
    "vqa_correct": "correct",
    "vqa_gt_prob": "gt_prob",
    "vqa_rel_token_f1": "token_f1",
    "vqa_rel_edit_sim": "edit_similarity",
}
"""Fields of a candidate, and what they are called here; all others are kept as they are."""

NUMBERS = ("accuracy", "gt_prob", "token_f1", "edit_similarity")
SAMPLED = ("sample", "sft_temp")
"""Sources whose stored log-probability is that of drawing the sequence; a beam is not drawn."""

BORROWED = ("global_positive_transfer", "global_positive_injection")
ITEM_IDS = "item_ids"


def is_query(key: str, entry: Any) -> bool:
    return key.isdecimal() and isinstance(entry, Mapping)


def item_names(value: Mapping[str, Any]) -> list[str] | None:
    """The names that item numbers of a file stand for, where it was made by an export of items without numbers."""
    meta = value.get("_meta")
    names = meta.get(ITEM_IDS) if isinstance(meta, Mapping) else None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(f"_meta.{ITEM_IDS} must be a list of names")
    return names


def read_rl(value: Mapping[str, Any], source: str) -> GroupFile:
    """A file of RL data; everything that cannot be understood is named, and nothing is half read."""
    problems: list[str] = []
    names = item_names(value)
    entries = []
    for key, entry in value.items():
        if is_query(key, entry):
            own: list[str] = []
            read = _entry(key, entry, names, own)
            problems += [f"query {key}: {line}" for line in own]
            if read is not None:
                entries.append(read)
    raise_problems(source, problems)
    return GroupFile("rl", tuple(entries), {key: entry for key, entry in value.items() if not is_query(key, entry)})


def raise_problems(source: str, problems: Sequence[str]) -> None:
    """One error with the first twenty problems and the number of the others."""
    if problems:
        more = [f"  ... and {len(problems) - LISTED:,} more"] if len(problems) > LISTED else []
        lines = [f"  - {line}" for line in problems[:LISTED]] + more
        raise DataError(f"{source}: {len(problems):,} problems, nothing was imported\n" + "\n".join(lines))


def _entry(key: str, entry: Mapping[str, Any], names: Sequence[str] | None, problems: list[str]) -> GroupEntry | None:
    facts, rows, pool = entry.get("query"), entry.get("pointer_candidates"), entry.get("candidate_pool_ids")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        problems.append("has no list of pointer_candidates")
        return None
    if not _is_facts(facts):
        problems.append("query must be an object, and its gt_answers_norm a list of texts")
        return None
    if facts is not None and facts.get("query_id", int(key)) != int(key):
        problems.append(f"its query_id is {facts['query_id']}")
    if pool is not None and (not whole_numbers(pool) or len(set(pool)) != len(pool)):
        problems.append("candidate_pool_ids must be a list of different whole numbers")
        return None
    read = [_pointer(row, pool, f"pointer_candidates[{place}]", problems) for place, row in enumerate(rows)]
    if any(pointer is None for pointer in read):
        return None
    largest = max([int(key), *(pool or ()), *(n for pointer in read for n in pointer or ())])
    if names is not None and largest >= len(names):
        problems.append(f"item {largest} is not among the {len(names):,} names of _meta.{ITEM_IDS}")
        return None
    query, lists = _name(int(key), names), [[_name(n, names) for n in pointer or ()] for pointer in read]
    union = sorted({n for pointer in read for n in pointer or ()})
    candidates = tuple(
        _candidate(query, tuple(demos), row, f"pointer_candidates[{place}]", problems)
        for place, (demos, row) in enumerate(zip(lists, rows, strict=True))
    )
    return GroupEntry(
        query=query,
        pool=tuple(_name(n, names) for n in (union if pool is None else pool)),
        candidates=candidates,
        pool_given=pool is not None,
        local=any("pointer_global" in row for row in rows),
        facts=facts,
        extra={k: v for k, v in entry.items() if k not in ("query", "pointer_candidates", "candidate_pool_ids")},
    )


def _is_facts(facts: Any) -> bool:
    """Whether what a file says of a query can be read; it may say nothing."""
    if not isinstance(facts, Mapping):
        return facts is None
    answers = facts.get("gt_answers_norm") or []
    return isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)


def _name(number: int, names: Sequence[str] | None) -> ItemId:
    return ItemId(str(number) if names is None else names[number])


def whole_numbers(value: Any) -> bool:
    """Whether a value is a list of 0, 1, 2, ..."""
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _pointer(row: Mapping[str, Any], pool: list[int] | None, place: str, problems: list[str]) -> list[int] | None:
    """The item numbers of a candidate; None, with a problem, when they cannot be known."""
    pointer, wide, kept = row.get("pointer"), row.get("pointer_global"), row.get("pointer_pos")
    if not isinstance(pointer, list) or not whole_numbers(pointer) or not (wide is None or whole_numbers(wide)):
        problems.append(f"{place}: pointer must be a list of whole numbers")
    elif wide is not None and pool is None:
        problems.append(f"{place}: pointer_global without candidate_pool_ids; the pool that pointer counts in is lost")
    elif wide is not None and pool is not None:
        if [pool[n] if n < len(pool) else None for n in pointer] == wide:
            return list(wide)
        problems.append(f"{place}: pointer {pointer} and pointer_global {wide} name different items of the pool")
    elif pool is not None:
        inside, global_only = set(pointer) <= set(pool), any(n >= len(pool) for n in pointer)
        if inside and global_only:
            return pointer
        problems.append(
            f"{place}: pointer {pointer} may be places in candidate_pool_ids or item numbers; add pointer_global"
        )
    elif kept is not None and kept != pointer:
        problems.append(
            f"{place}: pointer {pointer} and pointer_pos {kept} differ, and no pool says what they count in"
        )
    else:
        return pointer
    return None


def _candidate(query: ItemId, demos: Demos, row: Mapping[str, Any], place: str, problems: list[str]) -> Candidate:
    measured = {ours: row[theirs] for theirs, ours in FIELDS.items() if row.get(theirs) is not None}
    extra = {
        key: value
        for key, value in row.items()
        if key not in ("pointer", "pointer_global", "gen_method") and (key not in FIELDS or value is None)
    }
    for name in NUMBERS:
        if name in measured and not _finite(measured[name]):
            problems.append(f"{place}: {name} = {measured[name]!r} is not a number")
    if _finite(measured.get("accuracy")) and not 0.0 <= measured["accuracy"] <= 1.0:
        problems.append(f"{place}: vqa_acc_score = {measured['accuracy']} is not in [0, 1]; divide percentages by 100")
    if "correct" in measured:
        if measured["correct"] not in (0, 1):
            problems.append(f"{place}: vqa_correct = {measured['correct']!r} must be 0 or 1")
        measured["correct"] = bool(measured["correct"])
    if not isinstance(row.get("gen_method"), (str, type(None))):
        problems.append(f"{place}: gen_method = {row['gen_method']!r} is not a text")
    if row.get("logprob_score") is not None and not _finite(row["logprob_score"]):
        problems.append(f"{place}: logprob_score = {row['logprob_score']!r} is not a number")
    reason = _set_aside(query, demos, row, measured)
    source = str(row.get("gen_method") or "")
    log_mu = (
        extra.pop("logprob_score") if source.startswith(SAMPLED) and extra.get("logprob_score") is not None else None
    )
    if "gen_method" in row and not source:
        extra["gen_method"] = row["gen_method"]
    return Candidate(demos, source, log_mu, measured, extra, reason)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _set_aside(query: ItemId, demos: Demos, row: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Why training must not learn from a candidate; "" if it may."""
    mode = row.get("vqa_eval_mode")
    if row.get("eval_failed") or mode == "error":
        return "its evaluation failed"
    if mode in ("fallback", "simple_match"):
        return "its accuracy was guessed by comparing strings, not measured by the official metric"
    if str(row.get("gen_method") or "").startswith(BORROWED) or "source_query" in row or "source_queries" in row:
        return "its label was taken over from another query, not measured"
    if not _finite(measured.get("accuracy")):
        return "its accuracy was never measured"
    if "correct" in measured and measured["correct"] != (measured["accuracy"] > 0):
        return "vqa_correct contradicts vqa_acc_score"
    if query in demos:
        return "the query is among its own demonstrations"
    if len(set(demos)) != len(demos):
        return "a demonstration occurs twice"
    return ""


def write_rl(file: GroupFile) -> dict[str, Any]:
    """RL data as the earlier code reads it."""
    names = item_names(file.other)
    numbers = None if names is None else {ItemId(name): place for place, name in enumerate(names)}
    return {**file.other, **{str(_number(entry.query, numbers)): _plain(entry, numbers) for entry in file.entries}}


def _number(item: ItemId, numbers: Mapping[ItemId, int] | None) -> int:
    return int(item) if numbers is None else numbers[item]


def _plain(entry: GroupEntry, numbers: Mapping[ItemId, int] | None) -> dict[str, Any]:
    pool = [_number(item, numbers) for item in entry.pool]
    place = {number: index for index, number in enumerate(pool)}
    rows = []
    for candidate in entry.candidates:
        ids = [_number(demo, numbers) for demo in candidate.demos]
        pointer = {"pointer": [place[n] for n in ids], "pointer_global": ids} if entry.local else {"pointer": ids}
        rows.append({**pointer, **_plain_fields(candidate)})
    out: dict[str, Any] = {} if entry.facts is None else {"query": dict(entry.facts)}
    if entry.pool_given:
        out["candidate_pool_ids"] = pool
    return {**out, **entry.extra, "pointer_candidates": rows}


def _plain_fields(candidate: Candidate) -> dict[str, Any]:
    row: dict[str, Any] = {"gen_method": candidate.source} if candidate.source else {}
    row |= {theirs: candidate.measured[ours] for theirs, ours in FIELDS.items() if ours in candidate.measured}
    if "vqa_correct" in row:
        row["vqa_correct"] = int(row["vqa_correct"])
    if candidate.log_mu is not None:
        row["logprob_score"] = candidate.log_mu
    return row | dict(candidate.extra)


def rl_from_groups(groups: Sequence[Group], facts: Mapping[ItemId, Mapping[str, Any]]) -> GroupFile:
    """Groups measured here as a file of RL data, each query with its pool and `facts` about it.

    Sequences of every length are written; the bare query, which is no sequence, is left out.
    """
    numbers = numbers_of_items(groups)
    names = sorted(numbers, key=numbers.__getitem__)
    own = all(name.isdecimal() for name in names)
    entries = [
        GroupEntry(
            query=group.query,
            pool=group.pool.candidates,
            candidates=tuple(
                Candidate(member.demos, member.source, None, _measured(score), {"logprob_score": member.log_mu})
                for member, score in zip(group.members, group.scores, strict=True)
                if member.demos
            ),
            pool_given=True,
            local=True,
            facts={"query_id": numbers[group.query], **facts.get(group.query, {})},
        )
        for group in groups
    ]
    meta = {"strict_eval": True} if own else {"strict_eval": True, ITEM_IDS: names}
    return GroupFile("rl", tuple(entries), {"_meta": meta})


def _measured(score: Score) -> dict[str, Any]:
    measured: dict[str, Any] = {
        "raw": score.raw,
        "answer": score.answer,
        "accuracy": score.accuracy,
        "correct": score.correct,
        "token_f1": score.token_f1,
        "edit_similarity": score.edit_similarity,
    }
    if all(reference.logprob is not None for reference in score.references):
        measured["gt_prob"] = score.gt_prob
    return measured
