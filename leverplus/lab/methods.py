"""What `lever bench` compares: ways to train a selector at several call budgets, and changes of `best`, one at a time.

This is the one place where methods, budgets, worlds and ablations are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leverplus.errors import UnknownName
from leverplus.recipe.recipe import Recipe, load_recipe

BUDGETS = (8_000, 32_000, 128_000, 512_000)
WORLDS = (100, 101, 102)
SEEDS = 5
ITEMS = 1000
HEADLINE = 128_000
"""The budget of the ablations and of the curves over pools and queries."""

COMMON = ("score.chunk=8192",)
"""Settings of every job: large chunks fill a GPU and cost nothing on a CPU."""

DEV_SHARE = 0.15
"""Largest share of a budget that judging epochs on dev may take; recipes that plan for more judge fewer queries."""


@dataclass(frozen=True)
class TrainingMethod:
    """A way to train: a recipe, what is changed in it, and what is changed at single budgets.

    `recipes` are other recipes for single budgets; `on_the_way` names the methods that are finished when an earlier
    stage of the same training is, `once` those that are the same at every budget and measured at the smallest.
    """

    recipe: str
    changes: tuple[str, ...] = ()
    by_budget: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    on_the_way: Mapping[str, str] = field(default_factory=dict)
    once: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[int, str] = field(default_factory=dict)

    def finished_at(self, budget: int) -> dict[str, str]:
        """The methods that are finished on the way at a budget, by stage."""
        return {**self.on_the_way, **(self.once if budget == min(BUDGETS) else {})}

    def recipe_at(self, budget: int) -> str:
        """The name of the recipe at a budget."""
        return self.recipes.get(budget, self.recipe)

    def at(self, budget: int, settings: Sequence[str] = ()) -> Recipe:
        """The recipe at a budget, with further settings that win."""
        wanted = [f"score.budget={budget}", *self.changes, *self.by_budget.get(budget, ()), *settings]
        name = self.recipe_at(budget)
        return load_recipe(name, [*_without_dev(wanted), *_affordable_dev(name, wanted, budget)])


def _without_dev(settings: Sequence[str]) -> list[str]:
    return [text for text in settings if not text.startswith(("score.dev_queries=", "score.dev_shots="))]


def _affordable_dev(recipe: str, settings: Sequence[str], budget: int) -> list[str]:
    """Dev queries that fit their share of the budget; two shots stand for all where else too few would be left."""
    planned = load_recipe(recipe, settings)
    epochs = sum(stage.epochs + 1 for stage in planned.stages.values())
    score, most = planned.score, int(DEV_SHARE * budget)
    shots = list(score.dev_shots)
    if most < 16 * epochs * len(shots):
        shots = [min(2, max(shots))]
    queries = min(score.dev_queries, max(1, most // (epochs * len(shots))))
    return [f"score.dev_queries={queries}", f"score.dev_shots={shots}"]


_STEPS_AS_PLANNED: Mapping[int, tuple[str, ...]] = {
    32_000: ("rce.batch_size=4", "grpo.batch_size=4"),
    128_000: ("sft.batch_size=32", "rce.batch_size=16", "grpo.batch_size=16"),
    512_000: ("sft.batch_size=64", "rce.batch_size=64", "grpo.batch_size=64", "score.random=16", "score.retrieved=16"),
}
"""The plans take a step a question. 8,000 calls pay for 200 questions; with more calls the batch grows, so that an
epoch has as many steps; with 512,000 each of the 8,000 questions is asked about twice as often."""

_AS_PLANNED = ("score.queries=0", "select.hidden=256", "sft.epochs=10", "rce.epochs=5", "grpo.epochs=6")
"""Sizes of the plans' training; its questions follow the budget."""

METHODS: Mapping[str, TrainingMethod] = {
    "best": TrainingMethod(  # with 512,000 calls tables are nearly dense, and pairs do not suit these (docs/log.md)
        "best",
        by_budget={512_000: ("score.best=48", "score.chance=8", "listwise.among=tried")},
        once={"label_pretraining": "labels"},
        recipes={8_000: "best_8k", 32_000: "best_32k"},
    ),
    "listwise": TrainingMethod(
        "world",
        ('train.stages=["listwise"]', "listwise.epochs=20", "listwise.temperature=0.1", "listwise.weight_decay=0.3"),
    ),
    "sft_rce_grpo": TrainingMethod(
        "plan5", _AS_PLANNED, _STEPS_AS_PLANNED, on_the_way={"sft": "sft", "rce": "sft_rce"}
    ),
    "mended_grpo": TrainingMethod(
        "baseline_sft",
        ('train.stages=["sft","rce","grpo"]', *_AS_PLANNED),
        {
            8_000: ("rce.batch_size=8", "grpo.batch_size=8"),
            32_000: ("rce.batch_size=16", "grpo.batch_size=16"),
            128_000: ("sft.batch_size=32",),
            512_000: ("sft.batch_size=64", "score.random=16", "score.retrieved=16"),
        },
    ),
}
"""Trained methods. `sft_rce_grpo` is the training of the plans with every mistake in it; `mended_grpo` the same stages
and data with the defaults instead of the mistakes, in smaller batches (chosen on dev worlds) where the defaults would
leave too few steps."""

TITLES: Mapping[str, str] = {
    "sft": "SFT",
    "sft_rce": "SFT + RCE",
    "sft_rce_grpo": "SFT + RCE + GRPO (plans)",
    "mended_grpo": "SFT + RCE + GRPO (mended)",
    "listwise": "listwise",
    "labels": "labels alone",
    "best": "best",
}
"""How methods are called where people read them; the order of the table."""

ABLATIONS: Mapping[str, tuple[str, ...]] = {
    "no_agreement": ('train.stages=["listwise"]',),  # without label_pretraining; kept results have this name
    "no_rounds": ("score.rounds=0",),
    "later_places": ("score.depth=4", "select.state=vector_gate"),
    "rounds_by_chance": ("score.best=1", "score.chance=11"),
    "no_chance": ("score.best=12", "score.chance=0"),
    "measured_accuracy": ('reward.components=["soft_only","gt_prob"]',),
    "probability_reward": ('reward.components=["gt_prob"]', "reward.component_weights=[1.0]"),
    "accuracy_reward": ('reward.components=["expected_accuracy"]', "reward.component_weights=[1.0]"),
    "no_diversity": ("select.mmr=none",),
    "neighbour_head": ("select.head=neighbour",),
    "cross_attention": ("select.preset=cross_attention",),
    "no_answers": ('select.demo_fields=["image","text"]',),
    "no_dropout": ("select.dropout=0.0",),
    "no_decay": ("listwise.weight_decay=0.01",),
    "soft_targets": ("listwise.among=tried",),
    "whole_pool": ("listwise.among=pool",),
    "best_epoch": ("listwise.keep=best",),
    "grpo_finisher": ('train.stages=["label_pretraining","listwise","grpo"]', "grpo.epochs=8", "grpo.keep=last"),
    "pairwise_finisher": (
        'train.stages=["label_pretraining","listwise","pairwise"]',
        "pairwise.epochs=8",
        "pairwise.keep=last",
    ),
}
"""One-factor changes of `best`, as overrides; each is compared with `best` at the same budget. Finishers end with their
last epoch, as `best` does: the best on a few dev questions may be the one before the first, which measures nothing."""

POOL_SIZES = (16, 256, 1024, 4096)
"""Pools that `best` is evaluated on beside those of 64 that it was trained with."""
QUERIES = (125, 250, 500, 1000, 2000, 4000)
"""Training questions that `best` may use, of 8,000."""

ORDER: Sequence[tuple[str, int]] = (
    ("best", 128_000),
    ("best", 32_000),
    ("best", 8_000),
    ("listwise", 128_000),
    ("sft_rce_grpo", 128_000),
    ("mended_grpo", 128_000),
    ("listwise", 32_000),
    ("listwise", 8_000),
    ("sft_rce_grpo", 32_000),
    ("mended_grpo", 32_000),
    ("sft_rce_grpo", 8_000),
    ("mended_grpo", 8_000),
    ("best", 512_000),
    ("listwise", 512_000),
    ("sft_rce_grpo", 512_000),
    ("mended_grpo", 512_000),
)
"""Which come first when the time is short."""


def place_in_order(name: str, budget: int) -> int:
    """The place of a method at a budget in the order of work; what is not listed comes last."""
    return ORDER.index((name, budget)) if (name, budget) in ORDER else len(ORDER)


def owner_of(name: str) -> str:
    """The training in which a method is measured."""
    if name in METHODS:
        return name
    for owner, method in METHODS.items():
        if name in {*method.on_the_way.values(), *method.once.values()}:
            return owner
    raise UnknownName(f"there is no method called '{name}'; known: {', '.join(TITLES)}")


def ablation(name: str) -> TrainingMethod:
    """`best` with one thing changed."""
    if name not in ABLATIONS:
        raise UnknownName(f"there is no ablation called '{name}'; known: {', '.join(ABLATIONS)}")
    best = METHODS["best"]
    return replace(best, changes=(*best.changes, *ABLATIONS[name]), once={})


QUICK: Mapping[str, Any] = {
    "budgets": (1_200,),
    "worlds": (0,),
    "seeds": 2,
    "items": 12,
    "methods": ("best", "listwise", "sft_rce_grpo"),
    "ablations": ("no_dropout",),
    "pools": (8,),
    "queries": (4, 8),
}
"""Sizes of `--quick`, which proves that the benchmark runs and measures nothing."""

QUICK_SETTINGS = (
    *("pool.size=12", "select.hidden=16", "score.dev_queries=16"),
    *("eval.shots=[1,2]", "eval.dev_items=4", "eval.random_draws=1"),
)


def quick_settings(method: TrainingMethod) -> tuple[str, ...]:
    """Tiny sizes for a method: two epochs of each stage, one round of asking where it asks in rounds."""
    recipe = load_recipe(method.recipe, method.changes)
    rounds = ("score.rounds=1",) if recipe.score.rounds else ()
    labels = ("label_pretraining.queries=50",) if "label_pretraining" in recipe.stages else ()
    return (*QUICK_SETTINGS, *(f"{stage}.epochs=2" for stage in recipe.stages), *rounds, *labels)
