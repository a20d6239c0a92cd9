"""Reads RL data of the earlier Lever-Plus code: `id_list` / `score_list`, or `pointer_candidates`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leverplus.doctor.quality import GroupMeter, Sample, Watch
from leverplus.doctor.records import GroupStats
from leverplus.errors import DataError

BORROWED = ("global_positive_transfer", "global_positive_injection", "mined_from_old")
ESTIMATED = ("fallback", "simple_match", "error")


def rl_group_stats(values: Mapping[str, Any], source: str, watch: Watch | None = None) -> GroupStats:
    """The statistics of RL data in either format; other keys than query ids are passed over."""
    entries = {key: entry for key, entry in values.items() if key.lstrip("-").isdigit() and isinstance(entry, Mapping)}
    meter = GroupMeter(watch)
    for key, entry in entries.items():
        if entry.get("pointer_candidates"):
            samples = [_candidate(candidate, source, key) for candidate in entry["pointer_candidates"]]
            pool = entry.get("candidate_pool_ids")
            offered = len(pool) if pool else len({demo for sample in samples for demo in sample.demos})
            meter.add(samples, offered, key)
        elif "id_list" in entry and "score_list" in entry:
            meter.add(_legacy(entry, source, key), query=key)
        else:
            raise DataError(f"{source}: query {key} has neither pointer_candidates nor id_list and score_list")
    if not entries:
        raise DataError(f"{source}: no key is a query id; expected RL data of the earlier code")
    scale = "accuracy" if any(entry.get("pointer_candidates") for entry in entries.values()) else "gain"
    return replace(meter.finish(), scale=scale)


def _candidate(candidate: Mapping[str, Any], source: str, key: str) -> Sample:
    pointer = candidate.get("pointer_global") or candidate.get("pointer")
    if not isinstance(pointer, list):
        raise DataError(f"{source}: a candidate of query {key} has no pointer")
    method = str(candidate.get("gen_method") or "")
    mode = str(candidate.get("vqa_eval_mode") or "")
    failed = bool(candidate.get("eval_failed")) or mode == "error"
    return Sample(
        demos=tuple(pointer),
        accuracy=None if failed else _unit(candidate.get("vqa_acc_score")),
        gt_prob=_unit(candidate.get("vqa_gt_prob")),
        source=re.split("_[LB]", method, maxsplit=1)[0],
        rank=candidate.get("beam_rank"),
        density=candidate.get("logprob_score") is not None,
        estimated=mode in ESTIMATED,
        borrowed=method.startswith(BORROWED) or "source_query" in candidate or "source_queries" in candidate,
    )


def _legacy(entry: Mapping[str, Any], source: str, key: str) -> list[Sample]:
    """Sequences end with the query; their score is a gain of the information score, not an accuracy."""
    lists, scores = entry["id_list"], entry["score_list"]
    if len(lists) != len(scores):
        raise DataError(f"{source}: query {key} has {len(lists)} sequences and {len(scores)} scores")
    ends = {tuple(ids)[-1:] for ids in lists}
    cut = -1 if ends == {(int(key),)} else None
    return [
        Sample(tuple(ids)[:cut], float(score), source="beam", rank=place)
        for place, (ids, score) in enumerate(zip(lists, scores, strict=True))
        if math.isfinite(float(score))
    ]


def _unit(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), 1.0)
