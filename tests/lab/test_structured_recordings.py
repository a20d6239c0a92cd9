"""Lists of examples are asked in shards, kept as recorded tables, and compared by ids alone."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "models" / "hf"))  # tiny_hf

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, MissingFile
from leverplus.models.settings import ModelSection
from leverplus.scores.tables import TableBackend
from leverplus_lab.structured.__main__ import main, schema_text
from leverplus_lab.structured.ask import (
    AskOptions,
    Job,
    JobSettings,
    ask_jobs,
    read_answers,
    read_job,
    shard_file,
    write_job,
)
from leverplus_lab.structured.plan import ListRow, Sizes, choose_items
from leverplus_lab.structured.records import (
    Record,
    Recording,
    Records,
    Scored,
    chosen_by,
    read_records,
    records_of,
    score_jobs,
    write_recording,
    write_records,
)
from leverplus_lab.structured.report import as_markdown, reports_of, spread_of

RULES = AnswerRules("exact", "plain")


def items() -> list[Item]:
    """Twelve examples to show and four questions."""
    found = []
    for number in range(16):
        split = "train" if number < 12 else "test"
        words = "long " * number
        question = f"how {words}is river {number}"
        answer = f"SELECT length FROM river WHERE n = {number}"
        found.append(Item(ItemId(f"q{number}"), question, (answer,), split))
    return found


def a_job(name: str = "rivers", shard: int = 4) -> Job:
    """Ten prompts, one of them named twice."""
    prompts = []
    for query in range(12, 16):
        for shots in (0, 1, 3):
            demos = tuple(ItemId(f"q{query - 4 - n}") for n in range(shots))
            prompts.append((ItemId(f"q{query}"), demos))
    prompts.append(prompts[0])
    settings = JobSettings(name, instruction="CREATE TABLE river", max_new_tokens=3)
    job = Job.of(settings, items(), prompts)
    return Job(job.settings, job.items, job.prompts, shard)


def test_a_job_comes_back_from_its_folder_longest_prompts_first(tmp_path: Path) -> None:
    job = a_job()
    write_job(job, tmp_path / "job")
    back = read_job(tmp_path / "job")
    assert back == job
    assert len(job.prompts) == 12
    assert job.shards == 3
    lengths = [job.letters(prompt) for prompt in job.prompts]
    assert lengths == sorted(lengths, reverse=True)
    assert ItemId("q0") not in job.items  # nobody shows it
    first = (tmp_path / "job" / "prompts.jsonl.gz").read_bytes()
    write_job(job, tmp_path / "job")
    assert (tmp_path / "job" / "prompts.jsonl.gz").read_bytes() == first
    with pytest.raises(MissingFile, match="is no job"):
        read_job(tmp_path)


def test_a_dev_split_is_drawn_from_what_the_corpus_leaves() -> None:
    chosen = choose_items(items(), Sizes(train=5, dev=3, test=2), seed=1)
    splits = [item.split for item in chosen]
    assert [splits.count(name) for name in ("train", "dev", "test")] == [5, 3, 2]
    assert len({item.id for item in chosen}) == 10


def test_a_question_of_an_earlier_split_is_left_out() -> None:
    again = Item(ItemId("again"), "HOW is  river 0", ("x",), "test")
    chosen = choose_items([*items(), again], Sizes())
    assert [item.id for item in chosen] == [item.id for item in items()]


def test_the_schema_is_read_from_the_database(tmp_path: Path) -> None:
    path = tmp_path / "river.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE river (name text)")
        connection.execute("CREATE TABLE lake (name text)")
    assert schema_text(path) == (
        "CREATE TABLE lake (name text)\nCREATE TABLE river (name text)"
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    from tiny_hf import llama

    return str(llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def asked(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A job and its answers."""
    folder = tmp_path_factory.mktemp("asked")
    write_job(a_job(), folder / "job")
    options = AskOptions(model, folder / "answers", device="cpu")
    options.out.mkdir()
    assert ask_jobs([folder / "job"], options, lambda _text: None) == 12
    return folder / "job", options.out


def test_a_stopped_recording_asks_only_what_is_missing(
    model: str, asked: tuple[Path, Path], tmp_path: Path
) -> None:
    job, answers = asked
    again = tmp_path / "answers"
    again.mkdir()
    for number in (0, 2):
        file = shard_file(answers, "rivers", number)
        (again / file.name).write_bytes(file.read_bytes())
    with pytest.raises(MissingFile, match="shard 2 of 3 was not asked"):
        read_answers(read_job(job), again)
    options = AskOptions(model, again, device="cpu")
    assert ask_jobs([job], options, lambda _text: None) == 4
    assert ask_jobs([job], options, lambda _text: None) == 0
    first, second = (read_answers(read_job(job), own) for own in (answers, again))
    assert first.raw == second.raw
    assert np.allclose(first.logprobs, second.logprobs, atol=2e-3)


def test_the_table_replays_what_the_model_said(
    asked: tuple[Path, Path], tmp_path: Path
) -> None:
    job, answers = asked
    recording = score_jobs([job], answers, items(), RULES)
    card = write_recording(recording, tmp_path / "table.parquet", licence="none")
    assert card["rows"] == 12
    assert card["prompt"]["instruction"] == "CREATE TABLE river"
    section = ModelSection(name=str(tmp_path / "table.parquet"))
    backend = TableBackend(recording.task, section)
    said = read_answers(read_job(job), answers)
    for prompt, raw, logprob in zip(
        read_job(job).prompts, said.raw, said.logprobs, strict=True
    ):
        score = backend.scores([prompt])[0]
        assert score.answer == raw.strip()
        assert score.gt_prob == pytest.approx(np.exp(logprob))
    changed = [*items()[:-1], Item(ItemId("q15"), "another", ("x",), "test")]
    with pytest.raises(DataError, match="q15 as it was asked"):
        score_jobs([job], answers, changed, RULES)


def test_without_texts_a_table_holds_ids_and_scores_alone(
    asked: tuple[Path, Path], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    job, answers = asked
    recording = score_jobs([job], answers, items(), RULES)
    path = tmp_path / "bare.parquet"
    write_recording(recording, path, licence="", answers=False)
    assert pq.read_table(path).column("answer").null_count == 12


def test_a_table_may_hold_what_some_arms_showed(asked: tuple[Path, Path]) -> None:
    job, answers = asked
    recording = score_jobs([job], answers, items()[:-1], RULES)
    assert len(recording.scores) == 9  # the questions that the items lack are left out
    rows = [ListRow("split", "test", "zero_shot", 0, ItemId("q12"), ())]
    rows.append(ListRow("split", "test", "zero_shot", 0, ItemId("q15"), ()))
    kept = chosen_by(recording, rows)
    assert list(kept.scores) == [(ItemId("q12"), ())]


def test_the_spread_counts_prompts_with_one_example(tmp_path: Path) -> None:
    task = FileTask("rivers", items(), answers=RULES)
    scores = {}
    for query, outcomes in (("q12", (1.0, 0.0, 0.0)), ("q13", (0.0, 0.0, 0.0))):
        scores[ItemId(query), ()] = Scored("x", 1.0, -0.5)
        for number, accuracy in enumerate(outcomes):
            logprob = (-1.0, -3.0, -0.5)[number]
            demos = (ItemId(f"q{number}"),)
            scores[ItemId(query), demos] = Scored("x", accuracy, logprob)
    path = tmp_path / "train.parquet"
    write_recording(Recording(task, scores, {"model": "m"}), path, licence="")
    found = spread_of(path)
    assert (found.questions, found.prompts) == (2, 6)
    assert found.accuracy == pytest.approx(1 / 6)
    assert found.best == found.differ == 0.5
    assert found.within == pytest.approx(1.0)  # both questions have the same mean
    assert found.agrees == 0.5  # -1 is above -3 and below -0.5


def test_records_hold_every_list_and_say_which_was_not_asked(
    asked: tuple[Path, Path], tmp_path: Path
) -> None:
    job, answers = asked
    recording = score_jobs([job], answers, items(), RULES)
    demos = tuple(ItemId(f"q{n}") for n in (8, 7, 6))
    row = ListRow("split", "test", "bm25", 3, ItemId("q12"), demos)
    records = records_of(recording, [row], "rivers")
    path = tmp_path / "records.parquet"
    write_records(records, path)
    back = read_records(path)
    assert back.rows[0].row == row
    assert back.rows[0].answer == records.rows[0].answer
    assert b"SELECT length" not in path.read_bytes()
    other = ListRow("split", "test", "bm25", 1, ItemId("q12"), (ItemId("q1"),))
    with pytest.raises(DataError, match="bm25 with 1 examples"):
        records_of(recording, [row, other], "rivers")


def made_records() -> Records:
    """Dev prefers bm25 with 4 and by_answer with 8; on test the other settings look better."""
    shares = {
        ("bm25", 4): (0.6, 0.4),
        ("bm25", 8): (0.5, 0.9),
        ("nearest_text", 4): (0.3, 0.95),
        ("by_answer", 8): (0.8, 0.7),
        ("by_answer", 4): (0.7, 0.99),
        ("copy_nearest", 0): (0.5, 0.5),
    }
    rows = []
    for (arm, shots), (dev, test) in shares.items():
        for part, share in (("dev", dev), ("test", test)):
            for number in range(100):
                own = ListRow("split", part, arm, shots, ItemId(f"{part}{number}"), ())
                rows.append(Record(own, float(number < 100 * share), -1.0, "00"))
    return Records("rivers", "tiny.Q4", {}, rows)


def test_arms_and_shots_are_chosen_on_dev_and_looked_up_on_test() -> None:
    report = reports_of(made_records())[0]
    assert report.simple.label == "bm25 (4)"
    assert report.advised.label == "by_answer (8)"
    main_pair = report.against[0]
    assert main_pair.found.diff == pytest.approx(0.3)
    assert main_pair.found.n == 100
    low, high = main_pair.found.ci95
    assert 0.15 < low < 0.3 < high < 0.45
    against_copying = report.against[-1]
    assert against_copying.rival.arm == "copy_nearest"
    assert against_copying.found.diff == pytest.approx(0.2)
    assert "by_answer (8): +30.0 (" in as_markdown([report])


def test_the_commands_say_what_to_mend(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["ask", str(tmp_path), "--model", "m", "--out", str(tmp_path / "a")]
    assert main(asked) == 1
    assert "is no job" in capsys.readouterr().err
