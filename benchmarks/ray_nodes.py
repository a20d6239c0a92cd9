"""A run scored on three Ray nodes: a worker is preempted, a node is killed, then the head; then the same command again.

    python benchmarks/ray_nodes.py [--json] [--budget 3000] [--chunk 16]

Three nodes on this machine, one copy of the world's model on each. The model is slowed down and writes every call it
is asked into a file of its process before it answers, so calls are counted without this package's own counters. While
`lever run` scores, a worker gets SIGTERM, later a node's raylet SIGKILL, later the head's raylet and GCS server too.
The command has to end with one sentence. Then a fresh cluster is started and the same command typed again. Exit code 1
when a score is missing, stored twice or damaged, or when more calls were repeated than one chunk for each lost worker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = "RAY_NODES_CALLS"
"""Environment variable: the folder that every process writes its calls to."""

CHUNK_SECONDS = 0.5
"""How long a chunk takes at least, so that there is a middle to kill in."""

LIMIT = 400
"""Seconds that each of the two commands may take."""

NODES = 3
PREEMPT, NODE_LOSS, HEAD_LOSS = 0.1, 0.25, 0.4
"""Shares of the budget after whose calls the three losses come."""


def counted_world(task: Any, _section: Any) -> Any:
    """The world's backend that writes down each call; a recipe names it `ray_nodes:counted_world`."""
    import ray

    from leverplus_lab.world.backend import WorldBackend

    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "driver"
    path = Path(os.environ[CALLS]) / f"{os.getpid()}-{node}.jsonl"

    class CountedWorld(WorldBackend):
        def fingerprint(self) -> Mapping[str, str]:
            return {**super().fingerprint(), "template": "counted"}

        def answer(self, requests: Sequence[Any]) -> Any:
            lines = [
                json.dumps([one.query.id, *(demo.id for demo in one.demos)]) + "\n"
                for one in requests
            ]
            with path.open("a") as file:
                file.write("".join(lines))
            if node != "driver":
                time.sleep(CHUNK_SECONDS)
            return super().answer(requests)

    return CountedWorld(task)


@dataclass(frozen=True)
class Calls:
    """Calls of one process, in order."""

    process: int
    node: str
    prompts: list[str]


def read_calls(folder: Path) -> list[Calls]:
    """What workers were asked. The driver's own model answers the self-test only, which is not a part of this count."""
    found = []
    for path in sorted(
        folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns
    ):
        process, _, node = path.stem.partition("-")
        if node != "driver":
            found.append(Calls(int(process), node, path.read_text().splitlines()))
    return found


@contextmanager
def cluster() -> Iterator[Any]:
    """A head and two more nodes, with room for one worker each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    made = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False}
    )
    try:
        for _ in range(NODES - 1):
            made.add_node(**node)
        yield made
    finally:
        for one in (
            made.list_all_nodes()
        ):  # not `shutdown`, which lets nodes say goodbye to a head that is gone
            one.kill_all_processes(check_alive=False, allow_graceful=False)


def kill(node: Any, *kinds: str) -> None:
    """SIGKILL to processes of a node: its raylet, and on the head the GCS server."""
    for kind in kinds:
        for info in node.all_processes[kind]:
            os.kill(info.process.pid, signal.SIGKILL)


def alive(process: int) -> bool:
    try:
        return (
            "Z"
            not in Path(f"/proc/{process}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        return False


class Trouble:
    """The three losses, each once enough calls were made; notes which processes they took."""

    def __init__(self, made: Any, folder: Path, budget: int) -> None:
        self.made, self.folder, self.budget = made, folder, budget
        self.lost: dict[str, set[int]] = {}
        self.at: dict[str, int] = {}

    def watch(self, lever: subprocess.Popen[bytes], limit: float) -> None:
        begin = time.monotonic()
        while lever.poll() is None and time.monotonic() - begin < limit:
            calls = read_calls(self.folder)
            total = sum(len(one.prompts) for one in calls)
            living = [one for one in calls if alive(one.process)]
            for name, share in (
                ("worker", PREEMPT),
                ("node", NODE_LOSS),
                ("head", HEAD_LOSS),
            ):
                if name not in self.lost:
                    if total >= share * self.budget and (
                        name != "worker" or len(living) == NODES
                    ):
                        self.at[name] = total
                        self.lost[name] = self.strike(name, living)
                    break
            time.sleep(0.1)

    def strike(self, name: str, living: list[Calls]) -> set[int]:
        head, other = self.made.head_node, next(iter(self.made.worker_nodes))
        if name == "worker":
            others = (head.node_id, other.node_id)
            victim = next(one for one in living if one.node not in others)
            os.kill(victim.process, signal.SIGTERM)
            return {victim.process}
        if name == "node":
            kill(other, "raylet")
            return {one.process for one in living if one.node == other.node_id}
        kill(head, "gcs_server", "raylet")
        return {one.process for one in living}


def typed(
    folder: Path, log: Path, address: str, options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    """The command that a user types, both times the same."""
    settings = {
        "score.backend": "ray_nodes:counted_world",
        "score.engine": "ray",
        "score.workers": NODES,
        "score.chunk": options.chunk,
        "score.budget": options.budget,
        "sft.epochs": 2,
        "eval.items": 4,
        "eval.dev_items": 4,
        "eval.oracle": "false",
        "eval.diagnostics": "false",
        "eval.advice": "false",
    }
    command = [
        sys.executable,
        "-m",
        "leverplus",
        "run",
        "world",
        "--out",
        str(folder / "run"),
    ]
    command += [
        "--store",
        str(folder / "scores.db"),
        "--set",
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    environment = {**os.environ, "RAY_ADDRESS": address}
    with log.open("w") as file:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def repeats(calls: Sequence[Calls], lost: Mapping[str, set[int]]) -> dict[str, int]:
    """Calls made more than once, by the loss that took the process of an earlier one; `none`: no loss explains it."""
    asked: dict[str, list[int]] = defaultdict(list)
    for one in calls:
        for prompt in one.prompts:
            asked[prompt].append(one.process)
    counts = dict.fromkeys([*lost, "none"], 0)
    for processes in asked.values():
        spare = len(processes) - 1
        for name, taken in lost.items():
            explained = min(spare, sum(process in taken for process in processes))
            counts[name] += explained
            spare -= explained
        counts["none"] += spare
    return counts


def stored(path: Path) -> tuple[list[str], bool]:
    """Every prompt of the store as the calls write it, and whether the store is whole."""
    from leverplus.scores.exchange import verify
    from leverplus.scores.store import ScoreStore

    with ScoreStore(path, must_exist=True) as store:
        prompts = [
            json.dumps([s.query, *s.demos])
            for context in store.contexts()
            for _, s in store.scan(context)
        ]
        return prompts, verify(store).clean


def sentences(log: Path) -> list[str]:
    """What the command itself said at its end, and first lines of stack traces; Ray may write before and after it."""
    return [
        line
        for line in log.read_text().splitlines()
        if line.startswith(("lever: ", "Traceback"))
    ]


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    calls_folder = folder / "calls"
    calls_folder.mkdir()
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        CALLS: str(calls_folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 Ray's name; its 15 would starve workers on a busy machine
    with cluster() as made:
        trouble = Trouble(made, calls_folder, options.budget)
        begin = time.monotonic()
        first = typed(folder, folder / "first.txt", made.address, options)
        trouble.watch(first, limit=LIMIT)
        ended, seconds = first.poll(), time.monotonic() - begin
        first.kill()
        first.wait()
    kept = stored(folder / "scores.db")[0]
    before = read_calls(calls_folder)
    with cluster() as made:
        second = typed(folder, folder / "second.txt", made.address, options)
        second.wait(LIMIT)
    calls = read_calls(calls_folder)
    prompts, clean = stored(folder / "scores.db")
    distinct = {prompt for one in calls for prompt in one.prompts}
    return {
        "lost_at_calls": trouble.at,
        "first_exit": ended,
        "first_seconds": seconds,
        "first_said": sentences(folder / "first.txt"),
        "calls_before_restart": sum(len(one.prompts) for one in before),
        "stored_before_restart": len(kept),
        "second_exit": second.returncode,
        "second_said": sentences(folder / "second.txt"),
        "calls": sum(len(one.prompts) for one in calls),
        "wanted": len(distinct),
        "stored": len(prompts),
        "stored_once": len(prompts) == len(set(prompts)) and set(prompts) == distinct,
        "clean": clean,
        "repeated": repeats(calls, trouble.lost),
        "chunk": options.chunk,
        "workers": NODES,
    }


def problems(found: Mapping[str, Any]) -> list[str]:
    """What is not as promised."""
    chunk, repeated = found["chunk"], found["repeated"]
    checks = {
        "not all three losses came": set(found["lost_at_calls"])
        == {"worker", "node", "head"},
        "the first command did not end with exit code 1": found["first_exit"] == 1,
        "the first command did not end with one sentence": len(found["first_said"]) == 1
        and found["first_said"][0].endswith("then run the same command again"),
        "the second command failed": found["second_exit"] == 0,
        "a score is missing or stored twice": found["stored_once"],
        "the store is damaged": found["clean"],
        "calls are not wanted + repeated": found["calls"]
        == found["wanted"] + sum(repeated.values()),
        "the preempted worker repeated more than a chunk": repeated.get("worker", 0)
        <= chunk,
        "the lost node repeated more than a chunk a worker": repeated.get("node", 0)
        <= 2 * chunk,
        "the lost head repeated more than a chunk a worker": repeated.get("head", 0)
        <= NODES * chunk,
        "calls were repeated without a loss": repeated["none"] == 0,
    }
    return [name for name, good in checks.items() if not good]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--budget", type=int, default=3000, help="calls that the run may ask for"
    )
    parser.add_argument("--chunk", type=int, default=16, help="prompts of a chunk")
    parser.add_argument(
        "--folder",
        type=Path,
        help="work here and keep everything (default: a temporary folder)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(folder, options)
    found["problems"] = problems(found)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
