"""How fast the page is over runs with many predictions: its first view, every kind of filter, a comparison.

    python benchmarks/view.py                  a table, for 100,000 predictions
    python benchmarks/view.py --rows 1000000   the same for another number
    python benchmarks/view.py --json           one JSON object

The run is a folder with the recipe `world` and made-up answers to the world's real test items. The first view is the
first request to a page that was just started (its libraries are loaded, no file is read yet): it reads the predictions,
makes their index and draws the task's items. Filters are measured on the page as it then stands, median of five. The
comparison is of two such runs, each with the same number of predictions, on the first request.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi.testclient import TestClient

from leverplus.evaluation.conditions import items_hash
from leverplus.experiment.opening import open_run
from leverplus.recipe.recipe import find_recipe, load_recipe
from leverplus.tasks.world import WorldTask, draw_items
from leverplus.view.app import create_view

ARMS = ("random", "nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "learned", "oracle")
SHOTS = (1, 2, 3, 4)
FIRST_LIMIT, FILTER_LIMIT = 1.0, 0.3


def make_run(folder: Path, rows: int, changed: Sequence[str] = ()) -> int:
    """A run folder with about `rows` predictions: every arm at every number of shots on the same items."""
    open_run(load_recipe("world", changed), find_recipe("world"), folder, seed=0, store_path=folder / "scores.db")
    task = WorldTask(0)
    queries, demos = task.items("test"), [item.id for item in task.items("train")]
    rng = np.random.default_rng(len(changed))
    cells = len(ARMS) * len(SHOTS)
    count = min(len(queries), -(-rows // cells))
    draws = -(-rows // (cells * count))
    columns: dict[str, list[Any]] = {name: [] for name in ("item", "image", "arm", "shots", "draw", "demos", "answer")}
    for arm in ARMS:
        for shots in SHOTS:
            for draw in range(draws):
                chosen = rng.integers(len(demos), size=(count, shots))
                columns["item"] += [query.id for query in queries[:count]]
                columns["image"] += [query.image_id for query in queries[:count]]
                columns["arm"] += [arm] * count
                columns["shots"] += [shots] * count
                columns["draw"] += [draw] * count
                columns["demos"] += [[demos[place] for place in row] for row in chosen]
                columns["answer"] += [query.answer for query in queries[:count]]
    total = len(columns["item"])
    table = {
        **{name: pa.array(columns[name], pa.string()) for name in ("item", "image", "answer")},
        "arm": pa.array(columns["arm"], pa.dictionary(pa.int8(), pa.string())),
        **{name: pa.array(columns[name], pa.int8()) for name in ("shots", "draw")},
        "demos": pa.array(columns["demos"], pa.list_(pa.string())),
        "score": rng.choice([0.0, 0.3, 0.6, 1.0], total),
        "tokens": pa.array(np.full(total, 20), pa.int32()),
        "seconds": pa.array(np.zeros(total), pa.float32()),
    }
    pq.write_table(pa.table(table), folder / "predictions.parquet")
    means = {arm: {"shots": {str(n): 0.475 for n in SHOTS}, "mean": 0.475} for arm in ARMS}
    conditions = {"items": items_hash([query.id for query in queries[:count]])}
    found = {"n": count, "split": "test", "arms": means, "comparisons": [], "conditions": conditions}
    (folder / "eval.json").write_text(json.dumps(found))
    return total


def seconds_of(client: TestClient, address: str) -> float:
    started = time.perf_counter()
    answer = client.get(address)
    taken = time.perf_counter() - started
    if answer.status_code != 200:
        raise SystemExit(f"{address} answered {answer.status_code}: {answer.text[:400]}")
    return taken


def measure(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        total = make_run(Path(place) / "big", rows)
        make_run(Path(place) / "other", rows, ["sft.lr=0.01"])
        draw_items.cache_clear()  # making the run has drawn the items already; a page that was just started has not
        client = TestClient(create_view(Path(place)), base_url="http://127.0.0.1")
        base = "/run/big/queries?arm=learned&baseline=nearest_both&shots=2"
        filters = {
            "next page": "&page=2",
            "helped": "&fate=helped",
            "flipped": "&fate=flipped",
            "relation": "&trait=relation=fears",
            "search": "&q=secret",
            "all at once": "&fate=harmed&trait=relation=fears&q=fear",
            "another arm": "&arm=oracle",
        }
        first = seconds_of(client, "/run/big/queries")
        found = {name: median(seconds_of(client, base + more) for _ in range(5)) for name, more in filters.items()}
        compared = seconds_of(client, "/compare?run=big&run=other")
    return {"predictions": total, "first view": first, "filters": found, "compare": compared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.rows)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{found['predictions']:,} predictions")
    print(f"  {'first view':<14}{1000 * found['first view']:8.0f} ms  (limit {1000 * FIRST_LIMIT:.0f})")
    for name, taken in found["filters"].items():
        print(f"  {name:<14}{1000 * taken:8.0f} ms  (limit {1000 * FILTER_LIMIT:.0f})")
    print(f"  {'compare two':<14}{1000 * found['compare']:8.0f} ms")


if __name__ == "__main__":
    main()
