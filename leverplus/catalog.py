"""Every named part on one page: "name": "module:attribute", loaded when it is asked for.

Adding a part is its code, one row here and its cases in the mirrored test.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leverplus.errors import UnknownName

Table = Mapping[str, str]

REWARDS: Table = {}
ADVANTAGES: Table = {}
LOSSES: Table = {}
SAMPLERS: Table = {}
POLICIES: Table = {}
EMBEDDERS: Table = {}
BACKENDS: Table = {}
TASKS: Table = {}
STAGES: Table = {}
CHECKS: Table = {}


def load(table: Table, name: str, kind: str) -> Any:
    """The part called `name` from a table; an unknown name is answered with the nearest known one."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(table))}"
        raise UnknownName(f"there is no {kind} called '{name}'; {hint}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
