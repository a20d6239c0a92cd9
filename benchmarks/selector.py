"""How quick a bundle is: load, select, add and delete at several sizes, with vectors given and with MiniLM.

    python benchmarks/selector.py --out selector.json [--sizes 10000,100000] [--million] [--texts FILE ...]

Demonstrations are synthetic texts; vectors are clustered unit vectors of width 384, or, with --texts, MiniLM vectors of
the lines of real files for the recall of cells. Times are of one thread (set OMP_NUM_THREADS=1), in milliseconds: CPU
time of the process, so that waiting for other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.ranking.labels import LEARNT_FROM, LabelModel
from leverplus.ranking.ranking import by_labels
from leverplus.selector.choose import FEWEST
from leverplus.selector.index import CELLS_ABOVE, CellIndex, FlatIndex, learn_cells
from leverplus.selector.pack import BundlePlan, write_bundle
from leverplus.selector.ranked import ranking_facts
from leverplus.selector.selector import Selector
from leverplus.selector.store import Entry
from leverplus.types import ItemId

WIDTH = 384
ASKED = 200
ANSWERS = (50, 2048)
"""How many answers the label model of `label_rank` tells apart: a task with labels, and the most."""
SMALL = {
    "nearest_text": ("nearest_text", False, ANSWERS[0]),
    "learned": ("learned", False, ANSWERS[0]),
    "label_rank": ("label_rank", False, ANSWERS[0]),
    "label_rank_2048": ("label_rank", False, ANSWERS[1]),
}
LARGE = {"nearest_text": ("nearest_text", False, ANSWERS[0]), "cells": ("nearest_text", True, ANSWERS[0])}
"""By the name in the result: the arm, whether it searches by cells, how many answers there are."""


def cloud(count: int, seed: int, width: int = WIDTH) -> NDArray[np.float32]:
    """Unit vectors in clusters, a part at a time."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((2000, width)).astype(np.float32)
    out = np.empty((count, width), np.float32)
    for start in range(0, count, 50_000):
        size = min(50_000, count - start)
        part = centres[rng.integers(len(centres), size=size)] + 0.7 * rng.standard_normal((size, width), np.float32)
        out[start : start + size] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return out


def cpu_ms(work: Callable[[], Any], times: int) -> dict[str, float]:
    """Median and 95th percentile of the CPU time of something, and the median of the clock."""
    cpu, clock = [], []
    for _ in range(times):
        begun, started = time.process_time(), time.perf_counter()
        work()
        cpu.append(1000 * (time.process_time() - begun))
        clock.append(1000 * (time.perf_counter() - started))
    return {
        "p50": round(statistics.median(cpu), 3),
        "p95": round(sorted(cpu)[int(0.95 * len(cpu))], 3),
        "clock_p50": round(statistics.median(clock), 3),
    }


def untrained_policy(width: int) -> Any:
    """The selector that `lever fit` trains, as it is before training: as quick as afterwards."""
    from leverplus.policies.build import build_policy
    from leverplus.recipe.selection import read_selection

    values = {"preset": "bi_encoder_gate", "state": "none", "query_fields": ["text"], "demo_fields": ["text", "answer"]}
    config = read_selection(values, [])
    assert config is not None
    return build_policy(config, {"text": width, "answer": width})


def make(
    folder: Path, vectors: NDArray[np.float32], arm: str, cells: bool | None = None, answers: int = ANSWERS[0]
) -> Path:
    entries = (
        (Entry(ItemId(f"d{row}"), f"question {row}", (f"answer {row % answers}",)), None) for row in range(len(vectors))
    )
    blocks = {"text": vectors, **({"answer": vectors} if arm == "learned" else {})}
    policy = untrained_policy(vectors.shape[1]) if arm == "learned" else None
    section = {"section": {"name": "sentence"}, "fingerprint": {}}
    labels = label_model(vectors, answers) if arm == "label_rank" else None
    ranking = None if labels is None else ranking_facts(by_labels({"text": 1.0}, len(vectors)), labels)
    plan = BundlePlan(arm=arm, candidates=FEWEST, embedder=section, ranking=ranking)
    return write_bundle(folder, plan, entries, blocks, policy=policy, cells=cells, labels=labels)


def label_model(vectors: NDArray[np.float32], answers: int) -> LabelModel:
    """As large as one that was learnt from so many demonstrations, and as quick; its numbers are drawn."""
    few = np.sort(np.random.default_rng(0).permutation(len(vectors))[:LEARNT_FROM])
    weights = np.random.default_rng(1).normal(size=(len(few), answers)).astype(np.float32)
    texts = [f"answer {place}" for place in range(answers)]
    return LabelModel(
        items=[ItemId(f"d{row}") for row in few],
        vectors=Vectors(text=vectors[few], image=None, answer=vectors[few]),
        weights=weights,
        left_out=weights,
        columns={text: place for place, text in enumerate(texts)},
        answers=texts,
        width=0.15,
        text_share=1.0,
        accuracy=0.0,
        tries=0,
    )


def load_times(folder: Path, times: int = 3) -> dict[str, float]:
    return cpu_ms(lambda: Selector.load(folder), times)


def measure(folder: Path, queries: NDArray[np.float32], times: int) -> dict[str, Any]:
    selector = Selector.load(folder)
    turns = iter(range(10**9))

    def ask() -> None:
        selector.select(question="x", shots=4, vectors={"text": queries[next(turns) % len(queries)]})

    ask()
    found: dict[str, Any] = {"index": selector.source.rows.index.name, "select": cpu_ms(ask, times)}
    some = [f"d{row}" for row in range(0, 10_000, 7)]
    found["select_1429_allowed"] = cpu_ms(
        lambda: selector.select(question="x", shots=4, allowed=some, vectors={"text": queries[0]}), min(times, 50)
    )
    return found


def with_encoder(folder: Path) -> dict[str, Any]:
    """One text through MiniLM and the choice, and the network with its tokenizer alone."""
    import torch

    from leverplus.embedders.cached import open_embedder
    from leverplus.recipe.sections import EmbedSection
    from leverplus.selector.sources import BundleSource, QueryEncoder

    opened: Any = open_embedder(EmbedSection(name="sentence"), folder)
    encoder = QueryEncoder(opened)
    selector = Selector.load(folder)
    assert isinstance(selector.source, BundleSource)
    selector.source._open_encoder = lambda: encoder  # the vectors here are synthetic, so it did not make them
    question = "What county is Modesto, California in?"
    selector.select(question=question)
    with torch.inference_mode():
        alone = cpu_ms(lambda: opened.encoder.texts([question]), 60)
    whole = cpu_ms(lambda: selector.select(question=question, shots=4), 60)
    return {"encoder": alone, "select": whole, "ratio": round(whole["p50"] / alone["p50"], 2)}


def changes(folder: Path, vectors: NDArray[np.float32]) -> dict[str, Any]:
    """What adding and deleting one demonstration costs, the embedding left out."""
    from leverplus.selector.sources import BundleSource, packed

    selector = Selector.load(folder)
    source, turns = selector.source, iter(range(10**9))
    assert isinstance(source, BundleSource)
    names = list(source.rows.blocks)

    def add() -> None:
        number = next(turns)
        blob = packed(dict.fromkeys(names, vectors[number : number + 1]), names)
        with source.store.change():
            source.store.add([Entry(ItemId(f"new{number}"), f"new {number}", ("a",))], (), blob)
        source._catch_up()

    added = cpu_ms(add, 50)
    gone = iter(range(10**9))
    return {"add": added, "delete": cpu_ms(lambda: selector.delete([f"new{next(gone)}"]), 50)}


def text_cells(files: list[Path], cache: Path | None) -> dict[str, Any]:
    """Cells on MiniLM vectors of real texts: the recall that was measured and the time of a query."""
    if cache is not None and cache.is_file():
        vectors = np.load(cache, allow_pickle=False)
    else:
        from leverplus.embedders.cached import CachedEmbedder
        from leverplus.embedders.sentence import SentenceEncoder
        from leverplus.recipe.sections import EmbedSection

        lines = [line for file in files for line in file.read_text(encoding="latin-1").split("\n") if line.strip()]
        embedder = CachedEmbedder(SentenceEncoder(EmbedSection(name="sentence")), Path(tempfile.mkdtemp()))
        vectors = embedder.of_texts(list(dict.fromkeys(lines)))
        if cache is not None:
            np.save(cache, vectors)
    held_out, base = vectors[:ASKED], vectors[ASKED:]
    table = learn_cells(base)
    if table is None:
        return {"n": len(base), "cells": None}
    cells, flat = CellIndex(base, table), FlatIndex(base)
    hits = [len(set(cells.propose(q, None, 64)) & set(flat.propose(q, None, 64))) / 64 for q in held_out]
    return {
        "n": len(base),
        "cells": len(table.centres),
        "opened": table.opened,
        "recall_on_own": round(table.recall, 4),
        "recall_on_held_out": round(float(np.mean(hits)), 4),
        "query": cpu_ms(lambda: cells.propose(held_out[0], None, 64), 100),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--million", action="store_true", help="also a million: flat and cells (needs faiss, 8 GB)")
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--cache", type=Path, help="keep the vectors of --texts here")
    parser.add_argument("--no-encoder", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {"width": WIDTH, "sizes": {}}
    sizes = [int(part) for part in args.sizes.split(",") if part]
    with tempfile.TemporaryDirectory() as place:
        for size in [*sizes, *([CELLS_ABOVE] if args.million else [])]:
            vectors = cloud(size + ASKED, 0)
            base, queries = vectors[:size], vectors[size:]
            own = found["sizes"].setdefault(str(size), {})
            kinds = LARGE if size >= CELLS_ABOVE else SMALL
            for name, (arm, cells, answers) in kinds.items():
                folder = make(Path(place) / f"{name}-{size}", base, arm, cells, answers)
                own[name] = {"load": load_times(folder), **measure(folder, queries, 200 if size < CELLS_ABOVE else 50)}
                if arm == "learned" and size == sizes[0] and not args.no_encoder:
                    own["with_minilm"] = with_encoder(folder)
                if name == "nearest_text":
                    own["changes"] = changes(folder, queries)
                print(size, name, json.dumps(own[name]), flush=True)
    if args.texts or (args.cache and args.cache.is_file()):
        found["texts"] = text_cells(args.texts, args.cache)
        print("texts", json.dumps(found["texts"]))
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
