"""Scores the answers of jobs: as a recorded table, and as records of what every arm got on every question.

Records are small files of ids without texts, from which all figures are computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.data.rundir import write_atomically
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError
from leverplus.scores.tables import TableRow, write_table
from leverplus_lab.structured.ask import Answers, Job, Prompt, read_answers, read_job
from leverplus_lab.structured.plan import SCORES, ListRow

ABOUT = b"leverplus.structured"


@dataclass(frozen=True)
class Scored:
    """What a model did with one prompt; `logprob` is that of the right answer with its end (nats)."""

    answer: str
    accuracy: float
    logprob: float


@dataclass(frozen=True)
class Recording:
    """All prompts of some jobs of one task and one model, scored."""

    task: FileTask
    scores: Mapping[Prompt, Scored]
    facts: Mapping[str, Any]


def score_jobs(
    folders: Sequence[Path], out: Path, items: Sequence[Item], rules: AnswerRules
) -> Recording:
    """Score the answers of jobs by the task's metric; the items are those of the data, with what a metric reads.

    Questions that the items lack are left out.
    """
    known = {item.id: item for item in items}
    scores: dict[Prompt, Scored] = {}
    models = []
    prompts = []
    devices: set[str] = set()
    dates: set[str] = set()
    seconds = 0.0
    for folder in folders:
        job = read_job(folder)
        answers = read_answers(job, out)
        for prompt, scored in _scored(job, answers, known, rules):
            scores.setdefault(prompt, scored)
        for head in answers.heads:
            if head["fingerprint"] not in models:
                models.append(head["fingerprint"])
            devices.add(head["device"])
            dates.add(head["date"])
            seconds += head["seconds"]
        own = job.settings
        form = {"form": own.prompt, "template": own.template}
        prompts.append({**form, "instruction": own.instruction})
    alike = prompts.count(prompts[0]) == len(prompts)
    if len(models) != 1 or not alike:
        raise DataError(
            f"these jobs were asked of {len(models)} models or in several forms; make one table of each"
        )
    facts = {
        "model": models[0].get("model", ""),
        "backend": models[0],
        "task": folders[0].name,
        "cut": rules.cut,
        "prompt": prompts[0],
        "device": ", ".join(sorted(devices)),
        "date": ", ".join(sorted(dates)),
        "seconds": round(seconds),
    }
    named: dict[ItemId, Item] = {}
    for query, demos in scores:
        for item_id in (query, *demos):
            named[item_id] = known[item_id]
    task = FileTask(folders[0].name, list(named.values()), answers=rules)
    return Recording(task, scores, facts)


def _scored(
    job: Job, answers: Answers, known: Mapping[ItemId, Item], rules: AnswerRules
) -> Iterator[tuple[Prompt, Scored]]:
    rows = zip(job.prompts, answers.raw, answers.logprobs, strict=True)
    for prompt, raw, logprob in rows:
        item = known.get(prompt[0])
        if item is None:
            continue
        if item.question != job.items[prompt[0]].question:
            raise DataError(
                f"the data do not have question {prompt[0]} as it was asked; give the file that `plan` read"
            )
        answer = rules.cut_answer(raw)
        yield prompt, Scored(answer, rules.score(answer, item), logprob)


def chosen_by(recording: Recording, lists: Iterable[ListRow]) -> Recording:
    """Only the prompts of these lists."""
    kept = {}
    for row in lists:
        prompt = (row.query, row.demos)
        if prompt in recording.scores:
            kept[prompt] = recording.scores[prompt]
    return replace(recording, scores=kept)


def write_recording(
    recording: Recording,
    path: Path,
    *,
    licence: str,
    answers: bool = True,
    full: bool = True,
) -> dict[str, Any]:
    """Write a recorded table; without `answers` it holds ids and scores alone. Returns its card.

    Probabilities of long answers are tiny: only in `full` can their logarithms be told apart.
    """
    rows = []
    for (query, demos), scored in sorted(recording.scores.items()):
        text = (scored.answer or None) if answers else None
        probability = exp(scored.logprob)
        rows.append(TableRow(query, demos, scored.accuracy, probability, text))
    facts = {**recording.facts, "licence": licence}
    return write_table(path, rows, recording.task, facts, full=full)


@dataclass(frozen=True)
class Record:
    """What came of one list. `answer` is a digest, by which equal answers are known; `logprob` of the right answer."""

    row: ListRow
    accuracy: float
    logprob: float
    answer: str

    @classmethod
    def of(cls, row: ListRow, scored: Scored) -> Record:
        """The record of a list and what came of it."""
        digest = blake2b(scored.answer.encode(), digest_size=4).hexdigest()
        return cls(row, scored.accuracy, scored.logprob, digest)


@dataclass(frozen=True)
class Records:
    """All records of a task and a model."""

    task: str
    model: str
    about: Mapping[str, Any]
    rows: Sequence[Record]


def records_of(recording: Recording, lists: Sequence[ListRow], task: str) -> Records:
    """The records of some lists; DataError where one was not asked."""
    rows = []
    asked = {query for query, _ in recording.scores}
    for row in lists:
        if row.arm == SCORES or row.query not in asked:
            continue
        scored = recording.scores.get((row.query, row.demos))
        if scored is None:
            raise DataError(
                f"{row.arm} with {row.shots} examples of question {row.query} was not asked; name its job too"
            )
        rows.append(Record.of(row, scored))
    return Records(task, str(recording.facts["model"]), recording.facts, rows)


def records_without_model(
    answers: Iterable[tuple[ListRow, str]], items: Sequence[Item], rules: AnswerRules
) -> list[Record]:
    """The records of arms that answer by themselves."""
    known = {item.id: item for item in items}
    found = []
    for row, answer in answers:
        accuracy = rules.score(rules.cut_answer(answer), known[row.query])
        scored = Scored(answer, accuracy, float("nan"))
        found.append(Record.of(row, scored))
    return found


def _order(record: Record) -> tuple[str | int, ...]:
    row = record.row
    return row.split_key, row.part, row.arm, row.shots, row.query


def write_records(records: Records, path: Path) -> None:
    """Write records as a Parquet file; ids only, no question and no answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for record in sorted(records.rows, key=_order):
        row = record.row
        answer = bytes.fromhex(record.answer)
        logprob = np.float16(record.logprob)
        rows.append((*row.as_json(), record.accuracy, logprob, answer))
    kinds = {
        "split": pa.string(),
        "part": pa.string(),
        "arm": pa.string(),
        "shots": pa.int8(),
        "query": pa.string(),
        "demos": pa.list_(pa.string()),
        "accuracy": pa.float32(),
        "logprob": pa.float16(),
        "answer": pa.binary(4),
    }
    arrays = {}
    for (name, kind), values in zip(
        kinds.items(), zip(*rows, strict=True), strict=True
    ):
        # an answer that nobody weighed has no log-probability
        arrays[name] = pa.array(values, type=kind, from_pandas=True)
    table = pa.table(arrays)
    about = {"task": records.task, "model": records.model, "about": dict(records.about)}
    table = table.replace_schema_metadata({ABOUT: json.dumps(about).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as part:
        pq.write_table(table, part, compression="zstd", compression_level=19)


def read_records(path: Path) -> Records:
    """Read records back."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    meta = (table.schema.metadata or {}).get(ABOUT)
    if meta is None:
        raise DataError(
            f"{path} holds no records of arms; `record` of leverplus_lab.structured writes such files"
        )
    about = json.loads(meta)
    rows = []
    for own in table.to_pylist():
        head = [own[name] for name in ("split", "part", "arm", "shots", "query")]
        row = ListRow.of_json([*head, own["demos"]])
        accuracy = round(float(own["accuracy"]), 6)
        answer = own["answer"].hex()
        rows.append(Record(row, accuracy, own["logprob"], answer))
    return Records(about["task"], about["model"], about["about"], rows)
