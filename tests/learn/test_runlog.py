"""The run log: every name is explained in the docs, nothing unknown is written, rewinding forgets the right lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leverplus.errors import TrainingError
from leverplus.learn.runlog import METRICS, STEPS, RunLog
from leverplus.learn.seeds import derive_seed

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_documentation_explains_exactly_the_metrics_that_are_logged() -> None:
    section = DOCS.read_text().split("## Training", 1)[1].split("\n## ", 1)[0]
    named = re.findall(r"^\| `train/([^`]+)` \|", section, flags=re.MULTILINE)
    written_out = [
        name.replace("{t}", str(step))
        for name in named
        for step in (STEPS if "{t}" in name else (0,))
    ]
    assert sorted(written_out) == sorted(METRICS)


def test_a_metric_nobody_described_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rewrd"):
        RunLog(tmp_path / "log.jsonl").write({"stage": "sft"}, {"rewrd": 1.0}, {})


def test_lines_are_json_and_numbers_that_are_not_finite_become_null(
    tmp_path: Path,
) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl")
    log.write({"stage": "sft", "epoch": 1}, {"reward": float("inf")}, {"reward": 0.5})
    line = json.loads((tmp_path / "deep" / "log.jsonl").read_text())
    assert line == {"stage": "sft", "epoch": 1, "train/reward": None, "val/reward": 0.5}


def test_rewinding_a_stage_keeps_other_stages_and_earlier_epochs(
    tmp_path: Path,
) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for stage, epoch in (("sft", 1), ("sft", 2), ("grpo", 1), ("grpo", 2)):
        log.write({"stage": stage, "epoch": epoch}, {}, {})
    log.rewind("grpo", 1)
    assert [(line["stage"], line["epoch"]) for line in log.lines()] == [
        ("sft", 1),
        ("sft", 2),
        ("grpo", 1),
    ]


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    assert derive_seed(0, "sft", 1) == derive_seed(0, "sft", 1) < 2**63
    assert (
        len(
            {
                derive_seed(*parts)
                for parts in [
                    (0, "sft", 1),
                    (1, "sft", 1),
                    (0, "rce", 1),
                    (0, "sft", 11),
                ]
            }
        )
        == 4
    )
    assert derive_seed(1, 23) != derive_seed(12, 3)
