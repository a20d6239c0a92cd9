"""The plan of a training: for every stage of a recipe, where its rows come from and what must happen before it."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus.learn.settings import LABEL_ONLY, StageConfig
from leverplus.run.recipe import Recipe

LABELS, SEARCH, ROUNDS, ASKED = "labels", "search", "rounds", "asked"
"""Where rows come from: labels alone; the searched groups; the searched groups and rounds of asking while the stage
trains; everything that was searched and asked before the stage began."""


@dataclass(frozen=True)
class StagePlan:
    """What one stage will do: its settings, where its rows come from, what must happen before it."""

    name: str
    config: StageConfig
    rows: str
    searches: bool
    """Whether the model is asked for groups before this stage."""
    draws: bool
    """Whether some of the searched lists are drawn from the selector that the stages before it have trained."""
    preflight: bool
    """Whether the doctor looks at the rows before the first step: those of the first stage that uses answers."""


def plan_stages(recipe: Recipe) -> list[StagePlan]:
    """One plan per stage, in the order in which they run.

    Groups are searched before the first stage that learns from the model's answers. Where lists are drawn from the
    selector, a search before the first of all stages has none to draw from, so the second stage searches again.
    """
    found = []
    for place, (name, config) in enumerate(recipe.stages.items()):
        first_to_ask = name == recipe.train.asking
        draws = recipe.score.draws_from_selector and place > 0
        if name in LABEL_ONLY:
            rows = LABELS
        elif recipe.score.rounds:
            rows = ROUNDS if first_to_ask else ASKED
        else:
            rows = SEARCH
        searches = first_to_ask or (draws and place == 1)
        found.append(
            StagePlan(name, config, rows, searches, draws, preflight=first_to_ask)
        )
    return found
