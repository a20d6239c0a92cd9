"""Which encoder a fit compares texts and pictures by: the one that was named, else what is at hand.

One of the user's own, `package.module:attribute`, is tried on a few items first: what it gives must be vectors before
anything is asked of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.catalog import is_outside
from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError, MissingFile, UnknownName
from leverplus.tasks.base import Task
from leverplus.types import ItemId

TRIED = 3
"""Items on which an encoder of the user's own is tried, the last of them a query."""

UNIT = 1e-3
"""How far the length of a unit vector may be from 1: half precision rounds by less."""

Say = Callable[[str], None]


def choose_encoder(named: str | None, task: Task, say: Say, *, shown: bool) -> tuple[dict[str, Any], bool]:
    """The [embed] section and whether the encoder sees the pictures of the items; `shown`: they have some."""
    from leverplus.embedders.cached import open_embedder
    from leverplus.recipe.sections import EmbedSection

    if task.name == "world":
        return {"name": "world"}, True
    if named is not None:
        own = is_outside(named)
        section = {"name": named} if own else _shipped_encoder(named)
        sees = _try_own(named, task) if own else section["name"] in ("clip", "siglip")
        say(f"rule: vectors by {named}" + ("" if sees or not shown else ", which reads texts alone"))
        return section, sees and shown
    if shown:
        try:
            open_embedder(EmbedSection(name="clip"), Path())
            say("rule: vectors of pictures and texts by clip")
            return {"name": "clip"}, True
        except (MissingFile, LeverError) as error:
            say(
                f"rule: pictures are not compared, only their questions, because no CLIP is at hand ({error}); "
                "name a vision encoder with --embed FOLDER"
            )
    say("rule: vectors of the texts by a sentence encoder (MiniLM)")
    return {"name": "sentence"}, False


def _shipped_encoder(name: str) -> dict[str, Any]:
    """`clip`, `siglip`, `sentence`, a file of kept vectors, or a model's folder or name, told apart by its config."""
    if name in ("clip", "siglip", "sentence"):
        return {"name": name}
    if name.endswith(".npz"):
        return {"name": "stored", "model": name}
    from leverplus.embedders.pretrained import locate
    from leverplus.parsing import parse_json

    config = Path(locate(name), "config.json")
    kind = str(parse_json(config.read_bytes()).get("model_type", "")) if config.is_file() else ""
    family = "sentence"
    if kind == "clip":
        family = "clip"
    elif kind.startswith("siglip"):  # siglip and siglip2
        family = "siglip"
    return {"name": family, "model": name}


def _try_own(name: str, task: Task) -> bool:
    """Embed a few items by an encoder of the user's own; whether it sees pictures. Every mistake is one sentence."""
    from leverplus.embedders.cached import open_embedder
    from leverplus.recipe.sections import EmbedSection

    items = list(task.items("train"))[: TRIED - 1]
    items.append(replace(items[0], id=ItemId("query"), answers=()))  # what a bundle is asked has no answers
    try:
        embedder: Any = open_embedder(EmbedSection(name=name), Path())
        alone = embedder.uncached() if hasattr(embedder, "uncached") else embedder
        marks, vectors = embedder.fingerprint(), alone.embed(items, task)
    except UnknownName:
        raise
    except Exception as error:  # whatever a user's file does
        raise LeverError(
            f"--embed {name} fails on {len(items)} items, of which the last is a query without answers "
            f"({type(error).__name__}: {error}); docs/howto/parts.md has one that works"
        ) from error
    if wrong := _wrong(marks, vectors, len(items)):
        raise LeverError(f"--embed {name} {wrong}; docs/howto/parts.md has one that works")
    return vectors.image is not None


def _wrong(marks: Any, vectors: Any, count: int) -> str:
    """What is wrong with a fingerprint or with the vectors of so many items; "": nothing."""
    if not isinstance(marks, Mapping) or not marks or not all(isinstance(own, str) for own in marks.values()):
        return "has no fingerprint(): a mapping of texts that names it and what changes its vectors"
    if not isinstance(vectors, Vectors):
        return f"embeds items as {type(vectors).__name__} instead of leverplus.embedders.base.Vectors"
    for field in ("text", "answer", "image"):
        block = getattr(vectors, field)
        if block is None and field == "image":
            continue
        rows = np.asarray(block)
        if rows.ndim != 2 or len(rows) != count or not np.issubdtype(rows.dtype, np.floating):
            return f"gives {field} vectors of shape {rows.shape} and kind {rows.dtype} for {count} items"
        length = np.linalg.norm(rows, axis=1)
        allowed = (abs(length - 1.0) <= UNIT) | ((length == 0.0) & (field == "answer"))
        if not np.isfinite(rows).all() or not allowed.all():
            return f"gives {field} vectors that are no unit vectors (one has length {length[~allowed][:1].sum():.3g})"
    return ""
