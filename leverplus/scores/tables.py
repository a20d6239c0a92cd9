"""Recorded tables: answers of a model written down with their prompts, and the `table` backend that replays them.

A table is a Parquet file with a row a prompt: `query` string, `demos` list of strings in prompt order, `accuracy`
float, `gt_prob` float or null, `answer` string or null; optional `label_logprobs`, one number a label of a
classification task in the order of the card's `labels`. The card says what was recorded, of which model. Ids, answers
and accuracies are dictionary-encoded, so that each row takes a few bits for them; probabilities are halves (float16)
unless they are asked for in full.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leverplus.data.metrics.text import edit_similarity, token_f1
from leverplus.data.rundir import shipped
from leverplus.data.tasks.base import HasLabels, Task
from leverplus.data.types import Demos, Item, ItemId, Pool, Reference, Score
from leverplus.errors import DataError, ScoringError, require_packages
from leverplus.models.base import Reply, Request
from leverplus.models.settings import ModelSection
from leverplus.scores.keys import item_digest
from leverplus.scores.parquet import ProvenReader, write_proven
from leverplus.scores.scorer import TRAINING, Scorer

CARD = b"leverplus.card"  # key of the card in the metadata of the Parquet file
FORMAT = 2
ROWS_AT_ONCE = 65536  # rows that are held in memory before they are written
QUERIES_AT_ONCE = (
    64  # queries whose prompts are asked together when a table is recorded
)
ITEM_DIGEST = 4
"""Bytes that prove one item unchanged: one changed item in four billion would be missed."""

REQUIRED = ("query", "demos", "accuracy")
AGAIN = (
    "`lever record RECIPE --out FILE.parquet` makes one anew; those of the package are back after `git checkout "
    "leverplus` in its clone, or when its wheel is installed again with --force-reinstall"
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TableRow(NamedTuple):
    """One recorded prompt."""

    query: ItemId
    demos: Demos
    accuracy: float
    gt_prob: float | None
    answer: str | None
    label_logprobs: tuple[float, ...] | None = None


def _columns(*, full: bool, labels: bool) -> dict[str, Any]:
    import pyarrow as pa

    number = pa.float64() if full else pa.float16()
    columns = {
        "query": pa.string(),
        "demos": pa.list_(pa.string()),
        "accuracy": pa.float64(),
        "gt_prob": number,
        "answer": pa.string(),
    }
    return columns | ({"label_logprobs": pa.list_(number)} if labels else {})


def write_table(
    path: Path,
    rows: Iterable[TableRow],
    task: Task,
    facts: Mapping[str, Any],
    *,
    labels: tuple[str, ...] = (),
    full: bool = False,
) -> dict[str, Any]:
    """Write a table and its card, which is returned; the file is there whole, or not at all."""
    require_packages(f"writing {path}", "pyarrow")
    columns = _columns(full=full, labels=bool(labels))
    queries: set[ItemId] = set()
    items: set[ItemId] = set()
    card: dict[str, Any] = {}

    def groups() -> Iterator[list[Any]]:
        coming = iter(rows)
        while own := list(islice(coming, ROWS_AT_ONCE)):
            for row in own:
                queries.add(row.query)
                items.update((row.query, *row.demos))
            yield [row[: len(columns)] for row in own]

    def make_card(count: int) -> dict[str, Any]:
        proofs = base64.b64encode(_item_proofs(task, sorted(items)))
        card.update(
            format=FORMAT,
            **facts,
            labels=list(labels),
            metric=task.answers.metric,
            rows=count,
            queries=len(queries),
            items=len(items),
            item_proofs=proofs.decode(),
        )
        return card

    write_proven(
        path,
        columns,
        groups(),
        CARD,
        make_card,
        # the slowest of zstd's usual levels: a table is written once and shipped
        compression_level=19,
        use_dictionary=["query", "demos.list.element", "accuracy", "answer"],
    )
    return card


def _item_proofs(task: Task, ids: Iterable[ItemId]) -> bytes:
    """Short digests of items, one after the other: each over its id, question, all answers and picture."""
    proofs = bytearray()
    for item in map(task.item, ids):
        whole = item_digest(item, task.image_digest(item), role="query")
        proofs += hashlib.blake2b(whole, digest_size=ITEM_DIGEST).digest()
    return bytes(proofs)


def record_table(
    scorer: Scorer,
    pools: Sequence[Pool],
    path: Path,
    *,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the one-shot tables of some pools, in pool order, and every longer prompt the store holds of their queries.

    What is missing is asked and stored as it comes, so that a stopped recording goes on where it was. Returns the card.
    """
    context = scorer.context.values
    backend = context["backend"]
    about = {key: context[key] for key in ("task", "task_version", "cut")}
    about |= {"model": backend.get("model", ""), "backend": backend, **facts}
    rows = map(_row_of, _scores(scorer, pools))
    return write_table(path, rows, scorer.task, about, labels=scorer.labels)


def _row_of(score: Score) -> TableRow:
    return TableRow(
        score.query,
        score.demos,
        score.accuracy,
        score.gt_prob if score.weighed else None,
        score.answer or None,
        tuple(score.choices.values()) or None,
    )


def _scores(scorer: Scorer, pools: Sequence[Pool]) -> Iterator[Score]:
    for start in range(0, len(pools), QUERIES_AT_ONCE):
        asked: dict[ItemId, list[Demos]] = {}
        prompts = []
        for pool in pools[start : start + QUERIES_AT_ONCE]:
            asked[pool.query] = [()]
            for demo in pool.candidates:
                asked[pool.query].append((demo,))
            prompts += list(product([pool.query], asked[pool.query]))
        scores = iter(scorer.score(prompts, TRAINING, "recording"))
        for query, lists in asked.items():
            yield from islice(scores, len(lists))
            digest = scorer.digest(query, "query")
            for _, score in scorer.store.scan(scorer.context, digest):
                if score.query == query and score.demos not in lists:
                    yield score


@dataclass(frozen=True)
class RecordedTable:
    """All rows of some files, the card and the items of each file, and what has to be said about them (`notes`).

    `queries` (N,) and `demos` are numbers of `ids`; `demos[starts[r]:starts[r + 1]]` are the demonstrations of row r.
    `gt_prob` is NaN where it was not recorded, `answers` are texts or null, `logprobs` (N, labels).
    """

    ids: list[str]
    queries: Ints
    starts: Ints
    demos: Ints
    accuracy: Floats
    gt_prob: Floats
    answers: Any
    logprobs: Floats | None
    cards: tuple[dict[str, Any], ...]
    members: tuple[list[ItemId], ...]
    notes: tuple[str, ...]
    digest: str

    @cached_property
    def _rows(self) -> dict[str, Ints]:
        """The rows of every query in table order."""
        # rows of one query together, each in table order
        order = np.argsort(self.queries, kind="stable")
        cuts = np.flatnonzero(np.diff(self.queries[order])) + 1
        parts = np.split(order, cuts)
        return {self.ids[self.queries[part[0]]]: part for part in parts}

    @cached_property
    def _prompts(self) -> dict[str, dict[Demos, int]]:
        return {}

    def prompts(self, query: ItemId) -> dict[Demos, int]:
        """The rows of a query by their demonstrations, in table order; a prompt that occurs twice counts once."""
        if query not in self._prompts:
            found: dict[Demos, int] = {}
            for row in self._rows.get(query, np.empty(0, np.int64)).tolist():
                own = self.demos[self.starts[row] : self.starts[row + 1]].tolist()
                found.setdefault(tuple(ItemId(self.ids[demo]) for demo in own), row)
            self._prompts[query] = found
        return self._prompts[query]


def read_table(paths: Sequence[Path]) -> RecordedTable:
    """The rows of some files, one after the other; DataError where a file is no recorded table, or is damaged."""
    require_packages("a recorded table", "pyarrow")
    import pyarrow as pa

    parts = []
    cards = []
    members = []
    notes = []
    digest = hashlib.sha256()
    for path in paths:
        file = ProvenReader(path, CARD, kind="recorded table", again=AGAIN)
        notes += _check_file(file)
        cards.append(file.card)
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        part = _read_rows(file)
        shown = part["demos"].combine_chunks().flatten()
        names = [part["query"].combine_chunks(), shown]
        parts.append(part)
        members.append(sorted(set(pa.concat_arrays(names).to_pylist())))
    whole = pa.concat_tables(parts, promote_options="default").combine_chunks()
    count = len(whole)
    shown = whole["demos"].combine_chunks()
    named = pa.concat_arrays([whole["query"].combine_chunks(), shown.flatten()])
    encoded = named.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    logprobs = None
    if (
        "label_logprobs" in whole.column_names
        and not whole["label_logprobs"].null_count
    ):
        flat = whole["label_logprobs"].combine_chunks().flatten().to_numpy()
        logprobs = flat.reshape(count, -1)
    return RecordedTable(
        ids=encoded.dictionary.to_pylist(),
        queries=codes[:count],
        starts=shown.offsets.to_numpy().astype(np.int64),
        demos=codes[count:],
        accuracy=whole["accuracy"].to_numpy(),
        gt_prob=whole["gt_prob"].to_numpy(),
        answers=whole["answer"].combine_chunks(),
        logprobs=logprobs,
        cards=tuple(cards),
        members=tuple(members),
        notes=tuple(notes),
        digest=digest.hexdigest()[:16],
    )


def _check_file(file: ProvenReader) -> list[str]:
    """Refuse a file of another kind or format; what has to be said about one that is taken."""
    missing = ", ".join(sorted(set(REQUIRED) - set(file.columns)))
    if missing or not file.groups:
        lacking = "rows"
        if missing:
            lacking = f"column {missing}"
        raise DataError(
            f"{file.path} is not a recorded table: it has no {lacking}; a table has query, demos, accuracy, gt_prob "
            "and answer"
        )
    name = file.path.name
    if not file.has_card:
        return [f"{name}: no card, so nobody can say whether its items are these"]
    if file.has_checksums:
        return []
    if file.card.get("format") == FORMAT:
        raise file.changed("its checksums are gone")
    return [f"{name}: no checksums, so a change to it would not be noticed"]


def _read_rows(file: ProvenReader) -> Any:
    """The rows of a file as an arrow table with the columns and number formats of a recorded table."""
    import pyarrow as pa

    batches = [file.read(group) for group in range(file.groups)]
    with file.explaining_errors():
        rows = pa.Table.from_batches(batches)
        if len(rows) != file.count:
            raise file.changed(f"{len(rows):,} of {file.count:,} rows are whole")
        for name in REQUIRED:
            if rows[name].null_count:
                raise DataError(
                    f"{file.path}: a row has no {name}; every row of a recorded table has one"
                )
        # 0.3 as a short number is 0.30000001
        accuracy = rows["accuracy"].to_numpy().astype(np.float64)
        if rows["accuracy"].type != pa.float64():
            accuracy = np.round(accuracy, 6)
        if not ((accuracy >= 0.0) & (accuracy <= 1.0)).all():
            raise DataError(
                f"{file.path}: accuracies lie between {accuracy.min():g} and {accuracy.max():g}, expected 0 to 1"
            )
        rows = rows.drop_columns("accuracy").append_column("accuracy", [accuracy])
        columns = _columns(full=True, labels="label_logprobs" in rows.column_names)
        for name, kind in columns.items():
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(len(rows), kind))
        return rows.select(list(columns)).cast(pa.schema(list(columns.items())))


class TableBackend:
    """Replays recorded answers. What it gives are whole scores: accuracy and probability as they were recorded."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task = task
        self.paths = []
        for name in section.name.split(","):
            if name.strip():
                self.paths.append(shipped(name.strip()))
        self.table = read_table(self.paths)
        self.notice = "; ".join(self.table.notes)
        self._require_items()
        self.demonstrations = {item.id for item in task.items("train")}
        labels = task.labels if isinstance(task, HasLabels) else ()
        self.labels = task.answers.label_texts(labels)

    def _require_items(self) -> None:
        """Refuse a table of other items."""
        known: set[str] = set()
        for split in ("train", "dev", "test"):
            known.update(item.id for item in self.task.items(split))
        strangers = [name for name in self.table.ids if name not in known]
        if strangers:
            raise DataError(
                f"the recorded table holds item '{strangers[0]}' ({len(strangers)} such items), which the task "
                f"{self.task.name} does not have; give the items that the table was recorded with (task.file)"
            )
        table = self.table
        for path, card, ids in zip(self.paths, table.cards, table.members, strict=True):
            recorded = base64.b64decode(card.get("item_proofs", ""))
            now = _item_proofs(self.task, ids)
            changed = []
            for place, item in enumerate(ids):
                part = slice(ITEM_DIGEST * place, ITEM_DIGEST * (place + 1))
                if recorded and recorded[part] != now[part]:
                    changed.append(item)
            if changed:
                raise DataError(
                    f"{path.name} was recorded with other items: {len(changed)} changed since, item {changed[0]} among "
                    "them; take the items it was recorded with, or record it again"
                )

    def fingerprint(self) -> Mapping[str, str]:
        pairs = zip(self.paths, self.table.cards, strict=True)
        models = set()
        for path, card in pairs:
            models.add(str(card.get("model", path.name)))
        return {
            "model": ", ".join(sorted(models)),
            "revision": f"table-{self.table.digest}",
            "decoding": "recorded",
        }

    def candidates(self, query: ItemId) -> Demos:
        """What a query was recorded with alone and may be shown as a demonstration, in table order."""
        found = []
        for demos in self.table.prompts(query):
            if len(demos) == 1 and demos[0] in self.demonstrations:
                found.append(demos[0])
        return tuple(found)

    def scores(self, prompts: Sequence[tuple[ItemId, Demos]]) -> list[Score]:
        """The recorded scores of prompts; one that was not recorded is named."""
        return [self._score(query, demos) for query, demos in prompts]

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """The recorded answers as texts; probabilities are in `scores`."""
        replies = []
        for request in requests:
            demos = tuple(demo.id for demo in request.demos)
            replies.append(Reply(self._score(request.query.id, demos).answer, None, 0))
        return replies

    def _score(self, query: ItemId, demos: Demos) -> Score:
        table = self.table
        row = self.table.prompts(query).get(demos)
        if row is None:
            shown = ", ".join(demos) or "none"
            raise ScoringError(
                f"the recorded table does not hold the prompt of query {query} with the demonstrations {shown}; ask "
                'only for what was recorded (pool.kind = "recorded", eval.shots = [1]), or use the live model'
            )
        item = self.task.item(query)
        answer = table.answers[row].as_py() or ""
        accuracy = float(table.accuracy[row])
        probability = float(table.gt_prob[row])
        # Nobody can say how near an answer came that was not recorded; its accuracy is what is known.
        shared_words = alike = accuracy
        if answer:
            shared_words = token_f1(answer, item.answers)
            alike = edit_similarity(answer, item.answers)
        return Score(
            query=query,
            demos=demos,
            raw=answer,
            answer=answer,
            accuracy=accuracy,
            correct=accuracy > 0,
            references=self._references(item, row),
            token_f1=shared_words,
            edit_similarity=alike,
            tokens=0,
            seconds=0.0,
            recorded_gt_prob=None if np.isnan(probability) else probability,
        )

    def _references(self, item: Item, row: int) -> tuple[Reference, ...]:
        """What was weighed: all labels with their log-probabilities where these were recorded, else the answers."""
        counts = self.task.answers.weighed_references(item)
        values: dict[str, float] = {}
        names: Iterable[str] = counts
        if self.labels and self.table.logprobs is not None:
            recorded = self.table.cards[0].get("labels", self.labels)
            logprobs = self.table.logprobs[row].tolist()
            values = dict(zip(recorded, logprobs, strict=True))
            names = self.labels
        found = []
        for name in names:
            found.append(Reference(name, counts.get(name, 0), values.get(name)))
        return tuple(found)
