"""Packs a score into bytes, refuses scores that must not be stored, and proves by a checksum that none was changed."""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import NamedTuple

from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import ScoringError, StoreError

FORMAT = 2
"""Of a store's file and of the payloads in it; a file with another number is refused."""

_COST = struct.Struct("<qd")  # tokens, seconds


class StoredRow(NamedTuple):
    """A record as the table holds it; `payload` is what was measured, `tokens` and `seconds` are what it cost."""

    key: bytes
    payload: bytes
    tokens: int
    seconds: float
    checksum: int


def seal(context_digest: bytes, key: bytes, score: Score) -> StoredRow:
    """Check a score, pack it and add its checksum; ScoringError where it must not be stored."""
    if problem := problem_of(score):
        demos = ", ".join(score.demos) or "no demonstrations"
        raise ScoringError(
            f"the score of query '{score.query}' with ({demos}) was not stored: {problem}"
        )
    row = StoredRow(key, encode(score), int(score.tokens), float(score.seconds), 0)
    return row._replace(checksum=_checksum(context_digest, row))


def unseal(context_digest: bytes, row: StoredRow) -> Score:
    """The score of a row; StoreError when the row was changed since it was written."""
    if not is_intact(context_digest, row):
        raise StoreError(
            f"record {key_name(row.key)} was changed after it was written; run `lever store verify`"
        )
    return decode(row)


def is_intact(context_digest: bytes, row: StoredRow) -> bool:
    """Whether a row is as it was written; its payload need not be unpacked for that."""
    # SQLite gives any type for a column of a damaged file, so the declared types are checked first.
    kinds = (bytes, bytes, int, float, int)
    if not all(map(isinstance, row, kinds)):
        return False
    return row.checksum == _checksum(context_digest, row)


def key_name(key: object) -> str:
    """A key as an error message shows it; in a damaged file it may be of any type."""
    if isinstance(key, bytes):
        return key.hex()
    return repr(key)[:40]


def problem_of(score: Score) -> str | None:
    """Why a score must not be stored, in a sentence with what to do; None when it may."""
    if score.tokens < 0 or not 0.0 <= score.seconds < math.inf:
        return f"its cost is {score.tokens} tokens and {score.seconds} seconds; both must be finite and at least 0"
    for reference in score.references:
        logprob = reference.logprob
        if logprob is not None and not -math.inf < logprob <= 0.0:
            return (
                f"the log-probability of '{reference.answer}' is {logprob}, expected a finite number at most 0; check "
                "the backend's precision and its answer mask"
            )
    try:
        encode(score)
    except UnicodeEncodeError as error:  # half of a character, which UTF-8 has not
        return f"a text is not valid Unicode ({error.reason}); check how the backend decodes tokens"
    return None


def encode(score: Score) -> bytes:
    """The payload of a score: everything measured, not what it cost; the same score gives the same bytes.

    The number of references and all numbers come first, NaN for a log-probability that was not measured; then the texts.
    """
    references = score.references
    numbers = [score.accuracy, score.token_f1, score.edit_similarity]
    answers = []
    counts = []
    for reference in references:
        logprob = reference.logprob
        numbers.append(math.nan if logprob is None else logprob)
        answers.append(reference.answer)
        counts.append(reference.count)
    texts = [score.query, score.demos, score.raw, score.answer, answers, counts]
    written = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    head = struct.pack(f"<I{len(numbers)}d", len(references), *numbers)
    return head + written.encode()


def decode(row: StoredRow) -> Score:
    """The score of a row that is intact."""
    (count,) = struct.unpack_from("<I", row.payload)
    shape = struct.Struct(f"<I{3 + count}d")
    _, accuracy, token_f1, edit_similarity, *logprobs = shape.unpack_from(row.payload)
    texts = json.loads(row.payload[shape.size :])
    query, demos, raw, answer, answers, counts = texts
    references = []
    for text, number, logprob in zip(answers, counts, logprobs, strict=True):
        measured = None if math.isnan(logprob) else logprob
        references.append(Reference(text, number, measured))
    return Score(
        query=ItemId(query),
        demos=tuple(demos),
        raw=raw,
        answer=answer,
        accuracy=accuracy,
        correct=accuracy > 0,
        references=tuple(references),
        token_f1=token_f1,
        edit_similarity=edit_similarity,
        tokens=row.tokens,
        seconds=row.seconds,
    )


def _checksum(context_digest: bytes, row: StoredRow) -> int:
    """CRC-32 over the context's digest, the key, the cost and the payload: a row moved to another context fails too."""
    cost = _COST.pack(row.tokens, row.seconds)
    return zlib.crc32(context_digest + row.key + cost + row.payload, FORMAT)
