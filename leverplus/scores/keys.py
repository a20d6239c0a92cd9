"""Makes the key of a score: it changes when anything that could change the answer changes. No other module makes keys.

A key is 20 bytes: 4 of the context's digest, 6 of the query's digest, 10 of a hash over the context, the query and the
ordered demonstrations. The leading parts make key order group the records of one query together, so that a batch of
scores touches few pages and all scores of a query are one range of the table, without an index. Two scores of one query
collide with probability 2^-80, two of different queries with 2^-128.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

from leverplus.data.types import Item
from leverplus.errors import ScoringError

# All sizes are in bytes. They are part of the file format: a change would make every stored score unfindable.
DIGEST_SIZE = 16
KEY_SIZE = 20
CONTEXT_PART = 4  # leading bytes of a key, taken from the context's digest
QUERY_PART = 6  # the bytes after them, taken from the query's digest
_TAIL = KEY_SIZE - CONTEXT_PART - QUERY_PART

Role = Literal["query", "demo"]


@dataclass(frozen=True)
class Context:
    """Everything besides the items that could change an answer, as canonical JSON; scores are comparable within one."""

    canonical: str

    @classmethod
    def of(cls, fingerprint: Mapping[str, str], **parts: str) -> Context:
        """The context of a backend (its fingerprint) and of a task: `task`, `task_version`, `metric` and `cut`."""
        unnamed = [name for name, value in parts.items() if not value]
        if not fingerprint:
            unnamed.append("the backend's fingerprint")
        if unnamed:
            raise ScoringError(
                f"scores cannot be keyed without {', '.join(unnamed)}; give the task and the backend these values"
            )
        return cls(_canonical({"backend": dict(fingerprint), **parts}))

    @cached_property
    def digest(self) -> bytes:
        return context_digest(self.canonical.encode("ascii"))

    @property
    def values(self) -> dict[str, Any]:
        """The canonical JSON as a dictionary: backend, task, task_version, metric, cut."""
        values: dict[str, Any] = json.loads(self.canonical)
        return values


def context_digest(canonical: bytes) -> bytes:
    """The digest of a context's text; bytes, because the text of a damaged file may be no text any more."""
    return blake2b(canonical, digest_size=DIGEST_SIZE, person=b"context").digest()


def item_digest(item: Item, image_digest: str, *, role: Role) -> bytes:
    """16 bytes over everything of an item that can change an answer.

    A query counts with all its reference answers, a demonstration with the one answer that the prompt shows.
    """
    answers = list(item.answers) if role == "query" else [item.answer]
    content: list[Any] = [item.id, item.question, answers, image_digest]
    if item.fields:
        content.append(dict(item.fields))
    text = _canonical(content).encode("ascii")
    return blake2b(text, digest_size=DIGEST_SIZE, person=role.encode()).digest()


def score_key(
    context_digest: bytes, query_digest: bytes, demo_digests: Sequence[bytes]
) -> bytes:
    """The key of one prompt: a query with an ordered list of demonstrations, in a context."""
    whole = context_digest + query_digest + b"".join(demo_digests)
    tail = blake2b(whole, digest_size=_TAIL, person=b"score").digest()
    return key_range(context_digest, query_digest) + tail


def key_range(context_digest: bytes, query_digest: bytes = b"") -> bytes:
    """The leading bytes shared by the keys of a context, or of one query in it."""
    return context_digest[:CONTEXT_PART] + query_digest[:QUERY_PART]


def _canonical(value: Any) -> str:
    """JSON with one spelling per value: the same value gives the same bytes on every machine."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
