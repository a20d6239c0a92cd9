"""The command itself against a server, killed with -9 again and again: it repeats at most what was under way."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("httpx")
pytest.importorskip("transformers", reason="the extra `hf` is not installed")
import paying_scorer
from faulty_server import faulty
from forked import LEVER, Forker
from test_api import RECIPE

from leverplus.models.settings import ModelSection

KILLS, THREADS = 20, 2


@pytest.mark.slow
def test_lever_killed_twenty_times_pays_for_nothing_twice_but_what_was_under_way(
    tmp_path: Path, forker: Forker
) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "encode"))
    from tiny_networks import save_sentence_model

    weights = save_sentence_model(tmp_path / "weights")
    rng, posts = random.Random(11), list[int]()
    for name, kills in (("killed", KILLS), ("alone", 0)):
        folder = tmp_path / name
        folder.mkdir()
        with faulty(delay=0.02) as served:
            section = ModelSection(name="speaker-1", url=served.url)
            paying_scorer.open_scorer(folder, section)  # writes the items
            served.tokens.clear()
            (folder / "own.toml").write_text(
                RECIPE.format(folder=folder, weights=weights, url=served.url)
            )
            words = ["run", str(folder / "own.toml"), "--out", str(folder / "run")]
            words += [
                "--store",
                str(folder / "scores.db"),
                "--set",
                f"model.concurrency={THREADS}",
            ]
            lever = LEVER.format(words=words)
            for _ in range(kills):
                before = served.posts
                process = forker.start(lever, LEVER_TEST_KEY="sk-test")
                while process.running() and served.posts == before:
                    time.sleep(0.005)
                time.sleep(rng.uniform(0.0, 0.4))
                assert process.running(), "it was done before it was killed"
                os.kill(process.pid, signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
            assert forker.run(lever, LEVER_TEST_KEY="sk-test") == 0
            posts.append(len(served.tokens))
            spent = json.loads((folder / "run" / "run.json").read_text())["spent"]
            charged = served.cost(2.0, 8.0)
            if not kills:
                assert spent["cost"] == pytest.approx(charged, abs=1e-12)
                assert spent["unpriced"] == 0
    asked, needed = posts
    assert asked - needed <= KILLS * THREADS
    print(f"{asked} requests with {KILLS} kills, {needed} without")
