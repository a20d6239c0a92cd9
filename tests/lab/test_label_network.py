"""Rivals that know the labels: what the pages say of them is what was measured, item by item."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leverplus.embedders.base import Vectors
from leverplus.metrics import metric_named
from leverplus.training.data.expected_accuracy import ExpectedAccuracy
from leverplus.types import Item, ItemId

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import label_network as script  # noqa: E402

NAMES = {8_000: "best_8k", 32_000: "best_32k", 128_000: "best"}


def lead(found: dict[str, Any]) -> str:
    low, high = found["ci95"]
    return f"({100 * low:.1f} to {100 * high:.1f})"


def test_the_pages_say_what_was_measured() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page = " ".join((ROOT / "docs" / "bench.md").read_text(encoding="utf-8").split())
    for row in script.table():
        ranked = [f"{100 * row['ranked'][n]:.1f}" for n in ("1", "2", "3", "4", "mean")]
        cells = [f"`{NAMES[row['budget']]}`", f"{row['pool']:,}", f"{100 * row['best']:.1f}", *ranked]
        cells += [f"{100 * row['alone']:.1f}"]
        cells += [f"{100 * row[n]['diff']:+.1f} {lead(row[n])}" for n in ("best_less_ranked", "best_less_alone")]
        assert f"| {' | '.join(cells)} |" in results
        assert lead(row["best_less_ranked"]) in page
        assert ranked[-1] in page


def test_a_network_expects_most_of_the_answer_that_belongs_to_a_cluster() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, size=240)
    text = np.eye(8, dtype=np.float32)[kinds] + 0.1 * rng.standard_normal((240, 8)).astype(np.float32)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    vectors = Vectors(image=None, text=text, answer=text)
    items = [Item(ItemId(f"d{row}"), f"q {row}", (f"kind {kind}",), "train") for row, kind in enumerate(kinds)]
    judge = ExpectedAccuracy(items, vectors, metric_named("exact_match"), seed=0)
    columns = {answer: column for column, answer in enumerate(judge.predictors[0].columns)}
    network = script.LabelNetwork(judge, columns)
    new = [ItemId(f"new {row}") for row in range(240)]
    expected = network.expected(new, vectors)
    assert expected.shape == (240, 3)
    assert (expected.argmax(axis=1) == network.columns_of(items)).mean() > 0.95
    with pytest.raises(AssertionError):
        network.expected([ItemId("d0")], Vectors(image=None, text=text[:1], answer=text[:1]))
