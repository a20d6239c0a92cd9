"""What reinforcement learning adds on the recorded OK-VQA table: the page says what the kept accuracies come to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leverplus.lab.real import read_file
from leverplus.stats import adjust, compare

ROOT = Path(__file__).parents[2]
FIRST = "label_pretraining, listwise"
OTHERS = (f"{FIRST}, grpo", f"{FIRST}, rce", "label_pretraining, rce, grpo")


def test_the_page_says_what_the_accuracies_of_every_item_come_to() -> None:
    kept = read_file(ROOT / "benchmarks" / "real" / "okvqa-rl.parquet")
    names = dict.fromkeys(record.arm for record in kept)
    mean = {name: np.mean([record.accuracy for record in kept if record.arm == name], axis=0) for name in names}
    groups = kept[0].groups
    rivals = (FIRST, "nearest_text", "label_rank")
    pairs = [(name, rival) for rival in rivals for name in OTHERS]
    found = adjust([compare(mean[name], mean[rival], clusters=groups, resamples=2000) for name, rival in pairs])
    said = dict(zip(pairs, found, strict=True))
    page = (ROOT / "docs" / "recorded.md").read_text(encoding="utf-8")
    for name in OTHERS:
        cells = [f"{100 * mean[name].mean():.1f}"]
        for rival in rivals:
            own = said[name, rival]
            low, high = (100 * bound for bound in own.ci95)
            cells.append(f"{100 * own.diff:+.1f} ({low:+.1f} to {high:+.1f}), p = {own.p_adjusted:.2g}")
        assert f"| {name} | {' | '.join(cells)} |\n" in page
    assert f"| {FIRST} | {100 * mean[FIRST].mean():.1f} | | | |\n" in page
