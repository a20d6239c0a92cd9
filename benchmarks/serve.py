"""How many requests `lever serve` answers: 32 clients at once over 10,000 demonstrations, and its memory over many.

    python benchmarks/serve.py --out serve.json [--demos 10000] [--clients 32] [--requests 4000] [--workers 2]
                               [--soak 100000] [--langchain 64]

Every question has a vector of 384 numbers that is looked up, by the service's embedder and by LangChain's alike, so
that what is measured is everything but the encoder. Clients speak HTTP over kept connections from one process.
LangChain (langchain-core) is asked without HTTP, from as many threads; where it is not installed, that is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from leverplus.arms.nearest import NearestText
from leverplus.bundle.bundle import TRUST, BundlePlan, write_bundle
from leverplus.bundle.selector import Selector
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.encode.settings import EmbedSection

HERE = Path(__file__).parent
WIDTH = 384
QUERIES = 1000
SHOTS = 4
VARIABLE = "LEVER_BENCHMARK_VECTORS"
FINGERPRINT = {"embedder": "looked-up"}


@cache
def query_vectors() -> NDArray[np.float32]:
    return np.load(os.environ[VARIABLE])


def vector_of(text: str) -> NDArray[np.float32]:
    """The vector of `query N`."""
    return query_vectors()[int(text.split()[1])]


class LookedUp:
    """An embedder that costs nothing."""

    def fingerprint(self) -> Mapping[str, str]:
        return FINGERPRINT

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:  # noqa: ARG002
        text = np.stack([vector_of(item.question) for item in items])
        return Vectors(None, text, np.zeros_like(text))


def lookup(_section: EmbedSection) -> LookedUp:
    """What the bundle names as its embedder: `serve:lookup`."""
    return LookedUp()


def unit_vectors(count: int, seed: int) -> NDArray[np.float32]:
    """Unit vectors in clusters, as those of texts are."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((500, WIDTH)).astype(np.float32)
    out = centres[rng.integers(len(centres), size=count)] + 0.7 * rng.standard_normal(
        (count, WIDTH), np.float32
    )
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float32)


def make_bundle(folder: Path, vectors: NDArray[np.float32]) -> Path:
    entries = (
        (
            Item(
                ItemId(f"d{row}"), f"question {row}", (f"answer {row % 50}",), "train"
            ),
            None,
        )
        for row in range(len(vectors))
    )
    section = {"name": "serve:lookup", "fingerprint": FINGERPRINT}
    plan = BundlePlan(shots=SHOTS, embedder=section)
    return write_bundle(folder, plan, NearestText(), entries, {"text": vectors})


def percentile(values: Sequence[float], share: float) -> float:
    return round(1000 * float(np.quantile(values, share)), 2)


def summary(seconds: Sequence[float], whole: float) -> dict[str, float]:
    return {
        "requests": len(seconds),
        "per_second": round(len(seconds) / whole, 1),
        "p50_ms": percentile(seconds, 0.5),
        "p99_ms": percentile(seconds, 0.99),
        "mean_ms": round(1000 * statistics.fmean(seconds), 2),
    }


async def drive(
    port: int, clients: int, requests: int, sample: Any = None
) -> tuple[list[float], float, int]:
    """Times of single requests, the time of all, and how many did not end well."""
    bodies = [
        json.dumps({"question": f"query {number}", "shots": SHOTS}).encode()
        for number in range(QUERIES)
    ]
    head = f"POST /select HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    wires = [
        head.encode() + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies
    ]
    turns, times, bad = iter(range(requests)), [], 0

    async def client() -> None:
        nonlocal bad
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in turns:
            started = time.perf_counter()
            writer.write(wires[number % QUERIES])
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split()[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - started)
            bad += not (
                answer.startswith(b"HTTP/1.1 200") and body.count(b'"id"') == SHOTS
            )
            if sample is not None:
                sample(len(times))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return times, time.perf_counter() - started, bad


def start(folder: Path, workers: int) -> tuple[subprocess.Popen[str], int]:
    paths = os.pathsep.join(
        [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "leverplus",
            "serve",
            str(folder),
            "--port",
            "0",
            "--workers",
            str(workers),
            "--no-log",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    return process, int(
        process.stdout.readline().split("/ serves")[0].rpartition(":")[2]
    )


def memory(process: subprocess.Popen[str]) -> int:
    """Bytes in memory of the service and its workers."""
    own = psutil.Process(process.pid)
    return sum(part.memory_info().rss for part in (own, *own.children(recursive=True)))


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """CPU time of the service and its workers: what counts where other work shares the cores."""
    own = psutil.Process(process.pid)
    return sum(
        sum(part.cpu_times()[:2]) for part in (own, *own.children(recursive=True))
    )


def soak(
    process: subprocess.Popen[str], port: int, clients: int, requests: int
) -> dict[str, Any]:
    """Memory at every twentieth of many requests, in MB."""
    grown: list[float] = []
    every = max(1, requests // 20)

    def sample(done: int) -> None:
        if done % every == 0:
            grown.append(round(memory(process) / 1e6, 1))
            print(f"{done} requests, {grown[-1]} MB", flush=True)

    times, whole, bad = asyncio.run(drive(port, clients, requests, sample))
    return {**summary(times, whole), "errors": bad, "memory_mb": grown}


def ask_langchain(
    vectors: NDArray[np.float32], clients: int, requests: int
) -> dict[str, Any]:
    """SemanticSimilarityExampleSelector over its in-memory store with the same vectors, without HTTP."""
    from langchain_core.embeddings import Embeddings
    from langchain_core.example_selectors import SemanticSimilarityExampleSelector
    from langchain_core.vectorstores import InMemoryVectorStore

    class Same(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [vectors[int(text.split()[-1])].tolist() for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return vector_of(text).tolist()

    store = InMemoryVectorStore(Same())
    rows = range(len(vectors))
    store.add_texts(
        [f"question {row}" for row in rows],
        metadatas=[
            {"question": f"question {row}", "answer": f"answer {row % 50}"}
            for row in rows
        ],
    )
    selector = SemanticSimilarityExampleSelector(vectorstore=store, k=SHOTS)

    def one(number: int) -> float:
        started = time.perf_counter()
        assert (
            len(selector.select_examples({"question": f"query {number % QUERIES}"}))
            == SHOTS
        )
        return time.perf_counter() - started

    alone = [one(number) for number in range(8)]
    started, before = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(clients) as threads:
        times = list(threads.map(one, range(requests)))
    found = {
        **summary(times, time.perf_counter() - started),
        "one_at_a_time_p50_ms": percentile(alone, 0.5),
    }
    found["cpu_ms"] = round(1000 * (time.process_time() - before) / requests, 2)
    found["first"] = [
        one["question"] for one in selector.select_examples({"question": "query 0"})
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--demos", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument(
        "--langchain",
        type=int,
        default=64,
        help="requests to LangChain's selector; 0: none",
    )
    args = parser.parse_args()
    found: dict[str, Any] = {
        "demos": args.demos,
        "clients": args.clients,
        "workers": args.workers,
        "width": WIDTH,
    }
    found["cores"], found["load"] = os.cpu_count(), os.getloadavg()
    with tempfile.TemporaryDirectory() as place:
        np.save(Path(place) / "queries.npy", unit_vectors(QUERIES, 2))
        os.environ[TRUST] = "serve"
        os.environ[VARIABLE] = str(Path(place) / "queries.npy")
        sys.modules.setdefault("serve", sys.modules["__main__"])
        vectors = unit_vectors(args.demos, 1)
        folder = make_bundle(Path(place) / "bundle", vectors)
        nearest = [
            demo.question
            for demo in Selector.load(folder).select(question="query 0", shots=SHOTS)
        ]
        process, port = start(folder, args.workers)
        try:
            asyncio.run(
                drive(port, args.clients, 10 * args.clients)
            )  # everything is loaded once
            before = cpu_seconds(process)
            times, whole, bad = asyncio.run(drive(port, args.clients, args.requests))
            spent = 1000 * (cpu_seconds(process) - before) / args.requests
            found["lever"] = {
                **summary(times, whole),
                "errors": bad,
                "cpu_ms": round(spent, 2),
            }
            print(json.dumps(found["lever"]), flush=True)
            alone, whole, bad = asyncio.run(drive(port, 1, min(200, args.requests)))
            found["lever_one_client"] = {**summary(alone, whole), "errors": bad}
            print(json.dumps(found["lever_one_client"]), flush=True)
            if args.langchain and find_spec("langchain_core") is not None:
                found["langchain"] = ask_langchain(
                    vectors, args.clients, args.langchain
                )
                found["same_choice"] = (
                    found["langchain"].pop("first") == nearest[::-1]
                )  # nearest first there
                print(json.dumps(found["langchain"]), flush=True)
            if args.soak:
                found["soak"] = soak(process, port, args.clients, args.soak)
                print(json.dumps(found["soak"]), flush=True)
        finally:
            process.terminate()
            process.wait(60)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
