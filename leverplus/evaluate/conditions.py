"""The conditions under which a result was measured, and the refusal to compare results from different ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.data.types import Item, ItemId, Pool
from leverplus.errors import EvaluationError
from leverplus.scores.keys import Context

MEANINGS = {
    "task": "the task",
    "task_version": "the task's data (another world seed, other files)",
    "metric": "the metric",
    "cut": "how an answer is cut from the model's text",
    "backend": "the frozen model, its prompt or its decoding",
    "split": "the split",
    "items": "the items",
    "pool": "how candidate pools are built",
}
"""What a difference in each condition means, in the words of the sentence that refuses a comparison."""


def conditions_of(
    context: Context, split: str, items: Sequence[ItemId], pools: Sequence[Pool]
) -> dict[str, Any]:
    """Everything that must be the same for two results to be comparable."""
    found: dict[str, Any] = {}
    for name in ("task", "task_version", "metric", "cut", "backend"):
        found[name] = context.values[name]
    found["split"] = split
    found["items"] = items_hash(items)
    builders = {pool.builder for pool in pools}
    found["pool"] = "+".join(sorted(builders))
    return found


def items_hash(items: Sequence[ItemId]) -> str:
    """A hash of the set of items."""
    content = "\n".join(sorted(items))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def require_same(names: Sequence[str], conditions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse results that were measured under different conditions, saying what differs."""
    first = conditions[0]
    for name, own in zip(names[1:], conditions[1:], strict=True):
        found = []
        for key, meaning in MEANINGS.items():
            one = first.get(key)
            other = own.get(key)
            if one != other:
                shown = f"{_show(one, other)} and {_show(other, one)}"
                found.append(f"{meaning} ({shown})")
        if found:
            raise EvaluationError(
                f"{names[0]} and {name} cannot be compared, because they differ in {'; in '.join(found)}. "
                "Evaluate both with the same [task], [pool] and [eval] settings"
            )


def require_unseen(queries: Sequence[Item], demonstrations: Sequence[Item]) -> None:
    """Refuse to evaluate on pictures or items that demonstrations show: the answer could be looked up."""
    items = set()
    images = set()
    for item in demonstrations:
        items.add(item.id)
        images.add(item.image_id)
    images.discard(None)
    seen = []
    for query in queries:
        if query.id in items or query.image_id in images:
            seen.append(query)
    if seen:
        raise EvaluationError(
            f"{len(seen)} of {len(queries)} evaluated items share their picture with a demonstration, such as "
            f"{seen[0].id}; split the task by picture, so that no picture is in two splits"
        )


def _show(value: Any, other: Any) -> str:
    """A value as text; of a table only the entries that differ from the other's."""
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return str(value)
    own = []
    for key, part in value.items():
        if other.get(key) != part:
            own.append(f"{key} {part}")
    return ", ".join(own) or "nothing"
