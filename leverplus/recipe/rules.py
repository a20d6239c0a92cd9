"""What does not go together in a recipe: contradictions of sections, and values that would fail later in a run.

Everything here is known from the recipe alone, before a model is loaded or a call is paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leverplus import catalog
from leverplus.recipe.idle import LABEL_TASKS, embeds_pictures, one_label_rows, reward_modes, shows_pictures
from leverplus.recipe.pools import RECORDED
from leverplus.recipe.schema import show_value
from leverplus.recipe.training import LABEL_ONLY, GrpoConfig, StageConfig

if TYPE_CHECKING:
    from leverplus.recipe.recipe import Recipe

GRADED_TASKS = ("coco_captions",)
"""Tasks whose metric grades how near an answer came, so that labels of other questions say little of it."""

WORLD_READS = 8
"""As `leverplus.world.model.MAX_DEMOS`, whose import would load torch."""


def failures(recipe: Recipe) -> list[str]:
    """Values that are allowed by themselves and would end the run later, often after calls were paid for."""
    found = _reward_failures(recipe) + _search_failures(recipe) + _picture_failures(recipe)
    for name, stage in recipe.stages.items():
        found += _stage_failures(recipe, name, stage)
    if not recipe.score.groups:
        reserve = recipe.reserve()
        left = recipe.score.budget - reserve
        cost = recipe.score.cost(recipe.pool.size)
        pilot = " and the pilot" if recipe.score.pilot else ""
        if left < cost <= recipe.score.budget:
            found.append(
                f"score.budget = {recipe.score.budget}: judging every epoch on dev{pilot} may take {reserve:,} "
                f"calls, which leaves none for training; raise score.budget above {reserve + cost:,}, or "
                "lower score.dev_queries, the number of score.dev_shots or of epochs"
            )
    return found


def _reward_failures(recipe: Recipe) -> list[str]:
    reward, modes, score = recipe.reward, reward_modes(recipe), recipe.score
    found = []
    weights = reward.component_weights
    if weights and len(weights) != len(modes):
        needs = f"reward.components names {len(modes)}" if reward.components else "there are no reward.components"
        found.append(f"reward.component_weights = {list(weights)}: {len(weights)} weights, but {needs}")
    if "choice_prob" in modes and recipe.task.name not in LABEL_TASKS:
        found.append(
            f'{_reward_key(recipe)} "choice_prob": the task {recipe.task.name} has no labels to choose from; '
            f'use "gt_prob", or one of the tasks {", ".join(LABEL_TASKS)}'
        )
    if "expected_accuracy" in modes:
        found += _ungraded(recipe)
    needs_prefix = "hybrid" in modes or ("legacy" in modes and reward.alpha and reward.quality == "gain")
    if needs_prefix and score.search == "mixed" and score.shots > 1 and not score.groups:
        if not score.prefixes:
            found.append("score.prefixes = false: the reward needs the score of every list without its last one")
        elif score.mine:
            found.append(f"score.mine = {score.mine}: mined lists come without the scores that the reward needs")
    return found


def _reward_key(recipe: Recipe) -> str:
    """Where a recipe names its reward: `reward.mode =`, or among several."""
    return "reward.components:" if recipe.reward.components else "reward.mode ="


def _ungraded(recipe: Recipe) -> list[str]:
    """expected_accuracy with a metric under which an answer that nobody gave still scores."""
    from leverplus.metrics import MATCHING

    task = recipe.task
    if task.name in GRADED_TASKS:
        metric = f"the metric of {task.name}"
    elif task.name == "jsonl" and task.metric not in ("auto", *MATCHING):
        metric = f'task.metric = "{task.metric}"'
    else:
        return []
    return [
        f'{_reward_key(recipe)} "expected_accuracy": {metric} grades how near an answer came; '
        'use "soft_only" or "gt_prob"'
    ]


def _search_failures(recipe: Recipe) -> list[str]:
    score, select = recipe.score, recipe.select
    found = []
    if not score.tiers:
        found.append("score.tiers = []: no group would be kept; name at least one")
    if score.pilot and recipe.pool.kind == RECORDED:
        found.append(f"score.pilot = {score.pilot}: a recorded table cannot be asked; `lever plan TABLE` reads one")
    if score.groups:
        return found
    if score.search != "dense" and score.shots > select.max_shots:
        found.append(f"select.max_shots = {select.max_shots}: score.shots = {score.shots} searches longer lists")
    if score.rounds and score.depth > min(select.max_shots, recipe.pool.size):
        found.append(f"score.depth = {score.depth}: must be at most select.max_shots and pool.size")
    if score.rounds and recipe.train.asking == "sft" and one_label_rows(recipe):
        found.append(
            "train.imitate = 1: with score.rounds sft has nothing to weigh a list against; raise it to 2 or more"
        )
    if score.search == "mixed":
        early = recipe.train.asking == recipe.train.stages[0] or not score.draws_from_selector
        if early and not score.random + score.retrieved:
            found.append(
                'score.search = "mixed": the first search has no source; set score.random or score.retrieved above 0'
            )
        if score.samples and not score.temperatures:
            found.append(f"score.temperatures = []: score.samples = {score.samples} needs at least one")
    return found


def _picture_failures(recipe: Recipe) -> list[str]:
    """Pictures asked for where no item has a vector for its picture."""
    found = []
    plain_server = recipe.score.backend == "openai" and recipe.model.prompt == "plain"
    # of a file of one's own nobody knows yet whether it has pictures
    if plain_server and shows_pictures(recipe) and recipe.task.name != "jsonl":
        found.append('model.prompt = "plain": only a chat can show pictures to a server; use "chat"')
    if embeds_pictures(recipe):
        return found
    select, pool = recipe.select, recipe.pool
    if recipe.embed.mean:
        why = "embed.mean = true makes one vector of picture and question"
    elif shows_pictures(recipe):
        why = 'embed.name = "sentence" embeds no pictures'
    elif recipe.task.images != "none":
        why = f"the items of {recipe.task.name} have no pictures"
    else:
        why = 'task.images = "none"'
    if "image" in (*select.query_fields, *select.demo_fields):
        found.append(
            f'select.query_fields and select.demo_fields name "image", but {why}; '
            'use query_fields = ["text"] and demo_fields = ["text", "answer"]'
        )
    compares = (
        pool.kind in ("nearest_image", "two_stage")
        or (pool.kind in ("nearest_both", "mmr") and pool.text_weight < 1.0)
        or (pool.kind == "mix" and pool.mix_image > 0.0)
    )
    if compares:
        found.append(
            f'pool.kind = "{pool.kind}" compares pictures, but {why}; use "corpus" or "nearest_text", or '
            "pool.text_weight = 1 and pool.mix_image = 0"
        )
    return found


def _stage_failures(recipe: Recipe, name: str, stage: StageConfig) -> list[str]:
    known = ("reward", *(f"reward@{shots}" for shots in recipe.score.dev_shots))
    found = []
    if stage.monitor not in (*known, "loss", "group_reward"):  # these two need held_out, which the stage checks
        found.append(
            f"{name}.monitor = {show_value(stage.monitor)}: is not measured; allowed: {', '.join(known)}, loss"
        )
    adapted = getattr(recipe.stages.get("sft"), "lora_rank", 0) > 0
    parts = (*recipe.select.parts(), *(("adapters",) if adapted else ()))
    for part in stage.freeze:
        if part not in parts:
            found.append(f"{name}.freeze: this selector has no part {show_value(part)}; it has {', '.join(parts)}")
    if set(parts) <= set(stage.freeze):
        found.append(f"{name}.freeze = {list(stage.freeze)}: names every part, so there is nothing to train")
    if isinstance(stage, GrpoConfig):
        before = recipe.train.stages[: recipe.train.stages.index(name)]
        for key in ("behaviour", "reference"):
            if getattr(stage, key) == "sft" and "sft" not in before and not recipe.train.start:
                found.append(f'{name}.{key} = "sft": no stage before {name} is sft; add one, or use another {key}')
    return found


def contradictions(sections: Mapping[str, Any], stages: Mapping[str, StageConfig | None]) -> list[str]:
    """Values that are allowed one by one but not together; sections that could not be read are None."""
    found = _section_contradictions(sections) + _idle_rounds(sections, stages) + _late_labels(sections)
    for key, stage in stages.items():
        found += stage.problems(f"{key}.") if stage else []
    return found + _adapter_problems(sections, stages)


def _section_contradictions(sections: Mapping[str, Any]) -> list[str]:
    pool, score, evaluation, select = (sections[key] for key in ("pool", "score", "eval", "select"))
    found = _list_problems(sections) + (pool.problems() if pool else [])
    if sections["model"] and score:
        found.extend(sections["model"].problems(score.backend))
    found += sections["embed"].problems() if sections["embed"] else []
    found += _world_for_others(sections)
    eval_shots = max(evaluation.shots, default=0) if evaluation else 0
    dev_shots = max(score.dev_shots, default=0) if score else 0
    if pool and pool.size < eval_shots:
        found.append(f"pool.size = {pool.size}: must be at least the largest of eval.shots = {eval_shots}")
    if pool and score and pool.size < max(score.shots, dev_shots):
        found.append(f"pool.size = {pool.size}: must be at least score.shots and every one of score.dev_shots")
    if score and score.backend == "world" and max(score.shots, dev_shots, eval_shots) > WORLD_READS:
        found.append(
            f'score.backend = "world": its model reads at most {WORLD_READS} demonstrations; use no more in eval.shots'
        )
    if select and select.max_shots < eval_shots:
        found.append(f"select.max_shots = {select.max_shots}: eval.shots asks for {eval_shots}")
    if select and select.max_shots < dev_shots:
        found.append(f"select.max_shots = {select.max_shots}: score.dev_shots asks for {dev_shots}")
    train = sections["train"]
    if score and train and score.draws_from_selector and len(train.stages) < 2:
        found.append(
            "score.samples, score.stochastic and score.selector_beams draw from the selector of the first stage: "
            "train.stages must name a second one that learns from them"
        )
    if score and score.groups and (score.rounds or score.mine or score.draws_from_selector):
        found.append(
            "score.groups: nothing is searched then, so score.rounds, score.mine and draws of the selector idle"
        )
    if score and score.rounds and (score.mine or score.search == "mixed"):
        found.append(f"score.rounds = {score.rounds}: needs score.search = dense or beam, and score.mine = 0")
    if pool and score and score.budget < score.cost(pool.size):
        found.append(
            f"score.budget = {score.budget}: one training query costs {score.cost(pool.size)} calls; "
            "raise the budget, or lower score.beam, score.shots or pool.size"
        )
    return found


def _world_for_others(sections: Mapping[str, Any]) -> list[str]:
    """The world's own model or embedder named for another task, whose items they cannot read."""
    task, embed, score = (sections[key] for key in ("task", "embed", "score"))
    if not task or task.name == "world":
        return []
    named = (
        ("embed.name", embed and embed.name, catalog.EMBEDDERS),
        ("score.backend", score and score.backend, catalog.BACKENDS),
    )
    found = []
    for key, name, known in named:
        if name == "world":
            others = " or ".join(other for other in known if other != "world")
            found.append(f'{key} = "world": reads the world alone; for task {task.name} use {others}')
    return found


def _idle_rounds(sections: Mapping[str, Any], stages: Mapping[str, StageConfig | None]) -> list[str]:
    """Rounds of active learning that no epoch would follow."""
    score, train = sections["score"], sections["train"]
    first = stages.get(train.asking) if train and train.asking else None
    if score and first and score.rounds and score.rounds >= first.epochs:
        return [
            f"score.rounds = {score.rounds}: must be below {train.asking}.epochs = {first.epochs}, "
            "since a round is asked before an epoch other than the first"
        ]
    return []


def _late_labels(sections: Mapping[str, Any]) -> list[str]:
    """Stages that learn from labels and have no stage behind them that learns from the model, or one before them."""
    stages = sections["train"].stages if sections["train"] else ()
    found = []
    for place, name in enumerate(stages):
        before = set(stages[:place]) - set(LABEL_ONLY)
        behind = set(stages[place:]) - set(LABEL_ONLY)
        if name in LABEL_ONLY and (before or not behind):
            found.append(
                f"train.stages: {name} learns from labels alone, so that a later stage knows what to ask the model "
                "about: name one behind it that learns from answers, such as listwise, and none before it"
            )
    return found


def _adapter_problems(sections: Mapping[str, Any], stages: Mapping[str, StageConfig | None]) -> list[str]:
    """Adapters where there is nothing to adapt, or that come after a stage that trained without them."""
    embed, train, sft = sections["embed"], sections["train"], stages.get("sft")
    rank = getattr(sft, "lora_rank", 0)
    if not rank or not embed or not train or "sft" not in train.stages:
        return []
    found = []
    if embed.name == "world":
        found.append(f'sft.lora_rank = {rank}: needs embed.name = "clip", "siglip" or "sentence"')
    if train.stages[0] != "sft":
        found.append(f"sft.lora_rank = {rank}: sft must be the first of train.stages")
    return found


def _list_problems(sections: Mapping[str, Any]) -> list[str]:
    """Lists of what is done that are empty or name something twice."""
    found = []
    for key, name in (("eval", "shots"), ("score", "dev_shots"), ("train", "stages")):
        values = getattr(sections[key], name) if sections[key] else (None,)
        if not values:
            found.append(f"{key}.{name} = []: must name at least one")
        elif len(set(values)) < len(values):
            found.append(f"{key}.{name} = {list(values)}: names one twice; each is done once")
    return found
