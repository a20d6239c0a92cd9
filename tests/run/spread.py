"""A spread of small recipes over stages, searches, pools and selectors, and what a real run of one reads and yields."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

from leverplus.learn.checkpoint import load_checkpoint, tensors_of
from leverplus.run.evaluate import evaluate_run
from leverplus.run.recipe import Recipe, find_recipe, load_recipe
from leverplus.run.run import open_run
from leverplus.run.train import train_run

SMALL = (
    "pool.size=6", "score.budget=3000", "score.queries=6", "score.dev_queries=2", "score.dev_shots=[1,2]",
    "select.hidden=8", "eval.items=4", "eval.shots=[1,2]", "eval.dev_items=2", "eval.random_draws=1",
    "eval.exhaustive_calls=200", "eval.diagnostic_items=3",
)  # fmt: skip

SPREAD: dict[str, tuple[str, ...]] = {
    "imitation of dense tables": (
        "train.imitate=3", "sft.epochs=2", "sft.labels=weighted", "score.search=dense", "select.preset=cross_attention",
    ),
    "rounds after labels": (
        "train.stages=['label_pretraining','listwise']", "label_pretraining.epochs=1",
        "listwise.epochs=3", "listwise.among=pairs",
        "score.search=dense", "score.rounds=2", "score.budget=200", "score.queries=0",
        "label_pretraining.queries=40", "reward.components=['rank','gt_prob']", "select.preset=bi_encoder_gate",
        "select.mmr=max", "select.stop=none_only", "select.state=none", "listwise.keep=last",
    ),
    "mixed search with draws of the selector": (
        "train.stages=['sft','rce']", "sft.epochs=1", "rce.epochs=2", "score.search=mixed", "score.samples=2",
        "score.prefixes=true", "reward.mode=legacy", "select.preset=recurrent", "pool.kind=mix", "train.imitate=2",
    ),
    "beams and pairs": (
        "train.stages=['sft','pairwise']", "sft.epochs=1", "pairwise.epochs=2", "score.search=beam", "score.beam=2",
        "reward.mode=hard_plus_soft", "select.preset=pool_aware", "select.dpp=bound", "pool.kind=mmr",
        "pool.first_stage=12", "eval.oracle=false",
    ),
    "grpo with a KL that adapts": (
        "train.stages=['sft','grpo']", "sft.epochs=1", "grpo.epochs=2", "grpo.advantage=zscore", "grpo.top_k=[4]",
        "grpo.beta_rule=epoch", "score.search=beam", "score.beam=2", "pool.kind=two_stage", "pool.first_stage=12",
        "select.head=additive", "reward.mode=hard_plus_gtprob_plus_rel", "reward.normalise=z_score_clamp",
    ),
    "grpo with clipping alone": (
        "train.stages=['grpo']", "grpo.epochs=2", "grpo.clip_only=true", "grpo.behaviour=stored", "score.search=mixed",
        "score.retrieved=0", "reward.compare=same_shots", "score.shots=1", "pool.kind=nearest_both",
        "select.decoder=refine", "grpo.min_positive_ratio=0.01", "eval.diagnostics=false",
    ),
    "ids by gpt2": (
        "train.stages=['rce']", "rce.epochs=2", "score.search=dense", "select.preset=id_gpt2_faithful",
        "select.hidden=8", "pool.kind=corpus", "rce.schedule=constant", "eval.shots=[1]",
    ),
    "ids by lstm, then nothing": (
        "train.stages=['listwise','sft']", "listwise.epochs=2", "sft.epochs=0", "score.search=dense",
        "select.preset=id_lstm_faithful", "select.layers=1", "select.hidden=8", "pool.kind=nearest_text",
    ),
    "slots, easy questions first": (
        "train.stages=['listwise']", "listwise.epochs=2", "listwise.easy_epochs=1", "listwise.easy_gap=0",
        "listwise.easy_count=0", "score.search=beam", "score.beam=2", "select.preset=parallel_slots",
        "pool.kind=nearest_image", "reward.adaptive=true", "reward.components=['soft_only','gt_prob']",
    ),
}  # fmt: skip


def spread_recipe(name: str, *more: str) -> Recipe:
    return load_recipe("world", _only_own_stages([*SMALL, *SPREAD[name], *more]))


def _only_own_stages(overrides: list[str]) -> list[str]:
    return (
        overrides
        if any(o.startswith("train.stages") for o in overrides)
        else [*overrides, "train.stages=['sft']"]
    )


def with_sections(recipe: Recipe, changed: dict[str, Any]) -> Recipe:
    stages = {name: changed.get(name, stage) for name, stage in recipe.stages.items()}
    plain = {name: own for name, own in changed.items() if name not in stages}
    return dataclasses.replace(recipe, stages=stages, **plain)


def other_value(owner: Any, key: str) -> Any:
    """Another value of the right type for a setting; where there is a range or a list of choices, one of these."""
    field = next(field for field in dataclasses.fields(owner) if field.name == key)
    value, facts = getattr(owner, key), field.metadata
    choices = list(facts["choices"] or ())
    if isinstance(value, tuple):
        if choices:
            return (choices[-1],) if value == (choices[0],) else (choices[0],)
        return (
            *value,
            2 if "int" in str(typing.get_type_hints(type(owner))[key]) else 0.5,
        )
    if choices:
        return next(choice for choice in choices if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return (
            value - 1
            if facts["high"] is not None and value + 1 > facts["high"]
            else value + 1
        )
    if isinstance(value, float):
        larger = value * 1.5 + 0.05
        return (
            value / 2
            if facts["high"] is not None and larger > facts["high"]
            else larger
        )
    return "reward@1" if key == "monitor" else "changed"


def outcome(recipe: Recipe, folder: Path, store: Path) -> dict[str, Any]:
    """What a run of a recipe yields: the weights of every stage, the losses of every epoch, and the evaluation."""
    run = open_run(recipe, find_recipe("world"), folder, seed=0, store_path=store)
    report = evaluate_run(run, train_run(run))
    weights = {}
    for name in recipe.stages:
        tensors = tensors_of(load_checkpoint(folder / "checkpoints" / name)[0])
        # decoder = "slots" never looks at the vectors of select.step_embedding
        weights[name] = {
            key: value.tolist()
            for key, value in tensors.items()
            if key != "step_vectors"
        }
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [
        {key: value for key, value in line.items() if "loss" in key} for line in log
    ]
    return {
        "weights": weights,
        "losses": losses,
        "arms": report.as_json()["arms"],
        "calls": report.model_calls,
    }
