"""What does not go together in a recipe, what of it has no effect, and what it names that is not here.

Everything is known from the recipe alone, before a model is loaded or a call is paid for. What a single section knows of
itself its `problems` say, and with what a setting is read stands beside it (`data/settings.py` `setting`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import catalog
from leverplus.arms.settings import RECORDED
from leverplus.catalog import is_outside
from leverplus.data.rundir import shipped
from leverplus.data.settings import settings_of, show_value
from leverplus.errors import LeverError, UnknownName
from leverplus.learn.settings import LABEL_ONLY, GrpoConfig

if TYPE_CHECKING:
    from leverplus.run.recipe import Recipe

LABEL_TASKS = ("trec", "sst2", "labels")
"""Tasks whose answer is one of a fixed list of labels."""

TEXT_TASKS = (*LABEL_TASKS, "okvqa_captions")
"""Tasks whose items never have a picture."""

ONE_FILE_TASKS = ("jsonl", "labels")
"""Tasks that are one file, named in task.file; the others are a folder."""

WORLD_READS = 8
"""What the embedded world's model reads; its own constant stands in a module that loads torch."""


def shows_pictures(recipe: Recipe) -> bool:
    """Whether items may have pictures; of a task in a file of one's own nobody knows before it is read."""
    return recipe.task.name not in TEXT_TASKS and recipe.task.images != "none"


def embeds_pictures(recipe: Recipe) -> bool:
    """Whether items may have vectors of their own for pictures."""
    return shows_pictures(recipe) and recipe.embed.name not in ("sentence", "tfidf")


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Values that are allowed by themselves and together would end the run, often after calls were paid for."""
    yield from recipe.pool.problems()
    yield from recipe.model.problems(recipe.score.backend)
    for name, stage in recipe.stages.items():
        yield from stage.problems(f"{name}.")
        yield from _stage_contradictions(recipe, name)
    yield from _list_contradictions(recipe)
    yield from _world_contradictions(recipe)
    yield from _search_contradictions(recipe)
    yield from _budget_contradictions(recipe)
    yield from _arm_contradictions(recipe)
    yield from _reward_contradictions(recipe)
    yield from _picture_contradictions(recipe)
    if recipe.task.metric == "judge" and not recipe.judge.model:
        yield (
            'judge.model = "": task.metric = "judge" needs the model that judges, such as --set judge.model=URL#NAME'
        )


def _list_contradictions(recipe: Recipe) -> Iterator[str]:
    """Numbers of demonstrations and stages: none, one twice, or more than candidates and the selector allow."""
    shots = recipe.eval.shots
    dev_shots = recipe.score.dev_shots
    lists = {
        "eval.shots": shots,
        "score.dev_shots": dev_shots,
        "train.stages": recipe.train.stages,
    }
    for key, values in lists.items():
        if not values and key != "train.stages":
            yield f"{key} = []: must name at least one"
        elif len(set(values)) < len(values):
            yield f"{key} = {list(values)}: names one twice; each is done once"
    needs = {
        "eval.shots": max(shots, default=0),
        "score.dev_shots": max(dev_shots, default=0),
    }
    if recipe.score.search != "dense" and not recipe.score.groups:
        needs["score.shots"] = recipe.score.shots
    for key, most in needs.items():
        if recipe.pool.size < most:
            yield f"pool.size = {recipe.pool.size}: must be at least the largest of {key} = {most}"
        if recipe.select.max_shots < most:
            yield f"select.max_shots = {recipe.select.max_shots}: {key} asks for {most}"
        if recipe.score.backend == "world" and most > WORLD_READS:
            yield (
                f'score.backend = "world": its model reads at most {WORLD_READS} demonstrations; use no more in {key}'
            )


def _world_contradictions(recipe: Recipe) -> Iterator[str]:
    """The world's own model or embedder named for another task, whose items they cannot read."""
    named = (
        ("embed.name", recipe.embed.name, catalog.EMBEDDERS),
        ("score.backend", recipe.score.backend, catalog.BACKENDS),
    )
    for key, name, known in named:
        if name == "world" != recipe.task.name:
            others = " or ".join(other for other in known if other != "world")
            yield f'{key} = "world": reads the world alone; for task {recipe.task.name} use {others}'


def _arm_contradictions(recipe: Recipe) -> Iterator[str]:
    """Arms that are named and learnt from a pilot, where there is none: training would be paid for before anybody saw."""
    from leverplus.arms.spec import open_arm

    for spec in () if recipe.score.pilot else recipe.eval.arms:
        # an arm from outside is not imported to read a recipe; a name that is not understood is refused elsewhere
        with suppress(LeverError):
            if open_arm(spec, trusted=()).needs.pilot:
                yield (
                    f'eval.arms names "{spec}", which comes out of a pilot, and score.pilot = 0: name a number of training '
                    "queries for it (of `lever fit`: more --calls), or leave the arm out"
                )


def _search_contradictions(recipe: Recipe) -> Iterator[str]:
    score = recipe.score
    train = recipe.train
    first = recipe.stages.get(train.asking)
    if score.pilot and recipe.pool.kind == RECORDED:
        yield f"score.pilot = {score.pilot}: a recorded table cannot be asked; leave it out"
    if score.groups and (score.rounds or score.mine or score.draws_from_selector):
        yield (
            "score.groups replaces search: remove score.rounds, score.mine and draws of the selector"
        )
    if score.draws_from_selector and len(train.stages) < 2:
        yield (
            "score.search draws from the selector of the first stage: train.stages must name a second one that learns "
            "from them"
        )
    if score.rounds and (score.mine or score.search == "mixed"):
        yield (
            f"score.rounds = {score.rounds}: needs score.search = dense or beam, and score.mine = 0"
        )
    if first is not None and score.rounds >= max(1, first.epochs):
        yield (
            f"score.rounds = {score.rounds}: must be below {train.asking}.epochs = {first.epochs}, since a round is "
            "asked before an epoch other than the first"
        )
    if score.rounds and train.asking == "sft" and train.imitate == 1:
        yield (
            "train.imitate = 1: with score.rounds sft has nothing to weigh a list against; raise it to 2 or more"
        )
    if score.search != "mixed" or score.groups:
        return
    early = train.asking in train.stages[:1] or not score.draws_from_selector
    if early and not score.random + score.retrieved:
        yield (
            'score.search = "mixed": the first search has no source; set score.random or score.retrieved above 0'
        )
    if score.samples and not score.temperatures:
        yield (
            f"score.temperatures = []: score.samples = {score.samples} needs at least one"
        )


def _budget_contradictions(recipe: Recipe) -> Iterator[str]:
    score = recipe.score
    reserve = recipe.reserve()
    cost = score.cost(recipe.pool.size)
    if not recipe.stages:
        cost = 0  # nothing is asked for training but the pilot
    if score.budget < cost:
        yield (
            f"score.budget = {score.budget}: one training query costs {cost} calls; raise the budget, or lower "
            "score.beam, score.shots or pool.size"
        )
    elif score.budget - reserve < cost and not score.groups:
        pilot = ""
        if score.pilot:
            pilot = " and the pilot"
        yield (
            f"score.budget = {score.budget}: judging every epoch on dev{pilot} may take {reserve:,} calls, which leaves "
            f"none for training; raise score.budget above {reserve + cost:,}, or lower score.dev_queries, the number of "
            "score.dev_shots or of epochs"
        )


def _reward_contradictions(recipe: Recipe) -> Iterator[str]:
    reward = recipe.reward
    score = recipe.score
    weights = reward.component_weights
    modes = reward.modes
    if weights and len(weights) != len(modes):
        yield f"reward.component_weights = {list(weights)}: {len(weights)} weights for {list(modes)}"
    if "choice_prob" in modes and recipe.task.name not in LABEL_TASKS:
        yield (
            f'reward.mode = "choice_prob": the task {recipe.task.name} has no labels to choose from; use "gt_prob", or '
            f"one of the tasks {', '.join(LABEL_TASKS)}"
        )
    gains = "legacy" in modes and reward.alpha and reward.quality == "gain"
    if "hybrid" in modes or gains:
        if score.search == "mixed" and score.shots > 1 and not score.prefixes:
            yield "score.prefixes = false: the reward needs the score of every list without its last one"
        elif score.search == "mixed" and score.mine:
            yield f"score.mine = {score.mine}: mined lists come without the scores that the reward needs"


def _picture_contradictions(recipe: Recipe) -> Iterator[str]:
    """Pictures asked for where no item has a vector for its picture, or where the model cannot be shown one."""
    select = recipe.select
    pool = recipe.pool
    # of a file of one's own nobody knows yet whether it has pictures
    known = shows_pictures(recipe) and recipe.task.name != "jsonl"
    if recipe.score.backend == "openai" and recipe.model.prompt == "plain" and known:
        yield 'model.prompt = "plain": only a chat can show pictures to a server; use "chat"'
    if embeds_pictures(recipe):
        return
    why = f"embed.name = {show_value(recipe.embed.name)} and the task {recipe.task.name} give no vectors of pictures"
    if "image" in (*select.query_fields, *select.demo_fields):
        yield (
            f'select.query_fields and select.demo_fields name "image", but {why}; use query_fields = ["text"] and '
            'demo_fields = ["text", "answer"]'
        )
    shared = pool.kind in ("nearest_both", "mmr") and pool.text_weight < 1.0
    if pool.kind in ("nearest_image", "two_stage", "mix") or shared:
        yield (
            f'pool.kind = "{pool.kind}" compares pictures, but {why}; use "corpus" or "nearest_text", or '
            "pool.text_weight = 1"
        )


def _stage_contradictions(recipe: Recipe, name: str) -> Iterator[str]:
    stages = recipe.train.stages
    stage = recipe.stages[name]
    place = stages.index(name)
    before = stages[:place]
    behind = stages[place:]
    # these two numbers need held_out, which the stage checks
    known = ["reward"]
    for shots in recipe.score.dev_shots:
        known.append(f"reward@{shots}")
    if stage.monitor not in (*known, "loss", "group_reward"):
        yield (
            f"{name}.monitor = {show_value(stage.monitor)}: is not measured; allowed: {', '.join(known)}, loss"
        )
    rank = getattr(recipe.stages.get("sft"), "lora_rank", 0)
    parts = list(recipe.select.parts())
    if rank:
        parts.append("adapters")
    for part in stage.freeze:
        if part not in parts:
            yield (
                f"{name}.freeze: this selector has no part {show_value(part)}; it has {', '.join(parts)}"
            )
    if set(parts) <= set(stage.freeze):
        yield (
            f"{name}.freeze = {list(stage.freeze)}: names every part, so there is nothing to train"
        )
    if name == "sft" and rank and recipe.embed.name == "world":
        yield f'sft.lora_rank = {rank}: needs embed.name = "clip", "siglip" or "sentence"'
    if name == "sft" and rank and place:
        yield f"sft.lora_rank = {rank}: sft must be the first of train.stages"
    if name in LABEL_ONLY:
        alone = set(behind) <= set(LABEL_ONLY) and name != "contrastive"
        if alone or not set(before) <= set(LABEL_ONLY):
            yield (
                f"train.stages: {name} learns from labels alone, so that a later stage knows what to ask the model "
                "about: name one behind it that learns from answers, such as listwise, and none before it"
            )
    if isinstance(stage, GrpoConfig) and "sft" not in before and not recipe.train.start:
        for key in ("behaviour", "reference"):
            if getattr(stage, key) == "sft":
                yield f'{name}.{key} = "sft": no stage before {name} is sft; add one, or use another {key}'


def idle_settings(recipe: Recipe) -> dict[str, str]:
    """Every setting without effect in this recipe, given or not, by its key, with what switches it off."""
    found = {}
    for name, section in recipe.sections.items():
        for setting in settings_of(section):
            if why := _why_idle(recipe, name, setting.metadata["when"]):
                found[f"{name}.{setting.name}"] = why
    return found


def idle_given(recipe: Recipe) -> list[dict[str, Any]]:
    """The settings that somebody gave (in the file, through extends or by --set) although they have no effect."""
    found = []
    for key, why in idle_settings(recipe).items():
        if key in recipe.given:
            found.append({"key": key, "value": value_of(recipe, key), "why": why})
    return found


def value_of(recipe: Recipe, key: str) -> Any:
    """The value of a setting by its key, such as `pool.size`."""
    section, _, name = key.partition(".")
    return getattr(recipe.sections[section], name)


def _why_idle(recipe: Recipe, name: str, when: tuple[Any, ...]) -> str:
    """What keeps a setting of a section from being read; "" where it is read."""
    if not when:
        return ""
    key = when[0]
    if "." not in key:
        key = f"{name}.{key}"
    value = value_of(recipe, key)
    values = value if isinstance(value, tuple) else (value,)
    for one in values:
        # a part of one's own may read everything
        if one in when[1:] or (isinstance(one, str) and is_outside(one)):
            return ""
    if value and len(when) == 1:
        return ""
    return f"{key} = {show_value(value)} does not read it"


def missing_here(recipe: Recipe) -> list[str]:
    """Files, folders, variables and parts from outside that the recipe names and that are not there."""
    task = recipe.task
    score = recipe.score
    model = recipe.model
    found = []
    for key, kind, name in recipe.outside_parts():
        try:
            catalog.load(dict(catalog.KINDS)[kind], name, kind)
        except UnknownName as error:
            found.append(f"{key}: {error}")
    if task.name in ONE_FILE_TASKS and not task.file:
        found.append(
            "task.file: is not set; add --set task.file=FILE, see docs/own_data.md"
        )
    start = recipe.train.start
    if not Path(start).exists():
        start = start.rpartition(":")[0] or start  # of RUN:NAME
    paths: dict[str, str | Path] = {"score.groups": score.groups, "train.start": start}
    if task.name in ONE_FILE_TASKS and task.file:
        paths["task.file"] = shipped(task.file)
    if "task.folder" in recipe.given:
        paths["task.folder"] = task.folder
    if task.images != "none":
        paths["task.images"] = task.images
    for key, path in paths.items():
        if path and not Path(path).expanduser().exists():
            found.append(
                f'{key} = "{value_of(recipe, key)}": there is no such file or folder'
            )
    key_env = model.key_env
    if score.backend == "openai" and key_env and not os.environ.get(key_env):
        found.append(
            f'model.key_env = "{key_env}": this environment variable is not set; type `export {key_env}=...`'
        )
    return found
