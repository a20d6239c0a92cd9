"""Recipes drawn over everything that a recipe can say: stages, searches, pools, rewards, selectors, losses, budgets.

A drawn recipe starts from small sizes and changes a handful of keys. Keys are taken from the sections themselves, so a
setting that is added tomorrow is drawn tomorrow; only sizes, where a large value would take long, have a list here.
"""

from __future__ import annotations

import dataclasses
import random
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from matrix_tasks import DrawnTask

from leverplus import catalog
from leverplus.arms.settings import PoolSection
from leverplus.errors import RecipeError
from leverplus.evaluate.settings import EvalSection
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.settings import SECTIONS, RewardConfig, TrainSection
from leverplus.run.recipe import build_recipe
from leverplus.scores.settings import ScoreSection

Values = dict[str, dict[str, Any]]

PIXELS = 28 * 28
SMALL: Mapping[str, Sequence[Any]] = {
    "pool.size": (1, 2, 3, 4, 6, 8),
    "pool.first_stage": (1, 4, 8, 200),
    "score.budget": (1, 5, 20, 60, 150),
    "score.queries": (0, 1, 2, 5),
    "score.beam": (1, 2, 3),
    "score.shots": (1, 2, 3, 8),
    "score.random": (0, 1, 3),
    "score.retrieved": (0, 1, 3),
    "score.samples": (0, 1, 2),
    "score.selector_beams": (0, 1, 2),
    "score.mine": (0, 1, 4),
    "score.rounds": (0, 1, 2),
    "score.best": (1, 2, 8),
    "score.chance": (0, 1, 2),
    "score.chunk": (1, 3, 512),
    "score.dev_queries": (1, 2, 4),
    "score.temperatures": ((1.0,), (0.5, 2.0), ()),
    "score.tiers": (("high",), ("medium", "low"), ("high", "medium", "low"), ()),
    "train.imitate": (1, 2, 8),
    "eval.items": (0, 1, 2, 5),
    "eval.random_draws": (1, 2),
    "eval.dev_items": (1, 2, 5),
    "eval.exhaustive_calls": (0, 20, 60),
    "eval.diagnostic_items": (2, 3, 100),
    "select.hidden": (4, 8, 12),
    "select.layers": (1, 2),
    "select.pool_layers": (1, 2),
    "select.slot_layers": (1, 2),
    "select.heads": (1, 2, 3),
    "select.topics": (0, 1, 3),
    "select.dpp_rank": (1, 4),
    "select.refine_top": (1, 2, 8),
    "select.max_shots": (1, 2, 4, 8, 16),
    "stage.epochs": (0, 1, 2, 3),
    "stage.freeze": ((), ("head",), ("projections", "attention"), ("nothing",)),
    "stage.monitor": ("reward", "reward", "reward@1", "reward@2", "rewardd"),
    "stage.batch_size": (1, 2, 64),
    "stage.easy_epochs": (0, 1, 2),
    "stage.inner_epochs": (1, 2),
    "stage.top_k": ((), (1,), (3, 2), (1, 1, 1)),
    "stage.lora_rank": (0, 0, 0, 1, 2),
    "stage.queries": (0, 1, 3),
    "stage.candidates": (2, 3, 16),
    "reward.component_weights": ((), (1.0,), (0.5, 0.5), (0.0, 0.0), (1.0, 2.0, 3.0)),
    "reward.hard_by_shots": ((), (1.0,), (1.0, 0.5)),
    "reward.soft_by_shots": ((), (0.0,), (1.0, 2.0)),
}
"""What a size may be, and lists of numbers; `stage` stands for every stage."""

PINNED = {
    "score.backend", "score.engine", "score.workers", "score.groups", "select.preset", "train.stages", "train.log_to",
}  # fmt: skip
SHOTS: Sequence[tuple[int, ...]] = (
    (1,),
    (1,),
    (2,),
    (1, 2),
    (2, 1),
    (1, 2, 3, 4),
    (1, 4),
    (3, 8),
    (8,),
    (5, 6, 7),
)
TEXT_POOLS = ("random", "nearest_text", "nearest_both", "mmr", "corpus")
"""Kinds of pools that items without pictures can have, some of them with pool.text_weight = 1."""


def draw_recipe(
    rng: random.Random, task: DrawnTask, models: Mapping[str, str]
) -> Values:
    """The sections of a recipe for a task; most of them hold together, some do not."""
    values = _base(rng, task, models)
    stages = values["train"]["stages"]
    sections: dict[str, Any] = {
        "pool": PoolSection,
        "score": ScoreSection,
        "select": PolicyConfig,
        "reward": RewardConfig,
        "train": TrainSection,
        "eval": EvalSection,
        **{stage: SECTIONS[stage] for stage in stages},
    }
    for _ in range(rng.choice((0, 1, 3, 6, 10))):
        name = rng.choice([*sections, "select", "score", "reward", *stages])
        fields = [
            field
            for field in dataclasses.fields(sections[name])
            if f"{name}.{field.name}" not in PINNED
        ]
        field = rng.choice(fields)
        values.setdefault(name, {})[field.name] = draw_value(
            rng, name, field, sections[name]
        )
    if rng.random() < 0.85:
        values = repaired(values)
    return _without_none(values)


def _base(rng: random.Random, task: DrawnTask, models: Mapping[str, str]) -> Values:
    """Small sizes, and a draw of what every recipe has to choose."""
    world = task.kind == "world"
    presets = [name for name in catalog.POLICIES if world or rng.random() < 0.9]
    stages = rng.sample(list(catalog.STAGES), rng.choice((1, 1, 2, 2, 3)))
    if "label_pretraining" in stages and rng.random() < 0.8:
        stages = [
            "label_pretraining",
            *[name for name in stages if name != "label_pretraining"],
        ]
        stages += [] if len(stages) > 1 else ["listwise"]
    held = sum(row.get("split") == "train" for row in task.rows)
    pool = rng.choice(
        [
            size
            for size in (1, 2, 2, 3, 4, 4, 6, 8)
            if world or size < held or rng.random() < 0.05
        ]
        or [1]
    )
    kinds = [
        kind
        for kind in catalog.SAMPLERS
        if task.has_pictures or kind in TEXT_POOLS or rng.random() < 0.05
    ]
    fitting = [own for own in SHOTS if max(own) <= pool]
    shots = rng.choice(fitting if rng.random() < 0.97 else SHOTS)
    values: Values = {
        "task": dict(task.section),
        "embed": {"name": "world"},
        "pool": {"kind": rng.choice(kinds), "size": pool},
        "score": {
            "backend": "world",
            "budget": rng.choice((1, 20, 60, 60, 120, 120, 200)),
            "search": rng.choice(("dense", "beam", "mixed")),
            "shots": rng.choice([n for n in (1, 2, 3, 8) if n <= pool]),
            "beam": 2,
            "dev_queries": rng.choice((1, 2)),
            "dev_shots": list(rng.choice(fitting)),
        },
        "select": {
            "preset": rng.choice([*presets, None]),
            "hidden": 8,
            "heads": rng.choice((1, 2)),
        },
        "reward": {"mode": rng.choice(list(catalog.REWARDS))},
        "train": {"stages": stages},
        "eval": {
            "items": rng.choice((0, 1, 2, 3, 4)),
            "dev_items": rng.choice((1, 2, 4)),
            "shots": list(shots),
            "random_draws": rng.choice((1, 2)),
            "oracle": rng.random() < 0.6,
            "exhaustive_calls": rng.choice((0, 0, 60)),
            "diagnostics": rng.random() < 0.7,
            "diagnostic_items": rng.choice((2, 4)),
        },
        **{stage: {"epochs": rng.choice((0, 1, 1, 2, 2))} for stage in stages},
    }
    if world:
        values["eval"]["items"] = rng.choice((1, 2, 4))
        return values
    values["score"]["backend"] = "hf"
    values["model"] = {
        "name": models[
            "vision" if task.has_pictures or rng.random() < 0.05 else "language"
        ],
        "untrained": rng.random() < 0.97,
        "max_new_tokens": rng.choice((1, 2, 3)),
        "prompt": rng.choice(("plain", "plain", "chat")),
        "batch_tokens": rng.choice((0,) * 9 + (64,)),
    }
    if task.has_pictures:
        values["model"] |= {"prompt": "chat", "image_pixels": PIXELS}
    kind = (
        rng.choice(("clip", "clip", "sentence"))
        if task.has_pictures
        else rng.choice(("sentence",) * 9 + ("clip",))
    )
    values["embed"] = {"name": kind, "model": models[kind]}
    if kind == "clip" and rng.random() < 0.2:
        values["embed"]["mean"] = True
    if not task.has_pictures and rng.random() < 0.9:
        values["pool"] |= (
            {"text_weight": 1.0}
            if values["pool"]["kind"] in ("nearest_both", "mmr", "corpus")
            else {}
        )
    if kind != "clip" or not task.has_pictures:
        fields = ("text", "answer") if rng.random() < 0.7 else ("text",)
        values["select"] |= {"query_fields": ["text"], "demo_fields": list(fields)}
    return values


def draw_value(rng: random.Random, section: str, field: Any, cls: Any) -> Any:
    """A value of a setting: one of its choices, a small size, or a number around its limits."""
    names = (f"{section}.{field.name}", f"stage.{field.name}")
    known = next((SMALL[name] for name in names if name in SMALL), None)
    if known is not None:
        value = rng.choice(known)
        return list(value) if isinstance(value, tuple) else value
    if field.name in ("shots", "dev_shots"):
        return list(rng.choice(SHOTS))
    hint = typing.get_type_hints(cls)[field.name]
    choices = field.metadata.get("choices")
    if choices is not None:
        allowed = list(choices)
        if typing.get_origin(hint) is tuple:
            return rng.sample(allowed, rng.randint(0, min(3, len(allowed))))
        return rng.choice(allowed)
    if hint is bool:
        return rng.random() < 0.5
    if hint is str:
        return "odd"
    low, high, above = (field.metadata.get(name) for name in ("low", "high", "above"))
    start = low if low is not None else above if above is not None else -1.0
    numbers = [
        field.default,
        start,
        start + 0.01,
        start + 1,
        high if high is not None else 10.0,
    ]
    number = rng.choice([n for n in numbers if isinstance(n, (int, float))] or [1])
    return int(number) if hint is int else float(number)


def repaired(values: Values) -> Values:
    """A recipe without the keys that reading it complains about, so that most drawn recipes run."""
    for _ in range(8):
        try:
            build_recipe("drawn", _without_none(values), "drawn")
        except RecipeError as error:
            values = _mended(values, error.problems)
        else:
            break
    return values


def _mended(values: Values, problems: Sequence[str]) -> Values:
    """Without the first key each problem names; a budget that is too small is raised instead."""
    kept = {name: dict(section) for name, section in values.items()}
    needed = {"eval": ("shots",), "train": ("stages",), "score": ("backend",)}
    for problem in problems:
        for section, key in re.findall(r"\b([a-z]+)\.([a-z_0-9]+)", problem):
            if (section, key) == ("score", "budget"):
                kept["score"]["budget"] = 300
                break
            if key in kept.get(section, {}) and key not in needed.get(section, ()):
                del kept[section][key]
                break
    if kept == values:  # what is named cannot be left out: take the simplest form of it
        kept["eval"]["shots"] = [1]
        kept["score"]["dev_shots"] = [1]
        kept["train"]["stages"] = ["sft"]
        kept = {
            name: section for name, section in kept.items() if name not in SECTIONS
        } | {"sft": {"epochs": 1}}
    return kept


def _without_none(values: Values) -> Values:
    return {
        name: {k: v for k, v in section.items() if v is not None}
        for name, section in values.items()
    }
