"""The world as a task: the same seed gives the same bytes, splits share nothing, annotators differ."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leverplus.data.metrics.vqa import vqa_accuracy
from leverplus.data.tasks.splits import SPLITS
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError
from leverplus_lab.world.task import WorldTask

ITEMS_OF_WORLD_0 = "4be588206797df45"
DEV_PICTURES_OF_WORLD_0 = "5b4b9e81f13e470d"


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask(0)


def items_digest(task: WorldTask, splits: Sequence[str] = SPLITS) -> str:
    content = hashlib.sha256()
    for split in splits:
        for item in task.items(split):
            content.update(
                json.dumps(
                    [item.id, item.question, item.answers, item.image, dict(item.meta)]
                ).encode()
            )
    return content.hexdigest()[:16]


def pictures_digest(task: WorldTask) -> str:
    return hashlib.sha256(
        task.pictures(task.items("dev")[::2]).numpy().tobytes()
    ).hexdigest()[:16]


def test_world_0_is_the_world_it_always_was(task: WorldTask) -> None:
    assert items_digest(task) == ITEMS_OF_WORLD_0
    assert pictures_digest(task) == DEV_PICTURES_OF_WORLD_0


@pytest.mark.slow
def test_another_process_draws_the_same_bytes(task: WorldTask) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_world_task import WorldTask, items_digest, pictures_digest\n"
        "task = WorldTask(5); print(items_digest(task, ['dev']), pictures_digest(task), task.version)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    other = WorldTask(5)
    assert done.stdout.split() == [
        items_digest(other, ["dev"]),
        pictures_digest(other),
        other.version,
    ]
    assert items_digest(other, ["dev"]) != items_digest(task, ["dev"])
    assert pictures_digest(other) != pictures_digest(task)
    assert other.version != task.version


def test_no_picture_and_no_id_is_shared_between_splits(task: WorldTask) -> None:
    images = {split: {item.image_id for item in task.items(split)} for split in SPLITS}
    assert not images["train"] & images["dev"]
    assert not images["train"] & images["test"]
    assert not images["dev"] & images["test"]
    ids = [item.id for split in SPLITS for item in task.items(split)]
    assert len(set(ids)) == len(ids) == 14_000
    sample = {
        split: task.pictures(task.items(split)[:400:2]).flatten(1).numpy()
        for split in SPLITS
    }
    rows = {row.tobytes() for pictures in sample.values() for row in pictures}
    assert len(rows) == 600, "the pictures themselves differ too"


def test_a_picture_has_two_questions_of_different_relations(task: WorldTask) -> None:
    for split in SPLITS:
        items = task.items(split)
        for left, right in zip(items[::2], items[1::2], strict=True):
            assert left.image_id == right.image_id
            assert left.meta["relation"] != right.meta["relation"]


def test_ten_annotators_disagree_so_that_accuracy_lies_between_0_and_1(
    task: WorldTask,
) -> None:
    items = task.items("dev")
    assert {len(item.answers) for item in items} == {10}
    assert sum(len(set(item.answers)) > 1 for item in items) > 0.5 * len(items)
    values = Counter(
        round(vqa_accuracy(answer, list(item.answers)), 3)
        for item in items[:300]
        for answer in set(item.answers)
    )
    between = [value for value in values if 0.0 < value < 1.0]
    assert len(between) >= 2
    assert values[1.0] > 200, "the most common answer is worth 1 on most items"


def test_pictures_are_bytes_of_32_by_32(task: WorldTask) -> None:
    items = task.items("dev")[:3]
    pictures = task.pictures(items)
    assert pictures.shape == (3, 3, 32, 32)
    assert pictures.dtype == torch.uint8
    assert torch.equal(pictures[0], pictures[1]), "two questions, one picture"
    image = task.image(items[2])
    assert image.size == (32, 32)
    np.testing.assert_array_equal(
        np.asarray(image), pictures[2].permute(1, 2, 0).numpy()
    )


def test_nobody_can_change_the_world_through_a_picture(task: WorldTask) -> None:
    item = task.items("dev")[0]
    task.pictures([item]).zero_()
    assert int(task.pictures([item]).max()) > 0


def test_an_item_is_found_by_its_id_and_a_stranger_is_named(task: WorldTask) -> None:
    item = task.items("test")[7]
    assert task.item(item.id) is item
    with pytest.raises(
        DataError, match=r"no item 'train-9999-z'; ids look like train-0000-a"
    ):
        task.item(ItemId("train-9999-z"))
    with pytest.raises(DataError, match="no split 'valid'; allowed: train, dev, test"):
        task.items("valid")


def test_an_image_file_is_read_in_place_of_a_drawn_picture(
    task: WorldTask, tmp_path: Path
) -> None:
    drawn = task.items("dev")[0]
    path = tmp_path / "query.png"
    task.image(drawn).save(path)
    query = Item(ItemId("query"), "what does it like", (), "query", str(path))
    assert torch.equal(task.pictures([query]), task.pictures([drawn]))
    other = tmp_path / "other.png"
    Image.new("RGB", (64, 48), "red").save(other)
    stranger = Item(ItemId("query"), "what does it like", (), "query", str(other))
    assert task.pictures([stranger]).shape == (1, 3, 32, 32)
    assert task.image_digest(query) != task.image_digest(stranger)


def test_a_file_that_is_no_image_and_a_query_without_one_are_named(
    task: WorldTask, tmp_path: Path
) -> None:
    path = tmp_path / "text.png"
    path.write_text("no picture")
    with pytest.raises(DataError, match=r"text\.png cannot be read as an image"):
        task.pictures([Item(ItemId("q"), "what does it like", (), "query", str(path))])
    with pytest.raises(DataError, match="has no picture"):
        task.pictures([Item(ItemId("q"), "what does it like", (), "query")])
