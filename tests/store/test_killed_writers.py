from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "store.py"


@pytest.mark.slow
def test_killed_writers_lose_nothing_committed_and_ask_nothing_committed_again(tmp_path) -> None:
    """A reduced run of the benchmark: four writers, kill -9, start again; on shares, then all on the same prompts."""
    options = ["--records", "0", "--kills", "2", "--queries", "160", "--folder", str(tmp_path), "--json"]
    done = subprocess.run([sys.executable, BENCHMARK, *options], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    for run in (result["kill"], result["race"]):
        assert run["workers_killed"] >= 2
        assert run["records"] == run["expected"]
        assert (run["unfinished"], run["committed_lost"], run["committed_asked_again"]) == (0, 0, 0)
        assert run["clean"]
    assert result["kill"]["repeated"] <= result["kill"]["repeats_allowed"]
