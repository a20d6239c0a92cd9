"""What labels let answers expect: against a known truth, without memory of a question's own annotators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from leverplus.data.metrics.vqa import vqa_accuracy
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId, Score
from leverplus.encode.base import Vectors
from leverplus.errors import TrainingError
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.train import (
    learn_expected_accuracy,
    row_maker,
    search_groups,
    train_run,
)
from leverplus_lab import expected_accuracy
from leverplus_lab.expected_accuracy import ExpectedAccuracy

EXACT, VQA = AnswerRules("exact_match", "vqa"), AnswerRules("vqa_accuracy", "vqa")
KINDS, WORDS = 4, ("lift", "elevator")
CHANCE = (0.9, 0.7, 0.5, 0.2)
"""How often a question of each kind is answered with the first word; else with the second."""


def score(query: str, answer: str, accuracy: float = 0.0) -> Score:
    return Score(
        query=ItemId(query),
        demos=(),
        raw=answer,
        answer=answer,
        accuracy=accuracy,
        correct=accuracy > 0,
        references=(),
        token_f1=0.0,
        edit_similarity=0.0,
        tokens=1,
        seconds=0.0,
    )


def labelled(count: int, seed: int = 0) -> tuple[list[Item], Vectors, np.ndarray]:
    """Questions on pictures of four kinds, two a picture; a coin of the picture's kind says which word both get."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(rng.integers(KINDS, size=count // 2), 2)
    first = np.repeat(rng.random(count // 2), 2) < np.array(CHANCE)[kind]
    items = [
        Item(
            ItemId(f"i{n}"),
            "what?",
            (WORDS[0 if said else 1],),
            "train",
            image=f"p{n // 2}",
        )
        for n, said in enumerate(first)
    ]
    vectors = np.eye(KINDS, dtype=np.float32)[kind] + 0.1 * rng.normal(
        size=(count, KINDS)
    ).astype(np.float32)
    return items, Vectors(None, vectors, vectors), kind


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of which questions a network sees, which hold however little it has learnt from them."""
    monkeypatch.setattr(expected_accuracy, "EPOCHS", 2)
    monkeypatch.setattr(expected_accuracy, "FEWEST_STEPS", 8)


def expected(items: Sequence[Item], vectors: Vectors, seed: int = 0) -> np.ndarray:
    judge = ExpectedAccuracy(items, vectors, EXACT, seed=seed)
    return np.array([judge(score(item.id, WORDS[0])) for item in items])


@pytest.mark.slow
def test_the_chance_behind_the_labels_is_found() -> None:
    items, vectors, kind = labelled(1200)
    judge = ExpectedAccuracy(items, vectors, EXACT, seed=0)
    found = np.array([judge(score(item.id, WORDS[0])) for item in items])
    truth = np.array(CHANCE)[kind]
    measured = np.array([float(item.answer == WORDS[0]) for item in items])
    for number in range(KINDS):
        assert found[kind == number].mean() == pytest.approx(CHANCE[number], abs=0.08)
    assert np.mean((found - truth) ** 2) < 0.15 * np.mean((measured - truth) ** 2)


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_a_question_is_judged_without_its_own_label_and_without_its_pictures() -> None:
    items, vectors, _ = labelled(120)
    before = expected(items, vectors)
    other = {WORDS[0]: WORDS[1], WORDS[1]: WORDS[0]}
    changed = [
        Item(item.id, item.question, (other[item.answer],), "train", image=item.image)
        if n in (6, 7)
        else item
        for n, item in enumerate(items)
    ]
    after = expected(changed, vectors)
    assert after[6] == before[6]
    assert after[7] == before[7]
    assert (after != before).sum() > 40  # the judges of the other folds saw the change
    changed[6] = Item(
        items[6].id, "what?", ("paternoster",), "train", image=items[6].image
    )  # which nobody else said
    judge = ExpectedAccuracy(changed, vectors, EXACT, seed=0)
    assert judge(score("i6", WORDS[0])) == before[6]
    assert (
        judge(score("i6", "paternoster", 1.0)) == 1.0
    )  # as measured: no other question says what it may expect


@pytest.mark.slow
def test_answers_of_several_annotators_count_by_the_metric() -> None:
    items = [
        Item(ItemId(f"i{n}"), "what?", ("Lift.",) * 2 + ("elevator",) * 8, "train")
        for n in range(90)
    ]
    vectors = Vectors(
        None, np.ones((90, 3), dtype=np.float32), np.ones((90, 3), dtype=np.float32)
    )
    judge = ExpectedAccuracy(items, vectors, VQA, seed=1)
    assert judge(score("i3", "lift")) == pytest.approx(
        vqa_accuracy("lift", items[0].answers), abs=0.08
    )
    assert judge(score("i3", "elevator")) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "answer"),
    [(VQA, "two"), (VQA, "The beach"), (AnswerRules("label_accuracy"), "num-date")],
)
def test_answers_that_normalising_changes_are_worth_what_the_metric_says(
    rules: AnswerRules, answer: str
) -> None:
    items = [Item(ItemId(f"i{n}"), "what?", (answer,) * 10, "train") for n in range(60)]
    vectors = Vectors(
        None, np.ones((60, 3), dtype=np.float32), np.ones((60, 3), dtype=np.float32)
    )
    assert rules.score(answer, items[0]) == 1.0
    assert ExpectedAccuracy(items, vectors, rules, seed=0)(score("i3", answer)) > 0.9


SET_CODE = """
import numpy as np
from leverplus.encode.base import Vectors
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.answers import AnswerRules
from leverplus_lab import expected_accuracy
from leverplus.data.types import Item, ItemId
expected_accuracy.FEWEST_STEPS = expected_accuracy.EPOCHS = 4
words = ("lift", "elevator", "hoist", "crane")
items = [Item(ItemId(f"i{n}"), "what?", words, "train") for n in range(30)]
vectors = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
judge = expected_accuracy.ExpectedAccuracy(items, Vectors(None, vectors, vectors), AnswerRules("exact_match"), seed=0)
found = judge.predictors[0]
print(list(set(words)), found.columns, float(found.network(judge.inputs).detach().sum()), sep="|")
"""


def other_order(words: Sequence[str]) -> str:
    """A seed with which another process goes through a set of these words in another order than this one."""
    for seed in map(str, range(1, 50)):
        command = [sys.executable, "-S", "-c", f"print(list(set({tuple(words)!r})))"]
        said = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        if said.stdout.decode().strip() != str(list(set(words))):
            return seed
    raise AssertionError("every process has the same order")


@pytest.mark.slow
def test_the_order_of_sets_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers are given equally often; the order in which a set yields them differs between processes."""
    for name in ("FEWEST_STEPS", "EPOCHS"):
        monkeypatch.setattr(
            expected_accuracy, name, 4
        )  # what the code sets is put back afterwards
    environment = {
        **os.environ,
        "PYTHONHASHSEED": other_order(("lift", "elevator", "hoist", "crane")),
    }
    there = subprocess.run(
        [sys.executable, "-c", SET_CODE],
        env=environment,
        capture_output=True,
        check=True,
    )
    exec(SET_CODE, {})
    here = capsys.readouterr().out.split("|")
    order, *found = there.stdout.decode().split("|")
    assert order != here[0]
    assert found == here[1:]


def test_what_answers_score_is_laid_out_by_question_and_column() -> None:
    scored = [
        {"lift": 1.0, "hoist": 0.3},
        {},
        {"crane": 0.6},
        {"elevator": 0.9, "crane": 0.2, "lift": 0.1},
    ]
    columns = {"elevator": 0, "lift": 1, "crane": 2}  # nobody tells hoist apart
    shown, worth = expected_accuracy._scored_columns(scored, columns)
    found = torch.zeros(4, 3).scatter_add_(1, shown, worth)
    truth = [[own.get(answer, 0.0) for answer in columns] for own in scored]
    assert torch.equal(found, torch.tensor(truth))


@pytest.mark.usefixtures("few_steps")
def test_items_without_answers_teach_nothing() -> None:
    items, vectors, _ = labelled(60)
    silent = [
        Item(item.id, item.question, (), "train", image=item.image) if n < 4 else item
        for n, item in enumerate(items)
    ]
    judge = ExpectedAccuracy(silent, vectors, EXACT, seed=0)
    assert judge(score("i0", WORDS[0])) > 0.0


def test_labels_that_are_not_there_are_named() -> None:
    items, vectors, _ = labelled(60)
    silent = [Item(item.id, "what?", (), "train", image=item.image) for item in items]
    with pytest.raises(TrainingError, match="too few have any"):
        ExpectedAccuracy(silent, vectors, EXACT, seed=0)


@pytest.mark.slow
def test_a_reward_that_cannot_be_had_is_refused_before_the_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        "reward.mode=expected_accuracy",
        "reward.components=[]",
        "reward.component_weights=[]",
    ]
    recipe = load_recipe("best_8k", settings)
    run = open_run(
        recipe,
        find_recipe("best_8k"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
    )
    monkeypatch.setattr(type(run.task), "answers", AnswerRules("token_f1", "vqa"))
    with pytest.raises(
        TrainingError,
        match=r"and the task has token_f1; put \"soft_only\" in its place, .*--set",
    ):
        train_run(run)
    assert "backend" not in vars(run), "the model was not even loaded"


def test_many_questions_are_read_less_often_and_every_step_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def epochs(count: int) -> float:
        return sum(len(rows) for rows in expected_accuracy._batches(count)) / count

    assert (epochs(5_333), epochs(30_000), epochs(400_000)) == (20, 10, 1)
    assert epochs(100) == 200  # one step an epoch, and 200 steps at least
    items, vectors, _ = labelled(60)
    monkeypatch.setattr(expected_accuracy, "FEWEST_STEPS", 4)
    monkeypatch.setattr(expected_accuracy, "EPOCHS", 4)
    said: list[tuple[int, int]] = []
    ExpectedAccuracy(
        items,
        vectors,
        EXACT,
        seed=0,
        tell=lambda done, total: said.append((done, total)),
    )
    assert said == [(done, 12) for done in range(1, 13)]


@pytest.mark.usefixtures("few_steps")
def test_what_labels_do_not_tell_is_as_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, vectors, _ = labelled(60)
    judge = ExpectedAccuracy(items, vectors, EXACT, seed=0)
    assert judge(score("i0", "staircase", 0.3)) == 0.3
    assert judge(score("a stranger", WORDS[0], 0.6)) == 0.6
    monkeypatch.setattr(expected_accuracy, "MOST_ANSWERS", 1)
    few = ExpectedAccuracy(items, vectors, EXACT, seed=0)
    (common,) = few.predictors[few.folds[0]].columns
    (rare,) = set(WORDS) - {common}
    assert few(score("i0", rare, 0.25)) == 0.25
    assert few(score("i0", common, 0.25)) != 0.25


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_the_same_seed_gives_the_same_and_leaves_the_generator_alone() -> None:
    items, vectors, _ = labelled(60)
    torch.manual_seed(5)
    one = expected(items, vectors, seed=3)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == drawn
    assert np.array_equal(expected(items, vectors, seed=3), one)
    assert not np.array_equal(expected(items, vectors, seed=4), one)


def test_labels_of_too_few_pictures_are_refused() -> None:
    items, vectors, _ = labelled(4)
    with pytest.raises(
        TrainingError, match="at least 3 pictures or texts, and there are 2"
    ):
        ExpectedAccuracy(items, vectors, EXACT, seed=0)


def refuse(_run: object) -> None:
    raise AssertionError("nobody should ask for it")


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_a_run_learns_from_expectations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        'reward.components=["expected_accuracy","gt_prob"]',
        "score.budget=300",
        "score.dev_queries=2",
        "pool.size=12",
        "select.hidden=16",
        "listwise.epochs=2",
        "label_pretraining.epochs=1",
        "label_pretraining.queries=50",
        "score.rounds=1",
    ]
    run = open_run(
        load_recipe("best_8k", settings),
        find_recipe("best_8k"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
    )
    train_run(run)
    groups = search_groups(run)
    expected = learn_expected_accuracy(run)
    assert expected is not None
    row = row_maker(run, run.pools(run.training_queries())[1], expected)(groups)[0]
    scores = next(group.scores for group in groups if group.query == row.query)
    worth = [0.5 * expected(one) + 0.5 * one.gt_prob for one in scores]
    assert row.rewards.tolist() == pytest.approx(worth, abs=1e-6)
    assert row.accuracy.tolist() == pytest.approx(
        [one.accuracy for one in scores]
    )  # the log shows what was measured
    assert (tmp_path / "run" / "checkpoints" / "listwise").is_dir()
    again = load_run(tmp_path / "run", store_path=tmp_path / "s.db")
    monkeypatch.setattr(
        "leverplus.run.train.learn_expected_accuracy", refuse
    )  # nothing is left to learn
    train_run(again)
    assert again.calls() == run.calls()
