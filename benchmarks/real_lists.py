"""Lists of demonstrations on OK-VQA by captions, asked of a live model: what choosing gains at 4, 8 and 16 shots.

    python benchmarks/real_lists.py prepare INPUTS --data DATA --cache vectors     here: rivals, lists for learning
    python benchmarks/real_lists.py ask INPUTS --model PATH --out OUT --seconds 480 --processes 6     on a GPU
    python benchmarks/real_lists.py keep OUT --inputs INPUTS --to FILE      all answers in one file
    python benchmarks/real_lists.py report [FILE]      Markdown tables; without a file those of docs/recorded.md

Every question is a test question once (five folds by picture); its demonstrations come from the four other folds. Lists
for learning are asked first; what is learnt from them for fold f comes from questions and demonstrations outside f
(`real_lists_learn.py`). Then the arms, most important first, each over the questions in one random order, so that the
first n of them are an unbiased sample wherever time ends. `ask` goes on where OUT or `--kept FOLDER` left off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_ask import PIECE, Book, Crew, InTime, Job, pieces
from real_lists_keep import FILE, keep
from real_lists_learn import Asked, Chosen, choose_all
from real_lists_plan import prepare
from real_lists_pools import Ints, Pools
from real_lists_report import report

COMPANY_SHARE = 0.4
"""Share of the time that lists for learning may take."""
COMPANY, CHECK = "company", "check"
CHOSEN = "chosen.npz"

IMPORTANCE: tuple[tuple[str, int, int], ...] = (
    ("learned", 16, 0),
    ("learned", 8, 0),
    ("MMR by question", 16, 0),
    ("nearest by both", 16, 0),
    ("vote + similarity", 16, 0),
    ("nearest by question", 16, 0),
    ("learned without labels", 16, 0),
    ("MMR by question", 8, 0),
    ("vote + similarity", 8, 0),
    ("nearest by question", 8, 0),
    ("nearest by both", 32, 1500),
    ("learned", 32, 1500),
    ("learned with company", 16, 0),
    ("MMR + effects", 16, 0),
    ("fixed by effects, then nearest", 16, 0),
    ("nearest by mixed", 16, 0),
    ("MMR by mixed", 16, 0),
    ("learned without effects", 16, 0),
    ("MMR + effects", 8, 0),
    ("nearest by both", 8, 0),
    ("fixed anchors", 8, 0),
    ("vote + similarity, answers once", 16, 0),
    ("learned without labels", 8, 0),
    ("MMR + company", 8, 0),
    ("MMR + effects + company", 8, 0),
    ("MMR by question", 4, 0),
    ("nearest by question", 4, 0),
    ("fixed anchors", 4, 0),
    ("nearest by both", 4, 0),
    ("nearest by mixed", 8, 0),
    ("MMR by mixed", 8, 0),
    ("learned with company", 8, 0),
    ("learned without effects", 8, 0),
    ("vote + similarity", 32, 1500),
)
"""Arms in the order in which they are asked: name, shots, how many questions (0: all). What is not chosen yet waits."""


class Inputs:
    """What `prepare` wrote."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "inputs.npz") as kept:
            self.kept: dict[str, Any] = {name: kept[name] for name in kept.files}
        self.order: Ints = self.kept["order"].astype(np.int64)
        self.fold: Ints = self.kept["fold"].astype(np.int64)
        names = self.kept["rival_names"].tolist()
        self.rivals = {name: self.kept[f"rival_{place}"].astype(np.int64) for place, name in enumerate(names)}

    def pools(self) -> Pools:
        members = self.kept["pool_members"].astype(np.int64)
        known = {
            str(name): own.astype(np.float64)
            for name, own in zip(self.kept["pool_names"], self.kept["pool_known"], strict=True)
        }
        vectors = self.kept["questions"].astype(np.float32)
        own = [vectors[places] for places in np.array_split(members, 32)]
        alike = np.concatenate([part @ part.transpose(0, 2, 1) for part in own])
        answers = self.kept["shown"].astype(np.int64)[members]
        return Pools(np.arange(len(members)), members, answers, known, alike)

    def company(self) -> list[Job]:
        rows, demos = self.kept["company_rows"].tolist(), self.kept["company_demos"].tolist()
        seen: dict[int, int] = {}
        found = []
        for query, own in zip(rows, demos, strict=True):
            seen[query] = seen.get(query, -1) + 1
            found.append(Job(COMPANY, COMPANY, query, tuple(d for d in own if d >= 0), seen[query]))
        return found

    def check(self) -> list[Job]:
        rows, demos = self.kept["check_rows"].tolist(), self.kept["check_demos"].tolist()
        return [
            Job(CHECK, CHECK, query, tuple(d for d in own if d >= 0), number)
            for number, (query, own) in enumerate(zip(rows, demos, strict=True))
        ]

    def asked(self, book: Book, jobs: list[Job]) -> Asked:
        """The lists for learning that were answered."""
        found = [(place, book.records[job.key]) for place, job in enumerate(jobs) if job.key in book.records]
        places = np.array([place for place, _ in found], np.int64)
        return Asked(
            self.kept["company_rows"].astype(np.int64)[places],
            self.kept["company_serves"].astype(np.int64)[places],
            self.kept["company_demos"].astype(np.int64)[places],
            self.kept["company_features"].astype(np.float64)[places],
            np.array([record.accuracy for _, record in found]),
            np.array([record.gt_prob for _, record in found]),
        )


class ListAgenda:
    """The check, lists for learning, then the arms; arms that are learnt join as soon as they are chosen."""

    def __init__(self, inputs: Inputs, book: Book, args: argparse.Namespace, started: float) -> None:
        self.inputs, self.book, self.args = inputs, book, args
        self.order = inputs.order[: args.questions or None]
        wanted = set(self.order.tolist())
        self.company = [job for job in inputs.company() if job.query in wanted]
        self.first = pieces(book.missing(inputs.check()), args.piece)
        known = any(folder is not None and (folder / CHOSEN).is_file() for folder in (args.out, args.kept))
        self.learning = iter(()) if known else pieces(book.missing(self.company), args.piece)
        self.learning_ends = started + COMPANY_SHARE * args.seconds
        self.on_their_way = 0
        self.arms: dict[tuple[str, int], Iterator[list[Job]]] = {}
        self.waiting: list[Job] | None = None
        self.chosen: Chosen | None = None
        self.choosing: Future[Chosen] | None = None
        self.pool = ThreadPoolExecutor(1)
        for name, lists in inputs.rivals.items():
            self._join(name, lists, "rivals", turned=True)

    def _join(self, name: str, lists: Ints, kind: str, *, turned: bool) -> None:
        """Makes the jobs of an arm; rivals come best first and are turned, so that the nearest is shown last."""
        for arm, shots, most in IMPORTANCE:
            if arm != name or (not turned and lists.shape[1] != shots) or shots > lists.shape[1]:
                continue
            jobs = []
            for query in self.order[: most or None].tolist():
                demos = lists[query, :shots].tolist()
                if min(demos) >= 0:
                    shown = demos[::-1] if turned else demos
                    jobs.append(Job(kind, arm, query, tuple(shown)))
            self.arms[arm, shots] = pieces(self.book.missing(jobs), self.args.piece)

    def next(self, in_time: InTime) -> list[Job] | None:
        if self.waiting is not None:  # was too long for the time that is left
            return None
        if (piece := next(self.first, None)) is not None:
            return piece
        if (piece := next(self.learning, None)) is not None:
            if in_time(piece, self.learning_ends):
                self.on_their_way += 1
                return piece
            self.learning = iter(())
        self._choose()
        for arm, shots, _ in IMPORTANCE:
            piece = next(self.arms.get((arm, shots), iter(())), None)
            if piece is not None:
                if in_time(piece, None):
                    return piece
                self.waiting = piece
                return None
        return None

    def finished(self) -> bool:
        """Whether nothing more will come, once `next` had nothing to say: all arms have joined, or time is up."""
        return self.waiting is not None or self.chosen is not None

    def answered(self, kind: str) -> None:
        if kind == COMPANY:
            self.on_their_way -= 1

    def _choose(self) -> None:
        """Starts choosing when all lists for learning are back, and lets the arms join when it is done."""
        if self.chosen is not None or self.on_their_way:
            return
        if self.choosing is None:
            asked = self.inputs.asked(self.book, self.company)
            print(f"{len(asked.rows):,} lists to learn from", flush=True)
            self.choosing = self.pool.submit(self._chosen, asked)
        elif self.choosing.done():
            self.chosen = self.choosing.result()
            for (arm, _), lists in self.chosen.lists.items():
                self._join(arm, lists, "learned", turned=False)

    def _chosen(self, asked: Asked) -> Chosen:
        """What was chosen before is kept: answers to it must stay answers to the same lists."""
        for folder in (self.args.out, self.args.kept):
            if folder is not None and (folder / CHOSEN).is_file():
                return read_chosen(folder, self.args.out)
        started = time.perf_counter()
        pools = self.inputs.pools()
        found = choose_all(asked, pools, self.inputs.fold, self.inputs.kept["effects"])
        if found.lists:  # else a later call learns from more
            write_chosen(found, self.args.out)
        print(f"chosen in {time.perf_counter() - started:.0f} s", flush=True)
        return found


def write_chosen(found: Chosen, out: Path) -> None:
    keys = [f"{arm}|{shots}" for arm, shots in found.lists]
    arrays = {f"list_{place}": own.astype(np.int16) for place, own in enumerate(found.lists.values())}
    np.savez_compressed(out / CHOSEN, keys=np.array(keys), **arrays)
    (out / "learnt.json").write_text(json.dumps(found.notes, indent=1))


def read_chosen(folder: Path, out: Path) -> Chosen:
    found = Chosen()
    with np.load(folder / CHOSEN) as kept:
        for place, key in enumerate(kept["keys"].tolist()):
            arm, _, shots = key.rpartition("|")
            found.lists[arm, int(shots)] = kept[f"list_{place}"].astype(np.int64)
    found.notes = json.loads((folder / "learnt.json").read_text())
    write_chosen(found, out)
    return found


def ask(args: argparse.Namespace) -> None:
    started = time.monotonic()
    crew = Crew(args.inputs, args.model, args.processes, args.batch_tokens, started + args.seconds)
    inputs, book = Inputs(args.inputs), Book(args.out, args.kept)
    agenda = ListAgenda(inputs, book, args, started)
    crew.wait_ready()
    print(f"the first process is ready after {time.monotonic() - started:.0f} s", flush=True)
    if not (args.out / "lengths.json").is_file():
        crew.ask_lengths()
    crew.deal(agenda, book)
    crew.stop()
    _tell(inputs, book, time.monotonic() - started)


def _tell(inputs: Inputs, book: Book, took: float) -> None:
    """How the recorded prompts were answered again, and what was asked."""
    own = [(place, book.records[job.key]) for place, job in enumerate(inputs.check()) if job.key in book.records]
    if own:
        same = np.mean([record.answer == inputs.kept["check_answer"][place] for place, record in own])
        far = np.mean([abs(record.gt_prob - inputs.kept["check_gt_prob"][place]) for place, record in own])
        print(f"{len(own)} recorded prompts: {100 * same:.1f} % same answers, probability {far:.4f} apart on average")
    counts: dict[tuple[str, int], list[float]] = {}
    for record in book.records.values():
        counts.setdefault((record.arm, record.shots), []).append(record.accuracy)
    for (arm, shots), values in counts.items():
        print(f"{arm}, {shots} shots: {len(values):,} answers, {100 * np.mean(values):.2f}")
    print(f"{len(book.records):,} answers, {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("prepare")
    sub.add_argument("out", type=Path)
    sub.add_argument("--data", type=Path, required=True)
    sub.add_argument("--cache", type=Path, default=Path("vectors"))
    sub.add_argument("--table", default="qwen2.5-coder-1.5b", help="the model whose one-shot table gives effects")
    sub.set_defaults(run=prepare)
    sub = commands.add_parser("ask")
    sub.add_argument("inputs", type=Path)
    sub.add_argument("--model", required=True, help="a GGUF file, a folder, or pypi:PACKAGE")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--kept", type=Path, help="records of an earlier call, which is gone on with")
    sub.add_argument("--seconds", type=float, default=480.0)
    sub.add_argument("--processes", type=int, default=6)
    sub.add_argument("--batch-tokens", type=int, default=0)
    sub.add_argument("--piece", type=int, default=PIECE, help="demonstrations that a process is given at a time")
    sub.add_argument("--questions", type=int, default=0, help="only the first so many in the random order")
    sub.set_defaults(run=ask)
    sub = commands.add_parser("keep")
    sub.add_argument("records", type=Path, help="the folder that `ask` wrote")
    sub.add_argument("--inputs", type=Path, required=True)
    sub.add_argument("--to", type=Path, default=FILE)
    sub.set_defaults(run=lambda args: keep(args.records, Inputs(args.inputs), args.to))
    sub = commands.add_parser("report")
    sub.add_argument("file", type=Path, nargs="?", default=FILE)
    sub.set_defaults(run=lambda args: report(args.file))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
