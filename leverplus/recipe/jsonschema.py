"""The JSON schema of recipes: editors complete keys, show their documentation and mark values that are not allowed."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from leverplus.recipe.recipe import PLAIN, TEXTS
from leverplus.recipe.selection import PolicyConfig
from leverplus.recipe.training import SECTIONS as STAGE_SECTIONS

NAMES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def recipe_sections() -> dict[str, Any]:
    """The settings of every section of a recipe, by the section's name."""
    return {**PLAIN, "select": PolicyConfig, **STAGE_SECTIONS}


def recipe_schema() -> dict[str, Any]:
    """The whole schema (draft 2020-12): one object per section; TOML files are checked by it like JSON ones."""
    sections = recipe_sections()
    texts = {name: {"type": "string"} for name in (*TEXTS, "extends")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of Lever-Plus",
        "type": "object",
        "properties": {**texts, **{name: section_schema(cls) for name, cls in sections.items()}},
        "additionalProperties": False,
    }


def section_schema(cls: Any) -> dict[str, Any]:
    """The keys of one section with their types, allowed values and documentation."""
    hints = typing.get_type_hints(cls)
    keys = {field.name: _value(hints[field.name], field) for field in dataclasses.fields(cls)}
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _value(hint: Any, field: dataclasses.Field[Any]) -> dict[str, Any]:
    about, default = field.metadata, field.default
    found: dict[str, Any] = {"description": about.get("doc", "")}
    if default is not dataclasses.MISSING and default is not None:
        found["default"] = list(default) if isinstance(default, tuple) else default
    inner = hint
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = next(member for member in typing.get_args(hint) if member is not type(None))
    if typing.get_origin(inner) is tuple:
        return {**found, "type": "array", "items": _limits(typing.get_args(inner)[0], about)}
    return {**found, **_limits(inner, about)}


def _limits(kind: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """Type, choices and range of one value."""
    found: dict[str, Any] = {"type": NAMES[kind]}
    choices = about.get("choices")
    if choices is not None:
        found["enum"] = list(choices() if callable(choices) else choices)
    words = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum"}
    return {**found, **{word: about[key] for key, word in words.items() if about.get(key) is not None}}
