"""A recipe section is a frozen dataclass of settings; reading one reports every problem, with key and allowed values.

A setting carries its documentation, its allowed values or range. Types allowed in sections: bool, int, float, str,
tuples of these, and `X | None`. Sections are plain values: the same object is built from TOML, from `--set key=value`
and in a test.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from leverplus.catalog import is_outside

SectionT = TypeVar("SectionT")


def setting(
    default: Any,
    doc: str,
    *,
    choices: Sequence[Any] | Callable[[], Sequence[Any]] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    mistakes: Sequence[Any] = (),
    since: str = "",
    part: str = "",
) -> Any:
    """A field of a section: default, one line of documentation and what values are allowed.

    `choices` may be a function, so that a table of the catalog is read when the recipe is checked. `low` and `high`
    are inclusive, `above` exclusive. `mistakes` lists values that reproduce a known mistake on purpose: allowed, never
    a default, and named as such when the recipe is checked. `since` is the version that added the setting, "" for the
    first one; it is for readers, see `hashed_settings`. `part` is the kind of part that
    the value names ("reward"): then `package.module:attribute` is allowed beside the choices.
    """
    metadata = {
        "doc": doc,
        "choices": choices,
        "low": low,
        "high": high,
        "above": above,
        "mistakes": tuple(mistakes),
        "since": since,
        "part": part,
    }
    return dataclasses.field(default=default, metadata=metadata)


def read_section(cls: type[SectionT], values: Mapping[str, Any], prefix: str, problems: list[str]) -> SectionT | None:
    """Build a section from a mapping; every problem is appended to `problems` with its key and what is allowed."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    before = len(problems)
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known keys: {', '.join(fields)}"
            problems.append(f"{prefix}{key}: there is no such key; {hint}")
            continue
        try:
            kept[key] = check_value(value, hints[key], fields[key].metadata)
        except ValueError as error:
            problems.append(f"{prefix}{key} = {show_value(value)}: {error}")
    return cls(**kept) if len(problems) == before else None


def check_value(value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The value as its declared type; ValueError with a sentence when it is not allowed."""
    value = _coerce(value, hint)
    allowed = metadata.get("choices")
    if callable(allowed):
        allowed = allowed()
    for part in value if isinstance(value, tuple) else (value,):
        if part is None:
            continue
        if metadata.get("part") and isinstance(part, str) and is_outside(part):
            continue  # whether it can be imported is asked where it is used, and by `lever check`
        if allowed is not None and part not in allowed:
            near = difflib.get_close_matches(str(part), [str(a) for a in allowed], n=1)
            hint_text = f" (did you mean '{near[0]}'?)" if near else ""
            own = ", or package.module:attribute" if metadata.get("part") else ""
            raise ValueError(f"allowed: {', '.join(show_value(a) for a in allowed)}{own}{hint_text}")
        _check_range(part, metadata)
    return value


def _check_range(value: Any, metadata: Mapping[str, Any]) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    low, high, above = metadata.get("low"), metadata.get("high"), metadata.get("above")
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        parts = [
            f"at least {low}" if low is not None else "",
            f"above {above}" if above is not None else "",
            f"at most {high}" if high is not None else "",
        ]
        raise ValueError("must be " + " and ".join(part for part in parts if part))


def _coerce(value: Any, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        members = typing.get_args(hint)
        if (value is None or value == "none") and type(None) in members:
            return None
        inner = [member for member in members if member is not type(None)]
        return _coerce(value, inner[0])
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be a list, for example [1, 2]")
        inner_hint = typing.get_args(hint)[0]
        return tuple(_coerce(part, inner_hint) for part in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise ValueError(f"must be {names.get(hint, hint)}")
    return value


@cache
def _first_version() -> Mapping[str, Sequence[str]]:
    text = resources.files("leverplus.recipe").joinpath("first_version.json").read_text(encoding="utf-8")
    names: dict[str, list[str]] = json.loads(text)
    return names


def first_settings(cls: type) -> Sequence[str] | None:
    """The settings that a section had in the first version; None for a class that is no section of a recipe."""
    known = _first_version()
    for base in cls.__mro__:  # the class itself first; a test may watch a section through a class of its own
        if base.__name__ in known:
            return known[base.__name__]
    return None


def hashed_settings(section: Any) -> dict[str, Any]:
    """The settings of a section that a recipe's hash covers.

    Those of the first version always count, every other one while it differs from its default: a setting that is added
    changes no hash, so that results and run folders of before it are still recognised, and nobody has to think of it.
    """
    first = first_settings(type(section))
    return {
        field.name: _as_json(getattr(section, field.name))
        for field in dataclasses.fields(section)
        if first is None or field.name in first or getattr(section, field.name) != field.default
    }


def plain_settings(section: Any) -> dict[str, Any]:
    """All settings of a section as plain values."""
    return {field.name: _as_json(getattr(section, field.name)) for field in dataclasses.fields(section)}


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def outside_parts(section: Any, prefix: str) -> list[tuple[str, str, str]]:
    """Parts of somebody else that a section names: key, kind and `package.module:attribute`."""
    found = []
    for field in dataclasses.fields(section):
        kind, value = field.metadata.get("part"), getattr(section, field.name)
        for name in value if isinstance(value, tuple) else (value,):
            if kind and is_outside(name):
                found.append((f"{prefix}{field.name}", kind, name))
    return found


def known_mistakes_in(section: Any, prefix: str) -> list[str]:
    """Which settings of a section reproduce a known mistake on purpose."""
    found = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if value in field.metadata.get("mistakes", ()):
            found.append(f"{prefix}{field.name} = {show_value(value)}")
    return found


def show_value(value: Any) -> str:
    """A value as it is written in a recipe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
