"""The table of live runs with ranked ways of choosing says what its record says."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shown(by_shots: dict[str, float]) -> str:
    """One demonstration and the most, as the table has them."""
    last = max(by_shots, key=int)
    return f"{100 * by_shots['1']:.1f} / {100 * by_shots[last]:.1f}"


def test_the_table_says_what_the_record_says() -> None:
    record = json.loads((ROOT / "benchmarks" / "real" / "ranked.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(record) == 8
    for own in record.values():
        arms = own["arms"]
        gain = next(
            row for row in own["comparisons"] if (row["arm"], row["baseline"], row["shots"]) == ("effects", "mmr", 1)
        )
        low, high = (100 * bound for bound in gain["ci95"])
        cells = [
            own["run"],
            f"{own['n']:,}",
            f"{own['model_calls']:,}",
            f"{100 * arms['zero_shot']['0']:.1f}",
            shown(arms["nearest_text"]),
            f"{100 * arms['label_regression']['0']:.1f}",
            *(shown(arms[arm]) for arm in ("label_rank", "effects", "learned")),
            f"{100 * gain['diff']:+.1f} ({low:+.1f} to {high:+.1f})",
        ]
        assert f"| {' | '.join(cells)} |" in page


def test_the_table_of_sixteen_demonstrations_says_what_its_record_says() -> None:
    record = json.loads((ROOT / "benchmarks" / "real" / "sixteen.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(record) == 3
    for own in record.values():
        by_arm = [
            " / ".join(f"{100 * own['arms'][arm][n]:.1f}" for n in ("1", "2", "4", "8", "16"))
            for arm in ("nearest_text", "mmr", "label_rank", "effects", "learned")
        ]
        alone = f"{100 * own['arms']['label_regression']['0']:.1f}"
        cells = [own["run"], f"{own['n']:,}", *by_arm, alone]
        assert f"| {' | '.join(cells)} |" in page
    ok = record["okvqa_captions_smollm"]["comparisons"]
    for baseline in ("nearest_text", "label_rank"):
        row = next(row for row in ok if (row["arm"], row["baseline"], row["shots"]) == ("effects", baseline, 16))
        low, high = (100 * bound for bound in row["ci95"])
        words = f"{100 * row['diff']:+.1f} ({low:.1f} to {high:.1f}"
        assert words in " ".join(page.split())
