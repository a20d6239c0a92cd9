"""Over a corpus of logs of many libraries the doctor names the planted cause first, and nothing in healthy logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking import load_benchmark

pytestmark = pytest.mark.slow

corpus = load_benchmark("doctor_corpus")
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.fixture(scope="module")
def verdicts():
    return corpus.judge_corpus()


@pytest.mark.parametrize("half", corpus.HALVES)
def test_the_planted_cause_is_named_first_in_nine_of_ten_logs(verdicts, half):
    own = [verdict for verdict in verdicts if verdict.half == half]
    wrong = [verdict for verdict in own if not verdict.right]
    assert len(own) > 150
    assert len(wrong) <= 0.1 * len(own), wrong


def test_no_healthy_log_raises_an_error_or_a_warning(verdicts):
    healthy = [verdict for verdict in verdicts if verdict.cause in corpus.SILENT]
    assert {verdict.form for verdict in healthy} == {verdict.form for verdict in verdicts}
    assert [verdict for verdict in healthy if not verdict.right] == []


def test_the_page_shows_the_table_that_the_corpus_gives(verdicts):
    assert corpus.table(verdicts) in PAGE.read_text(encoding="utf-8")


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in corpus.CORPUS.iterdir()) < 1_500_000
