"""A selector learns from the likeness of answers which question asks for which shape of answer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_world import TINY

from leverplus.data.types import Item, ItemId, Pool
from leverplus.encode.settings import EmbedSection
from leverplus.encode.tfidf import TfidfVectors
from leverplus.errors import TrainingError
from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.data.answer_likeness import NgramLikeness
from leverplus.learn.data.from_answers import AnswerRows
from leverplus.learn.distance import weight_distances
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.maths.losses import info_nce
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.items import choose_demos
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import ContrastiveConfig
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import open_run
from leverplus.run.train import train_run

# the hidden rule: one of these words says what is asked for, all other words say of what
SHAPES = {
    "number many count total amount sum quantity tally": "SELECT count(*) FROM {t} WHERE owner = '{o}'",
    "largest top highest greatest biggest leading maximal best": "SELECT {c} FROM {t} ORDER BY {c} DESC LIMIT 1",
    "average mean typical usual ordinary common expected medium": "SELECT avg( {c} ) FROM {t} WHERE owner = '{o}'",
    "each per every split grouped broken separate individual": "SELECT {c} , count(*) FROM {t} GROUP BY {c}",
    "without lacking missing absent unknown empty blank void": "SELECT * FROM {t} WHERE {c} IS NULL",
    "remove drop delete erase discard purge cancel forget": "DELETE FROM {t} WHERE owner = '{o}'",
}
THINGS = [
    *("ships", "trains", "houses", "lakes", "songs", "films"),
    *("cooks", "pilots", "farms", "stores", "banks", "ports"),
]
COLUMNS = ["price", "weight", "age", "length", "year", "rank", "speed", "score"]


def made_up(count: int, seed: int) -> list[Item]:
    """Questions about many things; how the answer is built follows from one word alone."""
    rng = np.random.default_rng(seed)
    shapes = list(SHAPES.items())
    items = []
    for number in range(count):
        words, shape = shapes[rng.integers(len(shapes))]
        thing, column = rng.choice(THINGS), rng.choice(COLUMNS)
        owner = f"{rng.choice(THINGS)}{rng.integers(9)}"
        topic = f"{thing} {column} {owner}"
        said = f"{topic} {rng.choice(words.split())} {thing} {column} {owner}"
        answer = shape.format(t=thing, c=column, o=owner)
        items.append(
            Item(
                id=ItemId(f"q{number}"), question=said, answers=(answer,), split="train"
            )
        )
    return items


def shape_of(item: Item) -> str:
    """The words of an answer that are neither things nor columns nor owners."""
    words = re.sub(r"'.*?'", "", item.answer).split()
    return " ".join(word for word in words if word not in (*THINGS, *COLUMNS))


class MadeUp:
    def __init__(self) -> None:
        self.items = made_up(700, seed=3)
        embedder = TfidfVectors(EmbedSection(name="tfidf"))
        embedder.learn([item.question for item in self.items])
        text = embedder.of_texts([item.question for item in self.items])
        self.table = ItemTable([item.id for item in self.items], {"text": text})
        self.learnt, self.held_out = self.items[:550], self.items[550:]
        self.alike = NgramLikeness([item.answer for item in self.learnt])

    def policy(self) -> Policy:
        config = PolicyConfig(
            trunk="bi_encoder",
            query_fields=("text",),
            demo_fields=("text",),
            hidden=64,
            learn_temperature=True,
        )
        return build_policy(config, self.table.dims, seed=0)

    def rows(self, **changes: int) -> AnswerRows:
        queries = [item.id for item in self.learnt]
        config = ContrastiveConfig(**changes)  # type: ignore[arg-type]
        return AnswerRows(self.learnt, queries, self.table, config=config, seed=0)

    def right_shape(self, chosen: list[int]) -> float:
        """How often the answer chosen for a held-out question is built as the one that is wanted."""
        found = []
        for item, place in zip(self.held_out, chosen, strict=True):
            found.append(shape_of(item) == shape_of(self.learnt[place]))
        return float(np.mean(found))

    def nearest(self) -> list[int]:
        text = self.table.arrays["text"]
        return list((text[550:] @ text[:550].T).argmax(axis=1))

    def picked(self, policy: Policy) -> list[int]:
        ids = tuple(item.id for item in self.learnt)
        pools = [Pool(item.id, ids, "all") for item in self.held_out]
        places = {item: place for place, item in enumerate(ids)}
        return [
            places[demos[0]] for demos in choose_demos(policy, self.table, pools, 1)
        ]


@pytest.fixture(scope="module")
def task() -> MadeUp:
    return MadeUp()


def test_it_finds_shapes_of_answers_far_better_than_nearest_questions(
    task: MadeUp,
) -> None:
    policy = task.policy()
    config = ContrastiveConfig(keep="last")
    inputs = StageInputs("contrastive", config, task.table)
    result = run_stage(policy, task.rows(), inputs)
    nearest = task.right_shape(task.nearest())
    learnt = task.right_shape(task.picked(policy))
    print(f"nearest {nearest:.3f}, learnt {learnt:.3f}")
    assert nearest < 0.4
    assert learnt > 0.75
    first, last = result.history[0], result.history[-1]
    assert last["contrastive/ahead"] > first["contrastive/ahead"] + 0.3


def test_rows_hold_like_answers_near_questions_and_never_the_query(
    task: MadeUp,
) -> None:
    rows = task.rows(positives=3, near=5, others=7).rows(task.policy(), 0)
    assert len(rows) > 1000
    for row in rows[:40]:
        assert row.query_row not in row.pool_rows.tolist()
        assert 2 <= len(row.rewards) <= 15
        assert float(row.rewards.max()) - float(row.rewards.min()) >= 0.1
    again = task.rows(positives=3, near=5, others=7).rows(task.policy(), 0)
    assert [row.pool_rows.tolist() for row in rows] == [
        row.pool_rows.tolist() for row in again
    ]
    other = task.rows(positives=3, near=5, others=7).rows(task.policy(), 1)
    assert [row.query for row in rows] != [row.query for row in other]


def test_answers_that_are_all_alike_teach_nothing(task: MadeUp) -> None:
    same = [
        Item(id=item.id, question=item.question, answers=("SELECT 1",), split="train")
        for item in task.learnt
    ]
    queries = [item.id for item in same]
    rows = AnswerRows(same, queries, task.table, config=ContrastiveConfig(), seed=0)
    with pytest.raises(TrainingError, match="nothing to learn here"):
        rows.rows(task.policy(), 0)


def test_info_nce_by_hand() -> None:
    scores = torch.tensor([[1.0, 0.0, -1.0, 9.0]])
    likeness = torch.tensor([[0.9, 0.85, 0.2, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    found = info_nce(scores, likeness, mask, positives=2, margin=0.1)
    # the second is nearly as alike as the first, so only the third counts against either
    first = np.log1p(np.exp(-1.0 - 1.0))
    second = np.log1p(np.exp(-1.0 - 0.0))
    wanted = (0.9 * first + 0.85 * second) / 1.75
    assert float(found.total) == pytest.approx(wanted, abs=1e-6)
    assert found.diagnostics["contrastive/ahead"] == 1.0


def test_info_nce_takes_no_part_where_nothing_is_less_alike() -> None:
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    likeness = torch.tensor([[0.5, 0.5], [0.8, 0.1]])
    found = info_nce(
        scores, likeness, torch.ones(2, 2, dtype=torch.bool), positives=1, margin=0.1
    )
    assert found.rows == 1
    torch.autograd.backward(found.total)
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(scores.grad).all())


def test_values_and_numbers_do_not_tell_answers_apart() -> None:
    alike = NgramLikeness(["a = 'x'", "a = 'y'", "b"])
    found = alike(["a = 'x'", ""], ["a = 'zzz'", "a = 7", "b"])
    assert found[0, 0] == pytest.approx(1.0)
    assert found[0, 2] == 0.0
    assert found[1].tolist() == [0.0, 0.0, 0.0]
    assert alike(["a 17.5"], ["a 3"])[0, 0] == pytest.approx(1.0)


@pytest.mark.slow
def test_a_run_learns_from_answers_alone_and_the_next_stage_goes_on_from_there(
    tmp_path: Path,
) -> None:
    sizes = [*TINY, "contrastive.epochs=2", "contrastive.queries=60", "sft.epochs=1"]
    recipe = load_recipe("world", [*sizes, 'train.stages=["contrastive","sft"]'])
    said: list[str] = []
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
        say=said.append,
    )
    train_run(run)
    told = [place for place, line in enumerate(said) if line.startswith("contrastive:")]
    searched = [place for place, line in enumerate(said) if "searched" in line]
    assert told[0] < searched[0], "the model is searched for the next stage only"
    handed = load_checkpoint(tmp_path / "run" / "checkpoints" / "contrastive")[0]
    after = load_checkpoint(tmp_path / "run" / "checkpoints" / "sft-epoch001")[0]
    fresh = build_policy(recipe.select, handed.dims, seed=run.seed)
    assert distance(handed, after) < distance(fresh, after)


def distance(left: Policy, right: Policy) -> float:
    return weight_distances(left, right)["all"].relative
