"""Packs a score into bytes, refuses scores that must not be stored, and proves by a checksum that none was changed.

A payload is a head (how log-probabilities are packed, their number, three metrics), the log-probabilities and the texts
as JSON. A log-probability takes 4 bytes where float32 holds it exactly, else 8: reading back gives the same value.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from leverplus.errors import ScoringError, StoreError
from leverplus.store.keys import KEY_SIZE, key_range
from leverplus.types import ItemId, Reference, Score

# The formats below are those of every stored score; the files of users are read with them.
_HEAD = struct.Struct("<cIddd")  # packing, number of references, accuracy, token F1, edit similarity
_COST = struct.Struct("<qd")  # tokens, seconds
# How log-probabilities are packed: not measured, float32, float64 (the letters of `struct`).
_ABSENT, _SINGLE, _DOUBLE = b"-", b"f", b"d"


class StoredRow(NamedTuple):
    """A record as the table holds it; `payload` is what was measured, `tokens` and `seconds` are what it cost."""

    key: bytes
    payload: bytes
    tokens: int
    seconds: float
    checksum: int


def seal(context_digest: bytes, key: bytes, score: Score) -> StoredRow:
    """Check a score, pack it and add its checksum; ScoringError where it must not be stored."""
    if len(key) != KEY_SIZE or not key.startswith(key_range(context_digest)):
        raise ScoringError(
            f"{_name(score)} was not stored: its key was made for another context; "
            "make keys with leverplus.store.keys.score_key and the context given to put"
        )
    problem = problem_of(score)
    if problem:
        raise ScoringError(f"{_name(score)} was not stored: {problem}")
    payload = encode(score)
    tokens, seconds = int(score.tokens), float(score.seconds)
    checksum = _checksum(context_digest, key, payload, tokens, seconds)
    return StoredRow(key, payload, tokens, seconds, checksum)


def unseal(context_digest: bytes, row: StoredRow) -> Score:
    """The score of a row; StoreError when the row was changed since it was written."""
    if not is_intact(context_digest, row):
        raise StoreError(f"record {key_name(row.key)} was changed after it was written; run `lever store verify`")
    try:
        return decode(row)
    except (ValueError, TypeError, struct.error) as error:
        raise StoreError(f"record {key_name(row.key)} cannot be read ({error}); run `lever store verify`") from error


def is_intact(context_digest: bytes, row: StoredRow) -> bool:
    """Whether a row is as it was written; its payload need not be unpacked for that."""
    # SQLite gives any type for a column of a damaged file, so the declared types are checked first.
    kinds = (bytes, bytes, int, float, int)
    if not all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True)):
        return False
    try:
        return row.checksum == _checksum(context_digest, row.key, row.payload, row.tokens, row.seconds)
    except struct.error:  # more tokens than 8 bytes hold
        return False


def key_name(key: object) -> str:
    """A key as an error message shows it; in a damaged file it may be of any type."""
    return key.hex() if isinstance(key, bytes) else repr(key)[:40]


def problem_of(score: Score) -> str | None:
    """Why a score must not be stored, in a sentence with what to do; None when it may."""
    if not score.query:
        return "its query id is empty; give every item an id"
    if score.query in score.demos:
        return "its query is shown among its own demonstrations; take the query out of the sequence"
    if len(set(score.demos)) != len(score.demos):
        return "a demonstration is shown twice; take the repeat out of the sequence"
    if "" in score.demos:
        return "a demonstration id is empty; give every item an id"
    for name in ("accuracy", "token_f1", "edit_similarity"):
        value = getattr(score, name)
        if not 0.0 <= value <= 1.0:
            return f"{name} is {value}, expected a number from 0 to 1; check the task's metric"
    if score.correct != (score.accuracy > 0):
        return f"correct is {score.correct} with accuracy {score.accuracy}; correct means accuracy > 0"
    if score.correct and not score.answer:
        return "an empty answer was counted as correct; check the task's metric and postprocess"
    if score.tokens < 0 or not 0.0 <= score.seconds < math.inf:
        return f"its cost is {score.tokens} tokens and {score.seconds} seconds; both must be finite and at least 0"
    return _reference_problem(score.references) or _text_problem(score)


def _reference_problem(references: Sequence[Reference]) -> str | None:
    if not references:
        return "its query has no reference answers; run `lever task check` to find items without answers"
    if len({reference.answer for reference in references}) != len(references):
        return "a reference answer is listed twice; list each once with its count"
    if not any(reference.count for reference in references):
        return "all of its references have count 0, so nobody gave any of them; give the query an answer"
    unmeasured = sum(reference.logprob is None for reference in references)
    if unmeasured not in (0, len(references)):
        return f"{unmeasured} of {len(references)} references have no log-probability; measure all of them or none"
    for reference in references:
        answer, logprob = reference.answer, reference.logprob
        if not answer:
            return "a reference answer is empty; run `lever task check` to find items with empty answers"
        if reference.count < 0:
            return f"reference '{answer}' has count {reference.count}, expected at least 0"
        if logprob is not None and not -math.inf < logprob <= 0.0:
            return (
                f"the log-probability of '{answer}' is {logprob}, expected a finite number at most 0; "
                "check the backend's precision and its answer mask"
            )
    return None


def _text_problem(score: Score) -> str | None:
    texts = [score.query, *score.demos, score.raw, score.answer]
    texts += [reference.answer for reference in score.references]
    try:
        "".join(texts).encode()  # fails on a lone surrogate, which JSON would take and UTF-8 cannot hold
    except UnicodeEncodeError as error:
        return f"a text is not valid Unicode ({error.reason}); check how the backend decodes tokens"
    return None


def encode(score: Score) -> bytes:
    """The payload of a score that has no problem: everything measured, not what it cost."""
    packing, floats = _pack([reference.logprob for reference in score.references])
    texts = [
        score.query,
        score.demos,
        score.raw,
        score.answer,
        [reference.answer for reference in score.references],
        [int(reference.count) for reference in score.references],
    ]
    head = _HEAD.pack(packing, len(score.references), score.accuracy, score.token_f1, score.edit_similarity)
    tail = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
    return head + floats + tail


def decode(row: StoredRow) -> Score:
    """The score of a row, unchecked; ValueError or struct.error where the bytes are not a payload."""
    packing, count, accuracy, token_f1, edit_similarity = _HEAD.unpack_from(row.payload)
    logprobs, end = _unpack(packing, count, row.payload)
    query, demos, raw, answer, answers, counts = json.loads(row.payload[end:])
    return Score(
        query=ItemId(query),
        demos=tuple(demos),
        raw=raw,
        answer=answer,
        accuracy=accuracy,
        correct=accuracy > 0,
        references=tuple(map(Reference, answers, counts, logprobs)),
        token_f1=token_f1,
        edit_similarity=edit_similarity,
        tokens=row.tokens,
        seconds=row.seconds,
    )


def _pack(logprobs: list[float | None]) -> tuple[bytes, bytes]:
    """The packing and the bytes of log-probabilities: 4 bytes each where float32 holds all of them exactly, else 8."""
    measured = [value for value in logprobs if value is not None]  # all or none: `_reference_problem` refuses a mix
    if not measured:
        return _ABSENT, b""
    singles, doubles = f"<{len(measured)}f", f"<{len(measured)}d"
    as_doubles = struct.pack(doubles, *measured)
    try:
        as_singles = struct.pack(singles, *measured)
    except OverflowError:  # beyond the range of float32
        return _DOUBLE, as_doubles
    if struct.unpack(singles, as_singles) == struct.unpack(doubles, as_doubles):
        return _SINGLE, as_singles
    return _DOUBLE, as_doubles


def _unpack(packing: bytes, count: int, payload: bytes) -> tuple[Sequence[float | None], int]:
    """The log-probabilities of a payload, and the offset at which its texts begin."""
    if packing == _ABSENT:
        return (None,) * count, _HEAD.size
    if packing not in (_SINGLE, _DOUBLE):
        raise ValueError(f"unknown packing {packing!r}")
    shape = f"<{count}{packing.decode()}"
    return struct.unpack_from(shape, payload, _HEAD.size), _HEAD.size + struct.calcsize(shape)


def _checksum(context_digest: bytes, key: bytes, payload: bytes, tokens: int, seconds: float) -> int:
    """CRC-32 over the context's digest, the key, the cost and the payload: a row moved to another context fails too."""
    head = zlib.crc32(context_digest + key + _COST.pack(tokens, seconds))
    return zlib.crc32(payload, head)


def _name(score: Score) -> str:
    demos = ", ".join(score.demos) or "no demonstrations"
    return f"the score of query '{score.query}' with ({demos})"
