"""The cross-fitted OK-VQA result is recomputed from its accuracies item by item, and folds are kept apart."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from leverplus.lab.real import read_file

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "real" / "okvqa-crossfit.parquet"


def test_the_page_says_what_the_records_hold() -> None:
    page = (ROOT / "docs" / "recorded.md").read_text(encoding="utf-8")
    found = {record.arm: record for record in read_file(KEPT)}
    nearest = found["nearest by question"]
    assert len(nearest.items) == len(set(nearest.items)) == 5045
    assert not any(np.isnan(record.accuracy).any() for record in found.values())
    for name in ("nearest by question", "one for all, chosen on train", "effects, parts chosen"):
        gain = found[name].mean - nearest.mean
        assert f"| {name} | {100 * found[name].mean:.2f} | {100 * gain:+.2f} (" in page


def made(folder: Path, rng: np.random.Generator) -> Path:
    """A small crossed table whose demonstrations differ in worth."""
    items, places = 150, 64
    fold = np.arange(items) % 5
    candidates = np.stack([rng.permutation(np.flatnonzero(fold != own))[:places] for own in fold])
    effect = rng.normal(0.0, 0.3, items)
    scores = np.clip(0.5 + effect[candidates] + rng.normal(0.0, 0.2, candidates.shape), 0.0, 1.0)
    likeness = {name: rng.random(candidates.shape).astype(np.float32) for name in ("question", "both", "caption")}
    votes = {f"vote{f} by {n}": rng.random(candidates.shape).astype(np.float32) for f in range(5) for n in likeness}
    np.savez(
        folder / "made.npz",
        candidates=candidates,
        accuracy=scores,
        probability=scores,
        fold=fold,
        queries=np.arange(items),
        group=np.arange(items),
        ids=np.array([str(n) for n in range(items)]),
        about=np.array(["okvqa", "made"]),
        vectors=rng.normal(size=(items, 12)),
        **likeness,
        **votes,
    )
    return folder / "made.npz"


def test_effects_are_found_and_the_tested_fold_teaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import real_crossfit

    assert "real_crossfit" in sys.modules
    own = real_crossfit.Crossfit(made(tmp_path, np.random.default_rng(0)))
    parts = (("similarity",), ("similarity", "effects"))
    found = own.run([0], combinations=parts)
    tested = own.fold == 0
    assert np.isnan(found["similarity"][~tested]).all()
    assert found["similarity + effects"][tested].mean() > found["similarity"][tested].mean() + 0.2
    # scrambling the answers of the tested fold changes what is measured there, not what is chosen
    before = own.score(parts[1], (own.demo_fold != 0) & ~tested[:, None], {})
    own.accuracy[tested] = np.random.default_rng(1).random(own.accuracy[tested].shape)
    own.kept["accuracy"], own.known = own.accuracy, (b"", {})
    assert own.score(parts[1], (own.demo_fold != 0) & ~tested[:, None], {}) == pytest.approx(before)


def test_calls_are_counted_and_thompson_asks_for_the_better_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import real_crossfit

    own = real_crossfit.Crossfit(made(tmp_path, np.random.default_rng(2)))
    rng = np.random.default_rng(3)
    chance, thompson = own.by_chance(1600, rng), own.by_thompson(1600, rng)
    assert chance.sum() == thompson.sum() == 1600
    assert own.accuracy[thompson].mean() > own.accuracy[chance].mean() + 0.03
