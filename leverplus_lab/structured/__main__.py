"""The commands of a recording; `leverplus_lab.structured` says what each does."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from leverplus.arms.spec import open_arm, split_specs
from leverplus.cli.command import LeverParser, Outcome, add_arguments, show
from leverplus.data.formats import Problems
from leverplus.data.metrics.base import MetricOptions
from leverplus.data.reader import ReadOptions, read_examples
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item
from leverplus.encode.cached import open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError
from leverplus_lab.structured import report as tables
from leverplus_lab.structured.ask import (
    AskOptions,
    Job,
    JobSettings,
    ask_jobs,
    read_lines,
    write_job,
    write_lines,
)
from leverplus_lab.structured.plan import (
    Data,
    ListRow,
    Sizes,
    TextVectors,
    answers_without_model,
    choose_items,
    plan_arms,
    plan_scores,
    with_split,
)
from leverplus_lab.structured.records import (
    chosen_by,
    read_records,
    records_of,
    records_without_model,
    score_jobs,
    write_recording,
    write_records,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 1 where the user can mend what is wrong."""
    parser = LeverParser(prog="python -m leverplus_lab.structured")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (items, plan, ask, table, record, report, spread):
        line = (command.__doc__ or "").partition("\n")[0]
        own = commands.add_parser(command.__name__, help=line, description=line)
        add_arguments(own, command)
        own.set_defaults(function=command)
    given = vars(parser.parse_args(argv))
    function = given.pop("function")
    as_json = given.pop("json")
    del given["command"]
    try:
        outcome: Outcome | None = function(**given)
    except LeverError as error:
        say(f"error: {error}")
        return 1
    if outcome is not None:
        show(outcome, as_json=as_json)
    return 0


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def read_items(path: Path, split_key: str = "split") -> list[Item]:
    """All examples of a data file that are in a split."""
    problems = Problems(path.name)
    options = ReadOptions(split_key=split_key)
    found = read_examples(path, options, problems).items
    problems.finish()
    return [item for item in found if item.split in ("train", "dev", "test")]


def _rules(metric: str, cut: str, database: str) -> AnswerRules:
    """How answers are judged."""
    return AnswerRules(metric, cut, MetricOptions(database=database))


def _text_vectors(folder: Path) -> TextVectors:
    """The usual encoder of texts, with vectors kept in a folder."""
    embedder: Any = open_embedder(EmbedSection(name="sentence"), folder)
    of_texts: TextVectors = embedder.of_texts
    return of_texts


def _lists(jobs: Sequence[Path]) -> Iterator[ListRow]:
    """All lists of some jobs."""
    for job in jobs:
        yield from map(ListRow.of_json, read_lines(job / "lists.jsonl.gz"))


def items(
    data: Path,
    *,
    out: Path,
    train: int = 4000,
    dev: int = 150,
    test: int = 300,
    seed: int = 0,
) -> None:
    """Draws a corpus, dev and test questions.

    DATA: a file of examples
    --out FILE: the items that were drawn
    --train N: how many examples at most (default 4000)
    --dev N: how many dev questions at most (default 150)
    --test N: how many test questions at most (default 300)
    --seed N: seed of the draw (default 0)
    """
    records = []
    for item in choose_items(read_items(data), Sizes(train, dev, test), seed):
        record: dict[str, Any] = {"id": item.id, "question": item.question}
        record |= {"answer": item.answer, "split": item.split}
        if item.meta:
            record["meta"] = dict(item.meta)
        records.append(record)
    write_lines(out, records)
    say(f"{out}: {len(records):,} items")


def plan(
    items: Path,
    *,
    out: Path,
    arms: str = "nearest_text",
    shots: str = "1,4,8",
    parts: str = "dev,test",
    split_keys: str = "split",
    limits: str = "0",
    scores: int = 0,
    candidates: int = 8,
    schema: Path | None = None,
    max_new_tokens: int = 64,
    shard: int = 1024,
    vectors: Path | None = None,
    metric: str = "exact",
    cut: str = "plain",
    database: str = "",
) -> None:
    """Writes the lists of every arm as one job.

    ITEMS: what `items` wrote
    --out JOB: the folder to write
    --arms NAMES: names with commas (default nearest_text)
    --shots N,N: numbers of examples (default 1,4,8)
    --parts NAMES: of which splits (default dev,test)
    --split-keys KEYS: such as split,meta.query_split (default split)
    --limits N,N: sizes of the corpus; 0: all (default 0)
    --scores N: instead: one example at a time for so many training questions
    --candidates N: how many examples each of these is asked with (default 8)
    --schema FILE: a SQLite file whose tables the prompt begins with
    --max-new-tokens N: how long an answer may be (default 64)
    --shard N: prompts of a shard (default 1024)
    --vectors DIR: a folder that keeps vectors (default beside the job)
    --metric NAME: how answers are judged (default exact)
    --cut NAME: how they are cut (default plain)
    --database FILE: for metric sql_execution
    """
    rules = _rules(metric, cut, database)
    found = rules.keep(read_items(items))[0]
    of_texts = _text_vectors(vectors or out.parent / "vectors")
    rows: list[ListRow] = []
    for split_key in split_keys.split(","):
        for limit in map(int, limits.split(",")):
            own = with_split(found, split_key)
            data = Data(split_key, own, of_texts, rules, limit)
            opened = [open_arm(name) for name in split_specs(arms)]
            if scores:
                rows += plan_scores(data, opened, scores, candidates)
                continue
            counts = [int(text) for text in shots.split(",")]
            rows += plan_arms(data, opened, counts, parts.split(","), say)
    instruction = schema_text(schema) if schema else ""
    settings = JobSettings(out.name, instruction, max_new_tokens=max_new_tokens)
    prompts = [(row.query, row.demos) for row in rows]
    job = replace(Job.of(settings, found, prompts), shard=shard)
    write_job(job, out)
    write_lines(out / "lists.jsonl.gz", [row.as_json() for row in rows])
    say(f"{out}: {len(rows):,} lists, {len(job.prompts):,} prompts")


def schema_text(database: Path) -> str:
    """The statements that made the tables of a SQLite file."""
    address = f"file:{database}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        )
        return "\n".join(row[0] for row in rows)


def ask(
    jobs: Sequence[Path],
    *,
    model: str,
    out: Path,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: str = "auto",
    batch_tokens: int = 0,
    workers: int = 1,
) -> None:
    """Asks a model the prompts of jobs, in shards; goes on where it was.

    JOB: what `plan` wrote
    --model NAME: the weights, as model.name takes them
    --out DIR: the answers, a file a shard
    --device: where it computes (default auto)
    --dtype NAME: in which precision (default auto)
    --batch-tokens N: tokens of a batch (default: as memory allows)
    --workers N: processes, each with a model of its own (default 1)
    """
    out.mkdir(parents=True, exist_ok=True)
    options = AskOptions(model, out, device, dtype, batch_tokens, workers)
    asked = ask_jobs(jobs, options, say)
    say(f"{asked:,} prompts asked")


def table(
    jobs: Sequence[Path],
    *,
    items: Path,
    answers: Path,
    out: Path,
    licence: str = "",
    no_texts: bool = False,
    arms: str = "",
    half: bool = False,
    metric: str = "exact",
    cut: str = "plain",
    database: str = "",
) -> None:
    """Scores the answers of jobs as a recorded table.

    JOB: what `plan` wrote
    --items FILE: what `items` wrote
    --answers DIR: what `ask` wrote
    --out FILE: the table
    --licence NAME: under which it may be passed on
    --no-texts: keep ids and scores, no answer
    --arms NAMES: keep only what these arms showed
    --half: keep probabilities in half precision
    --metric NAME: how answers are judged (default exact)
    --cut NAME: how they are cut (default plain)
    --database FILE: for metric sql_execution
    """
    rules = _rules(metric, cut, database)
    recording = score_jobs(jobs, answers, read_items(items), rules)
    if arms:
        wanted = set(arms.split(","))
        lists = [row for row in _lists(jobs) if row.arm in wanted]
        recording = chosen_by(recording, lists)
    card = write_recording(
        recording,
        out,
        licence=licence,
        answers=not no_texts,
        full=not half,
    )
    say(f"{out}: {card['rows']:,} prompts of {card['queries']:,} questions")


def record(
    jobs: Sequence[Path],
    *,
    items: Path,
    answers: Path,
    task: str,
    out: Path,
    without_model: str = "",
    split_keys: str = "split",
    vectors: Path | None = None,
    metric: str = "exact",
    cut: str = "plain",
    database: str = "",
) -> None:
    """Writes what every arm got, by id.

    JOB: what `plan` wrote
    --items FILE: what `items` wrote
    --answers DIR: what `ask` wrote
    --task NAME: its name in tables
    --out FILE: the records
    --without-model NAMES: arms that answer by themselves
    --split-keys KEYS: the splits of these (default split)
    --vectors DIR: a folder that keeps vectors (default beside the records)
    --metric NAME: how answers are judged (default exact)
    --cut NAME: how they are cut (default plain)
    --database FILE: for metric sql_execution
    """
    rules = _rules(metric, cut, database)
    found = rules.keep(read_items(items))[0]
    recording = score_jobs(jobs, answers, found, rules)
    records = records_of(recording, [*_lists(jobs)], task)
    more = []
    if without_model:
        of_texts = _text_vectors(vectors or out.parent / "vectors")
        for split_key in split_keys.split(","):
            data = Data(split_key, with_split(found, split_key), of_texts, rules)
            arms = [open_arm(name) for name in split_specs(without_model)]
            given = answers_without_model(data, arms, ("dev", "test"))
            more += records_without_model(given, found, rules)
    records = replace(records, rows=[*records.rows, *more])
    write_records(records, out)
    say(f"{out}: {len(records.rows):,} records")


def report(records: Sequence[Path], *, all_: bool = False) -> Outcome:
    """Says what may be said of records, as tables in Markdown.

    RECORDS: what `record` wrote
    --all: all pairs, shots and sizes
    """
    read = [read_records(path) for path in records]
    reports = []
    for own in read:
        reports += tables.reports_of(own)
    parts = [tables.as_markdown(reports)]
    if all_:
        parts.append(tables.pairs_as_markdown(reports))
        parts.append(tables.shots_as_markdown(reports))
        parts.append(tables.sizes_as_markdown(read))
    return Outcome(tables.as_json(reports), parts)


def spread(files: Sequence[Path]) -> Outcome:
    """Says how much one example changes.

    TABLE: recorded tables of prompts with one example
    """
    found = {path.stem: tables.spread_of(path) for path in files}
    return Outcome(
        {name: vars(own) for name, own in found.items()},
        [tables.spread_as_markdown(found)],
    )


if __name__ == "__main__":
    sys.exit(main())
