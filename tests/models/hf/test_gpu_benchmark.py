"""The GPU benchmark runs from start to end with a tiny model, and what it compares agrees."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from benchmarking import load_benchmark


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_benchmark("gpu_scoring")


@pytest.mark.slow
def test_every_section_is_measured_and_both_ways_agree(
    script: ModuleType, tmp_path: Path, monkeypatch
) -> None:
    out = tmp_path / "result.json"
    monkeypatch.setattr(
        sys, "argv", ["gpu_scoring.py", "--tiny", "--device", "cpu", "--out", str(out)]
    )
    script.main()
    found = json.loads(out.read_text())
    sections = found["sections"]
    assert not [name for name, section in sections.items() if "error" in section]
    assert (
        sections["agreement"]["same"]
        == sections["agreement"]["n"]
        == script.TINY.greedy
    )
    assert sections["float32"]["same_answers"] == sections["float32"]["n"]
    assert sections["logprob_differences"]["largest"] < 1e-4
    assert (
        sections["logprob_shared"]["n"] == script.TINY.queries * script.TINY.candidates
    )
    assert sections["logprob_shared"]["pictures_encoded"] <= script.TINY.pictures
    assert all(found["ratios"].values())


@pytest.mark.slow
def test_the_full_workload_is_the_one_it_claims(
    script: ModuleType, monkeypatch
) -> None:
    ids = {"image": 151655, "video": 151656, "start": 151652, "end": 151653}
    monkeypatch.setattr(script, "build_model", lambda _tiny, _device: (None, ids))
    bench = script.build(False, script.torch.device("cpu"))
    assert len(set(bench.pairs)) == 32 * 64
    assert len(bench.pixels) == 200
    places = (bench.grid // 2) ** 2
    assert len(script.marked_ids(bench, bench.pairs[0])) + 3 * (places - 1) == 894
    assert {len(answer) for answer in bench.answers} == {5}


def test_ties_are_told_from_other_differences(script: ModuleType) -> None:
    logits = script.torch.tensor([[0.0, 1.0, 0.99, -2.0]] * 5)
    theirs = [([1] * 5, logits)] * 3
    ours = [
        script.PromptReading((), written, 0.0)
        for written in ((1,) * 5, (1, 2, 3, 3, 3), (1, 1, 3, 1, 1))
    ]
    found = script.compare(ours, theirs, 0.02)
    assert (found["same"], found["ties"], found["different"]) == (1, 1, 1)
    assert found["logit_gaps_where_different"] == [0.01, 3.0]
