"""Asks a model about lists with several processes on one device, and keeps every answer as soon as it is there.

The first process deals out pieces of work and writes what comes back; each of the others holds the model. Answers are
appended to `records-KIND.jsonl.gz` as whole gzip members, so that a stopped run loses at most the pieces on their way.
"""

from __future__ import annotations

import gzip
import json
import math
import multiprocessing as mp
import os
import queue
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent))

RECORDS = "records-*.jsonl.gz"
PIECE = 4096
"""Demonstrations of a piece of work: 512 prompts with eight of them."""
STARTING_S = 120
"""A process that has not loaded the model after so many seconds is not waited for."""


@dataclass(frozen=True)
class Job:
    """One prompt of an arm; `number` tells lists apart that were drawn for the same question."""

    kind: str
    arm: str
    query: int
    demos: tuple[int, ...]
    number: int = 0

    @property
    def key(self) -> tuple[str, int, int, int]:
        return (self.arm, len(self.demos), self.query, self.number)


InTime = Callable[[list[Job], float | None], bool]
"""Whether a piece of work would be back by a time, or by the end where none is named."""


@dataclass(frozen=True)
class Record:
    """What the model said to a prompt."""

    question: str
    arm: str
    shots: int
    fold: int
    query: int
    number: int
    demos: list[int]
    accuracy: float
    gt_prob: float
    answer: str
    tokens: int
    """Tokens that were computed for it: its own and its share of what it has in common with others of its piece."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        return (self.arm, self.shots, self.query, self.number)


def pieces(jobs: list[Job], most: int = PIECE) -> Iterator[list[Job]]:
    """Jobs in their order, cut into pieces of about the same work."""
    piece: list[Job] = []
    size = 0
    for job in jobs:
        piece.append(job)
        size += len(job.demos) + 1
        if size >= most:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


class Asker:
    """A model with the prompt form of the recorded tables."""

    def __init__(self, folder: Path, model: str, batch_tokens: int) -> None:
        from record_plan import SOURCES, read_plan
        from record_tables import Recorder, references

        from leverplus.metrics import metric_named, postprocess_named

        self.source = SOURCES["okvqa"]
        self.items = read_plan(folder, "okvqa").items
        self.weighed = [references(self.source, item) for item in self.items]
        self.judge, self.cut = metric_named("vqa_accuracy"), postprocess_named(self.source.postprocess)
        self.backend = Recorder("lists", model, batch_tokens).backend(self.source)

    def ask(self, jobs: list[Job]) -> list[Record]:
        from leverplus.backends.base import Request

        order = sorted(range(len(jobs)), key=lambda place: (jobs[place].demos, jobs[place].query))
        requests = []
        for place in order:
            job = jobs[place]
            shown = tuple(self.items[demo] for demo in job.demos)
            requests.append(Request(self.items[job.query], shown, tuple(self.weighed[job.query])))
        found: dict[int, Record] = {}
        for place, reply in zip(order, self.backend.answer(requests), strict=True):
            job = jobs[place]
            item, counts = self.items[job.query], self.weighed[job.query].values()
            total = sum(math.exp(p) * min(n / 3, 1.0) for p, n in zip(reply.logprobs, counts, strict=True))
            text = self.cut(reply.raw)
            found[place] = Record(
                str(item.id),
                job.arm,
                len(job.demos),
                int(item.meta["fold"]),
                job.query,
                job.number,
                list(job.demos),
                round(self.judge(text, item.answers), 4),
                round(min(total, 1.0), 5),
                text,
                reply.tokens,
            )
        return [found[place] for place in range(len(jobs))]

    def lengths(self) -> list[list[int]]:
        """Tokens of every item as a demonstration and as the question."""
        from leverplus.backends.base import Request

        prompts, found = self.backend.prompts, []
        nothing = len(prompts.tokens(prompts.text(Request(self.items[0], (), ()))))
        for item in self.items:
            alone = len(prompts.tokens(prompts.text(Request(item, (), ()))))
            shown = len(prompts.tokens(prompts.text(Request(self.items[0], (item,), ()))))
            found.append([shown - nothing, alone])
        return found


def work(folder: Path, model: str, batch_tokens: int, todo: Any, done: Any) -> None:
    """One process: says that it is ready, then answers pieces until it is sent None."""
    try:
        asker = Asker(folder, model, batch_tokens)
        done.put(("ready", os.getpid(), None, 0.0))
        while (piece := todo.get()) is not None:
            if piece == "lengths":
                done.put(("lengths", os.getpid(), asker.lengths(), 0.0))
                continue
            started = time.perf_counter()
            records = asker.ask(piece)
            done.put(("answers", os.getpid(), (piece[0].kind, records), time.perf_counter() - started))
    except BaseException as error:  # told to the first process, which goes on without this one
        done.put(("failed", os.getpid(), f"{type(error).__name__}: {error}", 0.0))
        raise


class Book:
    """Records by key, and the files that they are appended to."""

    def __init__(self, out: Path, kept: Path | None) -> None:
        self.out = out
        self.out.mkdir(parents=True, exist_ok=True)
        self.records: dict[tuple[str, int, int, int], Record] = {}
        for path in sorted(kept.glob(RECORDS)) if kept is not None else ():
            if not (out / path.name).exists():  # what comes back is whole
                (out / path.name).write_bytes(path.read_bytes())
        for path in sorted(out.glob(RECORDS)):
            whole = b"".join(data for data, _ in members(path.read_bytes()))
            part = path.with_suffix(".part")
            part.write_bytes(whole)  # a member that was cut off would spoil what is appended to it
            part.replace(path)
        for record in read_records(out):
            self.records[record.key] = record

    def add(self, kind: str, records: list[Record]) -> None:
        lines = "".join(json.dumps(list(asdict(record).values()), ensure_ascii=False) + "\n" for record in records)
        with (self.out / f"records-{kind}.jsonl.gz").open("ab") as file:
            file.write(gzip.compress(lines.encode()))
            file.flush()
            os.fsync(file.fileno())
        for record in records:
            self.records[record.key] = record

    def missing(self, jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if job.key not in self.records]


def read_records(folder: Path) -> list[Record]:
    """All records of a folder."""
    found = []
    for path in sorted(folder.glob(RECORDS)):
        for _, text in members(path.read_bytes()):
            found += [Record(*json.loads(line)) for line in text.splitlines()]
    return found


def members(data: bytes) -> Iterator[tuple[bytes, str]]:
    """The gzip members of a file as they are and as text; the last one is left out where it was cut off."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data)
        if not member.eof:
            return
        yield data[: len(data) - len(member.unused_data)], text.decode()
        data = member.unused_data


class Agenda(Protocol):
    """What is to be asked next."""

    def next(self, in_time: InTime) -> list[Job] | None: ...

    def finished(self) -> bool: ...

    def answered(self, kind: str) -> None: ...


class Crew:
    """Processes that answer pieces of work."""

    def __init__(self, folder: Path, model: str, processes: int, batch_tokens: int, deadline: float) -> None:
        # the other processes only feed the device; numpy of this one keeps its threads
        os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
        context = mp.get_context("spawn")
        self.todo, self.done = context.Queue(), context.Queue()
        self.deadline, self.alive, self.busy = deadline, 0, 0
        self.speed = 0.0  # demonstrations a second of one process, the latest tell most
        self.workers = [
            context.Process(target=work, args=(folder, model, batch_tokens, self.todo, self.done), daemon=True)
            for _ in range(processes)
        ]
        for worker in self.workers:
            worker.start()

    def wait_ready(self) -> None:
        """Waits for the first process; the others join when they are ready."""
        limit = min(self.deadline, time.monotonic() + STARTING_S)
        while self.alive == 0:
            self._take(limit - time.monotonic(), None)
            if time.monotonic() > limit or not any(worker.is_alive() for worker in self.workers):
                raise SystemExit("no process could load the model")

    def ask_lengths(self) -> None:
        """Lets one process count the tokens of all items; `deal` keeps them when they come."""
        self.todo.put("lengths")

    def deal(self, agenda: Agenda, book: Book) -> None:
        """Deals out what the agenda says next until it has nothing more or the next piece would not be back in time."""
        while time.monotonic() < self.deadline:
            while self.busy <= self.alive and (piece := agenda.next(self._in_time)) is not None:
                self.todo.put(piece)
                self.busy += 1
            if not self.busy and agenda.finished():
                break
            message = self._take(self.deadline - time.monotonic(), book)
            if message is not None and message[0] == "answers":
                agenda.answered(message[2][0])

    def _in_time(self, piece: list[Job], until: float | None = None) -> bool:
        """Whether a piece would be back in time."""
        size = sum(len(job.demos) + 1 for job in piece)
        takes = size / self.speed if self.speed else 0.0
        # one piece may wait behind another in a process
        late = takes * (1.2 if self.busy < self.alive else 2.2)
        return time.monotonic() + late < (self.deadline if until is None else until)

    def _take(self, seconds: float, book: Book | None) -> Any:
        """The next message, or None when none comes in time."""
        try:
            message = self.done.get(timeout=max(0.01, min(seconds, 5.0)))
        except queue.Empty:
            return None
        kind, _, content, took = message
        if kind == "ready":
            self.alive += 1
        elif kind == "failed":
            print(f"a process stopped: {content}", flush=True)
            self.alive, self.busy = max(0, self.alive - 1), max(0, self.busy - 1)
            if not any(worker.is_alive() for worker in self.workers):
                raise SystemExit("all processes stopped")
        elif kind == "lengths" and book is not None:
            (book.out / "lengths.json").write_text(json.dumps(content))
        elif kind == "answers" and book is not None:
            self.busy -= 1
            book.add(content[0], content[1])
            size = sum(record.shots + 1 for record in content[1])
            now = size / max(took, 1e-6)
            self.speed = now if not self.speed else 0.8 * self.speed + 0.2 * now
        return message

    def stop(self) -> None:
        for _ in self.workers:
            self.todo.put(None)
        for worker in self.workers:
            worker.join(timeout=1.0)
            if worker.is_alive():
                worker.terminate()
