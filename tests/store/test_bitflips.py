"""One bit changed anywhere in a store or an export: no score is read wrong. The long form: benchmarks/bitflips.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_no_flipped_bit_of_an_export_or_a_store_reads_wrong(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    try:
        import bitflips

        result = bitflips.run(flips=30, count=300, seed=1)
    finally:
        sys.modules.pop("bitflips", None)
    for kind in ("exports", "stores"):
        values = result[kind]
        assert (values["files_read_wrong"], values["clean_but_missing"], values["unclean"]) == (0, 0, 0)
    assert result["exports"]["files_losing_scores"] > 0  # the flips do hit what is stored
    assert result["stores"]["files_losing_scores"] > 0
    assert result["stores"]["fewest_scores_kept"] >= 299  # a bit costs one score at most
