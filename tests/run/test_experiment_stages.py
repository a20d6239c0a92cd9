"""The list of stages: where each has its rows from, and before which of them the model is searched."""

from __future__ import annotations

import pytest

from leverplus.run.recipe import load_recipe
from leverplus.run.train import plan_stages

DRAWS = ["score.search=mixed", "score.samples=2"]


@pytest.mark.parametrize(
    ("recipe", "settings", "expected"),
    [
        ("world", [], [("sft", "search", True, False, True)]),
        (
            "world",
            ['train.stages=["sft","rce"]'],
            [
                ("sft", "search", True, False, True),
                ("rce", "search", False, False, False),
            ],
        ),
        (
            "world",
            [
                'train.stages=["sft","rce","grpo"]',
                *DRAWS,
            ],  # the first search has no selector to draw from
            [
                ("sft", "search", True, False, True),
                ("rce", "search", True, True, False),
                ("grpo", "search", False, True, False),
            ],
        ),
        (
            "best",
            [],
            [
                ("label_pretraining", "labels", False, False, False),
                ("listwise", "rounds", True, False, True),
            ],
        ),
        (
            "best",
            ['train.stages=["label_pretraining","listwise","rce"]'],
            [
                ("label_pretraining", "labels", False, False, False),
                ("listwise", "rounds", True, False, True),
                ("rce", "asked", False, False, False),
            ],
        ),
        (
            "best",
            [
                *DRAWS,
                "score.rounds=0",
                "score.shots=1",
            ],  # labels have trained one by then
            [
                ("label_pretraining", "labels", False, False, False),
                ("listwise", "search", True, True, True),
            ],
        ),
    ],
)
def test_every_stage_says_what_it_needs(
    recipe: str, settings: list[str], expected: list[tuple[str, str, bool, bool, bool]]
) -> None:
    stages = plan_stages(load_recipe(recipe, settings))
    assert [
        (one.name, one.rows, one.searches, one.draws, one.preflight) for one in stages
    ] == expected
