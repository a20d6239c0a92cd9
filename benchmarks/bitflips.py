"""One bit flipped at a random place of a stored file, many times over: is any score ever read wrong?

    python benchmarks/bitflips.py               300 exports and 300 stores
    python benchmarks/bitflips.py --json        the same as one JSON object

A store (several contexts, several thousand scores) and its Parquet export are made once. For each flip a copy is made,
one bit of it is changed, and the copy is read in every way there is: `lever store merge` into a new file, and for a
store also by key, by scan and by `lever store verify`. Each score that comes back is compared with the one that was
written. Right answers are the score itself, or a refusal in one sentence, or the score left out and counted.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import LeverError
from leverplus.scores.exchange import export_parquet, merge, verify
from leverplus.scores.keys import Context, score_key
from leverplus.scores.store import ScoreStore

Written = dict[bytes, Score]


def contexts() -> list[Context]:
    shared = {
        "task": "bits",
        "task_version": "1",
        "metric": "vqa_accuracy",
        "cut": "first_line",
    }
    return [
        Context.of({"model": name, "template": "plain"}, **shared)
        for name in ("one", "two", "three")
    ]


def records(
    context: Context, count: int, rng: random.Random
) -> Iterator[tuple[bytes, Score]]:
    """Scores with answers of several lengths, not all of them ASCII; a few run over more than one page."""
    for number in range(count):
        query, demos = (
            ItemId(f"q{number // 20}"),
            (ItemId(f"d{number}"), ItemId("d-last")),
        )
        raw = rng.choice(
            (" red ball\n", "ein grüner Würfel", "赤いボール", "long " * 40)
        )
        raw = raw * 40 if number % 500 == 7 else raw
        accuracy = rng.choice((0.0, 1 / 3, 1.0))
        digests = [
            blake2b(name.encode(), digest_size=16).digest() for name in (query, *demos)
        ]
        yield (
            score_key(context.digest, digests[0], digests[1:]),
            Score(
                query=query,
                demos=demos,
                raw=raw,
                answer=raw.strip(),
                accuracy=accuracy,
                correct=accuracy > 0,
                references=(
                    Reference("red", 2, -rng.random()),
                    Reference("grün", 1, -3 * rng.random()),
                ),
                token_f1=rng.random(),
                edit_similarity=rng.random(),
                tokens=rng.randrange(900),
                seconds=rng.choice((1.0, rng.random())),
            ),
        )


def make(folder: Path, count: int) -> tuple[Path, Path, Written]:
    """A store, its export, and what was written."""
    written: Written = {}
    rng = random.Random(0)
    with ScoreStore(folder / "whole.db") as store:
        for context in contexts():
            own = list(records(context, count // 3, rng))
            store.put(context, own)
            written |= own
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        export_parquet(store, folder / "whole.parquet")
    return folder / "whole.db", folder / "whole.parquet", written


@contextmanager
def flipped(path: Path, rng: random.Random) -> Iterator[Path]:
    """A copy of a file with one bit changed."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(data)
        yield copy


def read_merged(path: Path, written: Written) -> Counter[str]:
    """Merge a file into a new store and compare what arrived."""
    counts: Counter[str] = Counter()
    with ScoreStore(path.with_name("merged.db")) as into:
        try:
            report = merge(into, path)
            counts["damaged"] += report.damaged
        except LeverError:
            counts["refused"] += 1
        if not verify(into).clean and into.count():
            counts["unclean"] += 1
        got = {
            key: score
            for context in into.contexts()
            for key, score in into.scan(context)
        }
    counts["read"] += len(got)
    counts["wrong"] += sum(written.get(key) != score for key, score in got.items())
    counts["missing"] += len(written) - len(got)
    counts["noticed"] += bool(counts["refused"] or counts["damaged"])
    return counts


def read_store(path: Path, written: Written) -> Counter[str]:
    """Read a store by key, by scan and by verify, then merge it."""
    counts: Counter[str] = Counter()
    keys = list(written)
    readings: list[Callable[[ScoreStore], Written]] = [
        lambda store: {
            k: v
            for start in range(0, len(keys), 50)
            for k, v in _got(store, keys[start : start + 50])
        },
        lambda store: {
            key: score
            for context in store.contexts()
            for key, score in store.scan(context)
        },
    ]
    for reading in readings:
        try:
            with ScoreStore(path, must_exist=True) as store:
                counts["wrong"] += sum(
                    written.get(key) != score for key, score in reading(store).items()
                )
        except LeverError:
            counts["refused"] += 1
    try:
        with ScoreStore(path, must_exist=True) as store:
            clean = verify(store).clean
    except LeverError:
        clean = False
    merged = read_merged(path, written)
    # a bit of free space or of a counter in the header changes nothing that is stored
    counts["clean_but_missing"] += clean and merged["missing"] > 0
    return counts + Counter(
        {name: value for name, value in merged.items() if name != "refused"}
    )


def _got(store: ScoreStore, keys: list[bytes]) -> list[tuple[bytes, Score]]:
    try:
        return list(store.get(keys).items())
    except LeverError:
        return []


def run(flips: int, count: int, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        store, table, written = make(Path(name), count)
        for kind, path, read in (
            ("exports", table, read_merged),
            ("stores", store, read_store),
        ):
            rng = random.Random(f"{seed} {kind}")
            total: Counter[str] = Counter()
            least, start = len(written), time.perf_counter()
            for _ in range(flips):
                with flipped(path, rng) as copy:
                    counts = read(copy, written)
                least = min(least, counts["read"]) if kind == "stores" else least
                total += counts
                total["files_read_wrong"] += counts["wrong"] > 0
                total["files_losing_scores"] += counts["missing"] > 0
            result[kind] = {
                "files": flips,
                "scores_a_file": len(written),
                "bytes": path.stat().st_size,
                "files_read_wrong": total["files_read_wrong"],
                "files_losing_scores": total["files_losing_scores"],
                "scores_kept_share": total["read"] / (flips * len(written)),
                "fewest_scores_kept": least if kind == "stores" else None,
                "clean_but_missing": total["clean_but_missing"],
                "unclean": total["unclean"],
                "seconds": round(time.perf_counter() - start, 1),
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=300, help="files of each kind")
    parser.add_argument("--scores", type=int, default=3_000, help="scores of a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = run(args.flips, args.scores, args.seed)
    if args.json:
        print(json.dumps(result))
        return
    for kind, values in result.items():
        print(kind)
        for name, value in values.items():
            print(
                f"  {name:22} {value:,.5f}"
                if isinstance(value, float)
                else f"  {name:22} {value}"
            )


if __name__ == "__main__":
    main()
