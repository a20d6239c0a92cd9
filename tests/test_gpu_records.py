"""What the pages say about speed on a GPU is what the kept records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent


def kept(name: str) -> Any:
    return json.loads((HERE / "benchmarks" / "gpu" / name).read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (HERE / "docs" / name).read_text(encoding="utf-8")


def test_candidates_and_pictures() -> None:
    sections = kept("scoring.json")["sections"]
    pictures = sections["vision_only"]["pictures_per_second"]
    weighed, written = (sections[f"{kind}_shared"]["candidates_per_second"] for kind in ("logprob", "generation"))
    before = sections["vision_before"]["pictures_per_second"]
    text = page("results.md")
    assert f"| 250 | {pictures:.0f} | {before:.0f} |" in text
    assert f"| 200 | {weighed:.0f} |" in text
    assert f"| 170 | {written:.0f} |" in text
    assert f"scores {weighed:.0f} candidates a second, or {written:.0f} with" in page("backends.md")
    assert sections["float32"]["largest_feature_difference"] < 1e-5
    assert sections["float32"]["same_answers"] == sections["float32"]["n"]
    assert sections["agreement"]["different"] == 0


def test_calls_of_a_language_model() -> None:
    found = kept("captions.json")
    now, before = found["now"]["calls_per_second"], found["before"]["calls_per_second"]
    assert f"{now:,.0f} one-shot calls per second against {before:.0f}, {now / before:.1f} x" in page("results.md")
    few = found["now_in_chunks_of_512"]["calls_per_second"]
    assert f"{now:,.0f} calls a second instead of {few:.0f}" in page("backends.md")
