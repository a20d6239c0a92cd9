"""The score store under load and under kill -9: rates for a million records, and what survives killed writers.

    python benchmarks/store.py              the whole table
    python benchmarks/store.py --json       the same as one JSON object

Kill test: four processes score disjoint shares (or, racing, all the same prompts) in batches, asking the store what is
missing first. They are killed with SIGKILL at a random moment and started again. Each writes down when it asked for a
batch and when its commit returned, so the log shows whether anything committed was asked again or lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from leverplus.data.types import ItemId, Reference, Score
from leverplus.scores.exchange import verify
from leverplus.scores.keys import Context, score_key
from leverplus.scores.store import ScoreStore

WORKERS = 4
BATCH = 64
KILL_BATCH = 32
CONTEXT = Context.of(
    {"model": "benchmark", "template": "plain", "decoding": "greedy"},
    task="benchmark",
    task_version="1",
    metric="vqa_accuracy",
    cut="first_line",
)
ANSWERS = ("red ball", "ball", "sphere", "a toy", "apple")


def digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def records(queries: range, each: int) -> Iterator[tuple[bytes, Score]]:
    """Scores as a run makes them: `each` sequences of 1-4 demonstrations for every query, five references."""
    rng = random.Random(queries.start)
    names = [ItemId(f"train-{number:06d}") for number in range(10_000)]
    digests = [digest(name) for name in names]
    for number in queries:
        query = ItemId(f"dev-{number:06d}")
        query_digest = digest(query)
        for index in range(each):
            chosen = [*rng.sample(range(each, len(names)), index % 4), index]
            yield (
                score_key(CONTEXT.digest, query_digest, [digests[i] for i in chosen]),
                _score(rng, query, tuple(names[i] for i in chosen)),
            )


def _score(rng: random.Random, query: ItemId, demos: tuple[ItemId, ...]) -> Score:
    accuracy = rng.choice((0.0, 1 / 3, 2 / 3, 1.0))
    logprobs = [
        struct.unpack("f", struct.pack("f", -10 * rng.random()))[0] for _ in ANSWERS
    ]
    return Score(
        query=query,
        demos=demos,
        raw=" red ball\n",
        answer="red ball",
        accuracy=accuracy,
        correct=accuracy > 0,
        references=tuple(map(Reference, ANSWERS, (4, 2, 2, 1, 1), logprobs)),
        token_f1=rng.random(),
        edit_similarity=rng.random(),
        tokens=rng.randrange(200, 900),
        seconds=rng.random(),
    )


def batches(
    source: Iterator[tuple[bytes, Score]], size: int
) -> Iterator[list[tuple[bytes, Score]]]:
    batch: list[tuple[bytes, Score]] = []
    for record in source:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def measure_rates(folder: Path, count: int) -> dict[str, Any]:
    """Insert `count` records in batches of 64 (a commit each), look up 10,000 of them in random order, verify."""
    each = 100
    digests = [digest(str(number)) for number in range(1000)]
    start = time.perf_counter()
    for number in range(count):
        score_key(
            CONTEXT.digest,
            digests[number % 1000],
            (digests[(number + 1) % 1000], digests[(number + 2) % 1000]),
        )
    key_seconds = time.perf_counter() - start
    keys: list[bytes] = []
    put_seconds = 0.0
    with ScoreStore(folder / "rates.db") as store:
        for batch in batches(records(range(count // each), each), BATCH):
            keys.extend(key for key, _ in batch)
            start = time.perf_counter()
            store.put(CONTEXT, batch)
            put_seconds += time.perf_counter() - start
        wanted = random.Random(0).sample(keys, min(10_000, len(keys)))
    with ScoreStore(folder / "rates.db") as store:
        start = time.perf_counter()
        found = store.get(wanted)
        lookup_seconds = time.perf_counter() - start
        assert len(found) == len(set(wanted))
        start = time.perf_counter()
        clean = verify(store).clean
        verify_seconds = time.perf_counter() - start
        total = store.count()
    return {
        "records": total,
        "distinct_keys": len(set(keys)),
        "keys_per_second": count / key_seconds,
        "inserts_per_second": len(keys) / put_seconds,
        "lookup_keys": len(wanted),
        "lookup_seconds": lookup_seconds,
        "file_bytes_per_record": (folder / "rates.db").stat().st_size / total,
        "verify_seconds": verify_seconds,
        "clean": clean,
    }


def work(store_path: Path, log_path: Path, share: range, pause: float) -> None:
    """A scoring process: for each batch ask what is missing, measure it (a pause), commit, and write both down."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with ScoreStore(store_path) as store:
        for batch in batches(records(share, 20), KILL_BATCH):
            asked = time.monotonic_ns()
            known = store.get(key for key, _ in batch)
            todo = [(key, score) for key, score in batch if key not in known]
            if todo:
                names = ",".join(key.hex() for key, _ in todo)
                os.write(log, f"ask {asked} {names}\n".encode())
                time.sleep(pause)
                store.put(CONTEXT, todo)
                os.write(log, f"done {time.monotonic_ns()} {names}\n".encode())


def kill_test(
    folder: Path, kills: int, queries: int, pause: float, *, racing: bool
) -> dict[str, Any]:
    """Start four workers, kill each at a random moment, `kills` times over; let the last start finish; count."""
    name = "racing" if racing else "sharded"
    store_path, rng = folder / f"{name}.db", random.Random(1)
    size = queries // WORKERS
    shares = [
        range(queries) if racing else range(w * size, (w + 1) * size)
        for w in range(WORKERS)
    ]
    logs = [folder / f"{name}-{worker}.log" for worker in range(WORKERS)]
    killed = 0
    for attempt in range(kills + 1):
        ends = [(share.start, share.stop) for share in shares]
        commands = [
            ["--work", str(store_path), str(log), str(a), str(b), str(pause)]
            for log, (a, b) in zip(logs, ends, strict=True)
        ]
        workers = [
            subprocess.Popen([sys.executable, __file__, *command])
            for command in commands
        ]
        if attempt < kills:
            _wait_for_progress(logs, workers)
            time.sleep(rng.uniform(0.0, 0.2))
            for worker in workers:
                time.sleep(rng.uniform(0.0, 0.05))
                killed += worker.poll() is None
                worker.send_signal(signal.SIGKILL)
        codes = [worker.wait() for worker in workers]
    if any(codes):
        raise RuntimeError(f"a worker that was not killed ended with {codes}")
    expected = {key for share in shares for key, _ in records(share, 20)}
    result = {
        "starts_killed": kills,
        "workers_killed": killed,
        **_judge(store_path, logs, expected),
    }
    return result if racing else {**result, "repeats_allowed": killed * KILL_BATCH}


def _wait_for_progress(
    logs: list[Path], workers: list[subprocess.Popen[bytes]]
) -> None:
    """Until some worker of this start has written to its log, so that the kill falls into real work."""
    before = [log.stat().st_size if log.exists() else 0 for log in logs]
    while any(worker.poll() is None for worker in workers):
        now = [log.stat().st_size if log.exists() else 0 for log in logs]
        if now != before:
            return
        time.sleep(0.002)


def _judge(store_path: Path, logs: list[Path], expected: set[bytes]) -> dict[str, Any]:
    committed: dict[str, int] = {}
    asks: list[tuple[int, str]] = []
    for line in (line for log in logs for line in log.read_text().splitlines()):
        kind, moment, names = line.split(" ")
        for name in names.split(","):
            if kind == "ask":
                asks.append((int(moment), name))
            else:
                committed[name] = min(committed.get(name, int(moment)), int(moment))
    with ScoreStore(store_path) as store:
        lost = len(committed) - len(store.get(map(bytes.fromhex, committed)))
        unfinished = len(set(expected) - set(store.get(expected)))
        report = verify(store)
    return {
        "records": report.records,
        "expected": len(expected),
        "unfinished": unfinished,
        "committed_lost": lost,
        "committed_asked_again": sum(
            committed.get(name, moment) < moment for moment, name in asks
        ),
        "repeated": sum(
            count - 1 for count in Counter(name for _, name in asks).values()
        ),
        "clean": report.clean,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        if args.records:
            result["rates"] = measure_rates(folder, args.records)
        if args.kills:
            result["kill"] = kill_test(
                folder, args.kills, args.queries, args.pause, racing=False
            )
            result["race"] = kill_test(
                folder, args.kills, args.queries // WORKERS, args.pause, racing=True
            )
    return result


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        store, log, first, last, pause = sys.argv[2:]
        work(Path(store), Path(log), range(int(first), int(last)), float(pause))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        help="records of the rate test, 0 for none",
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="kills of each kill test, 0 for none"
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=1600,
        help="queries of the kill test, 20 prompts each",
    )
    parser.add_argument(
        "--pause", type=float, default=0.05, help="seconds a batch takes to measure"
    )
    parser.add_argument(
        "--folder",
        help="where the stores are made (default: the system's temporary folder)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = run(args)
    if args.json:
        print(json.dumps(result))
        return
    for table, values in result.items():
        print(table)
        for key, value in values.items():
            print(
                f"  {key:24} {value:,.2f}"
                if isinstance(value, float)
                else f"  {key:24} {value}"
            )


if __name__ == "__main__":
    main()
