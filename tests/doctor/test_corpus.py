"""Over a corpus of logs of many libraries the doctor names the planted cause first, and nothing in healthy logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking import load_benchmark

corpus = load_benchmark("doctor_corpus")
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.mark.parametrize(
    "part", ["library", pytest.param("invented", marks=pytest.mark.slow)]
)
def test_the_planted_cause_is_named_first_in_every_form(part) -> None:
    verdicts = list(corpus.judge(part))
    assert len(verdicts) > 80
    assert [verdict for verdict in verdicts if not verdict.right] == []


@pytest.mark.slow
def test_nine_of_ten_causes_are_named_first_and_healthy_logs_are_healthy() -> None:
    verdicts = [*corpus.judge("tuned"), *corpus.judge("heldout")]
    wrong = [verdict for verdict in verdicts if not verdict.right]
    for half in corpus.HALVES:
        own = [verdict.right for verdict in verdicts if verdict.part == half]
        assert len(own) > 150
        assert sum(own) >= 0.9 * len(own), wrong
    assert [own for own in wrong if own.cause in ("healthy", "seeds_agree")] == []
    assert corpus.table(verdicts) in PAGE.read_text(encoding="utf-8")
