"""A job is the prompts that a model is to be asked, with everything that is needed to write them; asked in shards.

One file a shard, so that a stopped recording goes on where it was.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from leverplus.data.rundir import write_atomically
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Demos, Item, ItemId
from leverplus.errors import DataError, MissingFile
from leverplus.models.base import Reply, Request
from leverplus.models.settings import ModelSection

FORMAT = 1
SHARD = 1024
"""Prompts of a shard: what a stopped recording loses at most."""
NAMES = ("job.json", "items.jsonl.gz", "prompts.jsonl.gz")

Prompt = tuple[ItemId, Demos]
Say = Callable[[str], None]


@dataclass(frozen=True)
class JobSettings:
    """How the prompts of a job are written, and how long an answer may be."""

    name: str
    instruction: str = ""
    template: str = ModelSection.template
    prompt: str = "plain"
    max_new_tokens: int = 64
    format: int = FORMAT


@dataclass(frozen=True)
class Job:
    """Distinct prompts in order of their length, so that those of a shard are alike, and the items they speak of."""

    settings: JobSettings
    items: Mapping[ItemId, Item]
    prompts: Sequence[Prompt]
    shard: int = field(default=SHARD)

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return -(-len(self.prompts) // self.shard)

    def part(self, number: int) -> Sequence[Prompt]:
        """The prompts of a shard."""
        start = number * self.shard
        return self.prompts[start : start + self.shard]

    def letters(self, prompt: Prompt) -> int:
        """How long a prompt is, without the instruction."""
        query, demos = prompt
        count = len(self.items[query].question)
        for demo in demos:
            item = self.items[demo]
            count += len(item.question) + len(item.answer)
        return count

    @classmethod
    def of(
        cls, settings: JobSettings, items: Iterable[Item], prompts: Iterable[Prompt]
    ) -> Job:
        """A job of these prompts, each once; items that none of them shows are left out."""
        known = {item.id: item for item in items}
        distinct = list(dict.fromkeys(prompts))
        used: dict[ItemId, Item] = {}
        for query, demos in distinct:
            for item_id in (query, *demos):
                used[item_id] = known[item_id]
        unsorted = cls(settings, used, distinct)
        ordered = sorted(distinct, key=unsorted.letters, reverse=True)
        return cls(settings, used, ordered)


def write_job(job: Job, folder: Path) -> None:
    """Write a job as a folder of three small files."""
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for item in job.items.values():
        record: dict[str, Any] = {"id": item.id, "question": item.question}
        record |= {"answers": list(item.answers), "split": item.split}
        if item.meta:
            record["meta"] = dict(item.meta)
        records.append(record)
    write_lines(folder / "items.jsonl.gz", records)
    prompts = [[query, list(demos)] for query, demos in job.prompts]
    write_lines(folder / "prompts.jsonl.gz", prompts)
    about = {**asdict(job.settings), "prompts": len(job.prompts), "shard": job.shard}
    text = json.dumps(about, ensure_ascii=False, indent=1)
    (folder / "job.json").write_text(text + "\n", encoding="utf-8")


def read_job(folder: Path) -> Job:
    """Read a job back; MissingFile or DataError where the folder is none."""
    for name in NAMES:
        if not (folder / name).is_file():
            raise MissingFile(
                f"{folder} is no job: it has no {name}; `plan --out {folder}` writes one"
            )
    about = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise DataError(
            f"{folder}: a job of another format; write it again with `plan`"
        )
    count = about.pop("prompts")
    shard = about.pop("shard")
    items = {}
    for record in read_lines(folder / "items.jsonl.gz"):
        own = ItemId(record["id"])
        answers = tuple(record["answers"])
        meta = record.get("meta", {})
        items[own] = Item(own, record["question"], answers, record["split"], meta=meta)
    prompts: list[Prompt] = []
    for query, demos in read_lines(folder / "prompts.jsonl.gz"):
        prompts.append((ItemId(query), tuple(map(ItemId, demos))))
    if len(prompts) != count:
        raise DataError(f"{folder}: prompts are missing; write it again with `plan`")
    return Job(JobSettings(**about), items, prompts, shard)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as lines of JSON, packed; the same rows give the same bytes."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    text = "".join(lines)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    with write_atomically(path) as part:
        part.write_bytes(packed)


def read_lines(path: Path) -> Iterator[Any]:
    """Read rows of packed lines of JSON."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


@dataclass(frozen=True)
class AskOptions:
    """Which model is asked, and where."""

    model: str
    out: Path
    device: str = "auto"
    dtype: str = "auto"
    batch_tokens: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Work:
    """One shard that is to be asked, and the file its answers go to."""

    job: Path
    number: int
    file: Path


@dataclass
class Asker:
    """A model in this process; it is loaded anew where the next job's prompts are written in another way."""

    options: AskOptions
    _job: Path = Path()
    _kept: tuple[Job, Any] | None = field(default=None, repr=False)

    def backend(self, folder: Path) -> tuple[Job, Any]:
        """The job of a folder and the model as its prompts want it."""
        if self._kept is None or folder != self._job:
            self._kept = None  # frees the memory of the former one first
            self._job, self._kept = folder, self._open(read_job(folder))
        return self._kept

    def _open(self, job: Job) -> tuple[Job, Any]:
        from leverplus.models.hf.backend import HfBackend

        own = self.options
        told = job.settings
        section = ModelSection(
            name=own.model,
            prompt=told.prompt,
            template=told.template,
            instruction=told.instruction,
            max_new_tokens=told.max_new_tokens,
            device=own.device,
            dtype=own.dtype,
            batch_tokens=own.batch_tokens,
        )
        rules = AnswerRules("exact", "plain")
        task = FileTask(told.name, list(job.items.values()), answers=rules)
        backend = HfBackend(task, section)
        # Lists share little beyond the instruction: on an accelerator its branches would make many small batches, on a
        # CPU the instruction is worth reading once.
        backend.reader.share = backend.language.device.type == "cpu"
        return job, backend

    def ask(self, work: Work) -> tuple[int, float]:
        """Ask a shard and write its file; how many prompts, and the seconds they took."""
        job, backend = self.backend(work.job)
        requests = []
        for query, demos in job.part(work.number):
            item = job.items[query]
            shown = tuple(job.items[demo] for demo in demos)
            requests.append(Request(item, shown, (item.answer,)))
        started = time.perf_counter()
        replies: Sequence[Reply] = backend.answer(requests)
        seconds = time.perf_counter() - started
        head = {
            "fingerprint": dict(backend.fingerprint()),
            "device": device_name(backend),
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(seconds, 2),
            "tokens": sum(reply.tokens for reply in replies),
        }
        rows: list[Any] = [head]
        for reply in replies:
            assert reply.logprobs is not None  # a model in this process weighs
            rows.append([reply.raw, round(reply.logprobs[0], 4)])
        write_lines(work.file, rows)
        return len(requests), seconds


def device_name(backend: Any) -> str:
    """What the model runs on, in words."""
    import torch

    device = backend.language.device
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(device.type)


def ask_jobs(folders: Sequence[Path], options: AskOptions, say: Say) -> int:
    """Ask everything that is missing, the longest prompts first; how many prompts were asked."""
    todo = []
    for folder in folders:
        job = read_job(folder)
        for number in range(job.shards):
            file = shard_file(options.out, job.settings.name, number)
            if not file.exists():
                todo.append(Work(folder, number, file))
    say(f"{len(todo)} shards to ask")
    asked = 0
    started = time.perf_counter()
    for work, (count, seconds) in _run(todo, options):
        asked += count
        rate = asked / (time.perf_counter() - started)
        say(
            f"{work.file.name}: {count:,} prompts, {seconds:.1f} s; {rate:.0f}/s in all"
        )
    return asked


def shard_file(out: Path, name: str, number: int) -> Path:
    """Where the answers of a shard are kept."""
    return out / f"{name}.{number:04d}.jsonl.gz"


def _run(
    todo: Sequence[Work], options: AskOptions
) -> Iterator[tuple[Work, tuple[int, float]]]:
    """The shards as they are done, in this process or in several."""
    if options.workers <= 1:
        asker = Asker(options)
        for work in todo:
            yield work, asker.ask(work)
        return
    with ProcessPoolExecutor(
        options.workers,
        mp_context=get_context("spawn"),  # a forked process cannot use the accelerator
        initializer=_start_worker,
        initargs=(options,),
    ) as pool:
        waiting = {pool.submit(_ask_in_worker, work): work for work in todo}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


_WORKER: list[Asker] = []


def _start_worker(options: AskOptions) -> None:
    _WORKER[:] = [Asker(options)]


def _ask_in_worker(work: Work) -> tuple[int, float]:
    return _WORKER[0].ask(work)


@dataclass(frozen=True)
class Answers:
    """What a model said to the prompts of a job, in their order; log-probabilities are of the right answer (nats)."""

    raw: Sequence[str]
    logprobs: Sequence[float]
    heads: Sequence[Mapping[str, Any]]
    """What is known of each shard: model, device, date, seconds, tokens."""


def read_answers(job: Job, out: Path) -> Answers:
    """The answers of a whole job; MissingFile names the first shard that was not asked."""
    raw: list[str] = []
    logprobs: list[float] = []
    heads = []
    for number in range(job.shards):
        file = shard_file(out, job.settings.name, number)
        if not file.is_file():
            raise MissingFile(
                f"{file} is missing: shard {number + 1} of {job.shards} was not asked; the same `ask` goes on there"
            )
        rows = read_lines(file)
        heads.append(next(rows))
        for text, logprob in rows:
            raw.append(text)
            logprobs.append(logprob)
    return Answers(raw, logprobs, heads)
