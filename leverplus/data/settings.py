"""A recipe section is a frozen dataclass of settings; reading one reports every problem, with key and allowed values.

A setting carries its documentation, its allowed values or range, and what it is read with. Types allowed in sections:
bool, int, float, str, tuples of these, and `X | None`. Sections are plain values: the same object is built from TOML,
from `--set key=value` and in a test.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from leverplus.catalog import is_outside

SectionT = TypeVar("SectionT")
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def setting(
    default: Any,
    doc: str,
    *,
    choices: Collection[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    mistakes: Sequence[Any] = (),
    part: str = "",
    when: Sequence[Any] = (),
) -> Any:
    """A field of a section: default, one line of documentation and what values are allowed.

    `choices` may be a table of the catalog. `low` and `high`
    are inclusive, `above` exclusive. `mistakes` lists values that reproduce a known mistake on purpose: allowed, never
    a default, and named as such when the recipe is checked. `part` is the kind of part that the value names
    ("reward"): then `package.module:attribute` is allowed beside the choices. `when` says with which other setting the
    value is read: its key ("kind", or "score.backend" of another section), then the values of it, none for any that is
    not empty, false or 0.
    """
    metadata = {
        "doc": doc,
        "choices": choices,
        "low": low,
        "high": high,
        "above": above,
        "mistakes": mistakes,
        "part": part,
        "when": when,
    }
    return dataclasses.field(default=default, metadata=metadata)


def read_section(
    cls: type[SectionT], values: Mapping[str, Any], prefix: str, problems: list[str]
) -> SectionT | None:
    """Build a section from a mapping; every problem is appended to `problems` with its key and what is allowed."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in settings_of(cls)}
    before = len(problems)
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            hint = nearest(key, fields, prefix)
            problems.append(f"{prefix}{key}: there is no such key; {hint}")
            continue
        try:
            kept[key] = check_value(value, hints[key], fields[key].metadata)
        except ValueError as error:
            problems.append(f"{prefix}{key} = {show_value(value)}: {error}")
    if len(problems) > before:
        return None
    return cls(**kept)


def nearest(name: str, known: Mapping[str, Any], prefix: str = "") -> str:
    """What was probably meant, else all that is known."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean '{prefix}{near[0]}'?"
    return f"known keys: {', '.join(known)}"


def settings_of(section: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The settings of a section, or of its class."""
    return dataclasses.fields(section)


def check_value(value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The value as its declared type; ValueError with a sentence when it is not allowed."""
    members = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError("must be a list, for example [1, 2]")
        return tuple(check_value(part, members[0], metadata) for part in value)
    if members:  # X | None
        if value is None or value == "none":
            return None
        hint = members[0]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"must be {KINDS[hint]}")
    if metadata["part"] and is_outside(value):
        return value  # whether it can be imported is asked where it is used, and by `lever check`
    allowed = metadata["choices"]
    if allowed is not None and value not in allowed:
        listed = ", ".join(map(show_value, allowed))
        if metadata["part"]:
            listed += ", or package.module:attribute"
        near = difflib.get_close_matches(str(value), list(map(str, allowed)), n=1)
        if near:
            listed += f" (did you mean '{near[0]}'?)"
        raise ValueError(f"allowed: {listed}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(value, metadata["low"], metadata["high"], metadata["above"])
    return value


def _check_range(
    value: float, low: float | None, high: float | None, above: float | None
) -> None:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    bounds = []
    holds = True
    if low is not None:
        holds = value >= low
        bounds.append(f"at least {low}")
    if above is not None:
        holds = holds and value > above
        bounds.append(f"above {above}")
    if high is not None:
        holds = holds and value <= high
        bounds.append(f"at most {high}")
    if not holds:
        raise ValueError("must be " + " and ".join(bounds))


def plain_settings(section: Any) -> dict[str, Any]:
    """All settings of a section as plain values."""
    found = {}
    for field in settings_of(section):
        value = getattr(section, field.name)
        if isinstance(value, tuple):
            value = list(value)
        found[field.name] = value
    return found


def hashed_settings(section: Any) -> dict[str, Any]:
    """The settings of a section that a recipe's hash covers: those that differ from their defaults.

    A setting that is added changes no hash, so that results and run folders of before it are still recognised.
    """
    values = plain_settings(section)
    found = {}
    for field in settings_of(section):
        if getattr(section, field.name) != field.default:
            found[field.name] = values[field.name]
    return found


def outside_parts(section: Any, prefix: str) -> list[tuple[str, str, str]]:
    """Parts of somebody else that a section names: key, kind and `package.module:attribute`."""
    found = []
    for field in settings_of(section):
        kind = field.metadata["part"]
        names = getattr(section, field.name)
        if not isinstance(names, tuple):
            names = (names,)
        for name in names:
            if kind and is_outside(name):
                found.append((f"{prefix}{field.name}", kind, name))
    return found


def known_mistakes_in(section: Any, prefix: str) -> list[str]:
    """Which settings of a section reproduce a known mistake on purpose."""
    found = []
    for field in settings_of(section):
        value = getattr(section, field.name)
        if value in field.metadata["mistakes"]:
            found.append(f"{prefix}{field.name} = {show_value(value)}")
    return found


def show_value(value: Any) -> str:
    """A value as it is written in a recipe."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
