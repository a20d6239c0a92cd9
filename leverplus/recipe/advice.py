"""What `lever check` says beyond the recipe itself: what is missing on this machine, and what is recommended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus.catalog import KINDS, load
from leverplus.errors import UnknownName
from leverplus.recipe.idle import LABEL_TASKS, ONE_FILE_TASKS, shows_pictures
from leverplus.recipe.training import GrpoConfig
from leverplus.rundir import shipped

if TYPE_CHECKING:
    from leverplus.recipe.recipe import Recipe


def unused_ends(recipe: Recipe) -> list[str]:
    """Lists of values by shots or by epoch that are longer than anything they are read for."""
    score, found = recipe.score, []
    longest = score.shots
    if score.groups:
        longest = recipe.select.max_shots  # imported lists may be as long as the selector takes
    elif score.search == "dense":
        longest = 1
    if score.rounds:
        longest = max(longest, score.depth)
    for key in ("hard_by_shots", "soft_by_shots"):
        values = getattr(recipe.reward, key)
        if len(values) > longest:
            found.append(
                f"reward.{key} has {len(values)} factors, but no list that is learnt from has more than {longest} "
                f"demonstration{'s' if longest > 1 else ''}: the others are never used"
            )
    grpo = recipe.stages.get("grpo")
    if isinstance(grpo, GrpoConfig) and len(grpo.top_k) > grpo.epochs:
        found.append(
            f"grpo.top_k has {len(grpo.top_k)} values for grpo.epochs = {grpo.epochs}: the others are not used"
        )
    return found


METHOD = ("train.stages", "score.search", "score.rounds")
"""Settings that say how is learnt; a recipe that gives none of them learns by the bare defaults."""


def missing_here(recipe: Recipe) -> list[str]:
    """Files, folders, variables and parts from outside that the recipe names and that are not there."""
    task, score, model = recipe.task, recipe.score, recipe.model
    found = []
    for key, kind, name in recipe.outside_parts():
        try:
            load(dict(KINDS)[kind], name, kind)
        except UnknownName as error:
            found.append(f"{key}: {error}")
    if task.name in ONE_FILE_TASKS:
        if not task.file:
            found.append("task.file: is not set; add --set task.file=FILE, see docs/own_data.md")
        elif not shipped(task.file).is_file():
            found.append(f'task.file = "{task.file}": there is no such file')
    elif "task.folder" in recipe.given and not Path(task.folder).expanduser().is_dir():
        found.append(f'task.folder = "{task.folder}": there is no such folder')
    if task.images not in ("", "none") and not Path(task.images).expanduser().is_dir():
        found.append(f'task.images = "{task.images}": there is no such folder')
    if score.groups and not Path(score.groups).expanduser().exists():
        found.append(f'score.groups = "{score.groups}": there is no such folder; `lever import` makes one')
    start = recipe.train.start
    run = start.rpartition(":")[0]  # of RUN:NAME
    if start and not any(Path(place).expanduser().exists() for place in (start, run) if place):
        found.append(
            f'train.start = "{start}": there is no such checkpoint; give a checkpoint folder, a run folder, RUN:NAME, '
            "or a .pt or .ckpt file"
        )
    if score.backend == "openai" and model.key_env and not os.environ.get(model.key_env):
        found.append(
            f'model.key_env = "{model.key_env}": this environment variable is not set; type `export '
            f"{model.key_env}=...`"
        )
    return found


def recommendation(recipe: Recipe) -> list[str]:
    """The recipe that is recommended, where nobody said how to learn; the bare defaults are not the best method."""
    if set(METHOD) & recipe.given:
        return []
    if recipe.task.name == "world":
        name = "best_8k"
    else:
        name = "own_labels" if recipe.task.name in LABEL_TASKS or not shows_pictures(recipe) else "own_pictures"
    return [
        "train.stages, score.search and score.rounds are not given: the defaults (imitation of beam search, "
        f'{recipe.score.budget:,} calls) are not the recommended method; start from it with `extends = "{name}"`, '
        f"or read `lever recipes {name}`"
    ]
