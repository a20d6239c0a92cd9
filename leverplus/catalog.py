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

REWARDS: Table = {
    "hard_plus_soft": "leverplus.rewards:hard_plus_soft",
    "hard_plus_soft_v2": "leverplus.rewards:hard_plus_soft_v2",
    "separated": "leverplus.rewards:separated",
    "hard_only": "leverplus.rewards:hard_only",
    "soft_only": "leverplus.rewards:soft_only",
    "gt_prob": "leverplus.rewards:gt_prob",
    "hard_plus_gtprob": "leverplus.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob": "leverplus.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob_separated": "leverplus.rewards:hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel": "leverplus.rewards:hard_plus_gtprob_plus_rel",
    "legacy": "leverplus.rewards:legacy",
    "hybrid": "leverplus.rewards:hybrid",
    "rank": "leverplus.rewards:rank",
}
ADVANTAGES: Table = {
    "zscore": "leverplus.advantages:zscore",
    "rank": "leverplus.advantages:rank",
    "centred": "leverplus.advantages:centred",
    "leave_one_out": "leverplus.advantages:leave_one_out",
}
LOSSES: Table = {
    "cross_entropy": "leverplus.losses:cross_entropy",
    "rce": "leverplus.losses:rce",
    "ppo_clip": "leverplus.losses:ppo_clip",
    "listwise": "leverplus.losses:listwise",
    "pairwise": "leverplus.losses:pairwise",
}
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
