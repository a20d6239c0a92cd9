"""Training and selection sections: read with every problem at once, documented key by key, importable without torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from leverplus import catalog
from leverplus.data.settings import read_section
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.settings import SECTIONS, GrpoConfig, RewardConfig, StageConfig
from leverplus.models.settings import ModelSection

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "section", "prefix"),
    [
        ("policies", PolicyConfig, "select."),
        ("rewards", RewardConfig, "reward."),
        ("training", StageConfig, ""),
    ]
    + [("backends", ModelSection, "model.")]
    + [("training", section, f"{name}.") for name, section in SECTIONS.items()],
)
def test_every_setting_is_documented_with_its_meaning(
    page: str, section: type, prefix: str
) -> None:
    text = (DOCS / f"{page}.md").read_text()
    shared = (
        {field.name for field in dataclasses.fields(StageConfig)}
        if section is not StageConfig
        else set()
    )
    for field in dataclasses.fields(section):
        if field.name not in shared:
            assert f"| `{prefix}{field.name}` |" in text, field.name
        assert field.metadata["doc"]


def test_every_named_selector_and_reward_is_on_its_page() -> None:
    policies, rewards = (
        (DOCS / "policies.md").read_text(),
        (DOCS / "rewards.md").read_text(),
    )
    assert [name for name in catalog.POLICIES if f"`{name}`" not in policies] == []
    assert [name for name in catalog.REWARDS if f"| `{name}` |" not in rewards] == []


def test_problems_of_a_stage_are_reported_together_with_what_is_allowed() -> None:
    problems: list[str] = []
    given = {
        "advantage": "zscor",
        "lr": 0,
        "kl_betta": 0.1,
        "top_k": 3,
        "clip_low": 2.0,
    }
    assert read_section(GrpoConfig, given, "grpo.", problems) is None
    assert len(problems) == 5
    assert any("did you mean 'zscore'" in problem for problem in problems)
    assert any("did you mean 'grpo.kl_beta'" in problem for problem in problems)


def test_sections_are_read_without_torch() -> None:
    code = (
        "import sys; import leverplus.learn.settings; from leverplus.learn.policies import settings as selection; problems = []; "
        "selection.read_selection({'preset': 'diverse'}, problems); "
        "assert not problems and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
