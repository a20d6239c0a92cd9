"""Cached vectors: each text and picture is embedded once for ever, whoever asks, even through a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import content_key
from leverplus.encode.cached import (
    PART_BATCHES,
    CachedEmbedder,
    VectorCache,
    open_embedder,
)
from leverplus.encode.settings import EmbedSection

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
from tiny_networks import WORDS, save_sentence_model

COUNT = 70


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return save_sentence_model(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="module")
def task() -> FileTask:
    items = []
    for n in range(COUNT):
        question = f"{WORDS[n % 20]} {WORDS[n // 20]} {n}"
        items.append(Item(ItemId(str(n)), question, (f"l{n % 3}",), "train"))
    return FileTask("texts", items, answers=AnswerRules("label_accuracy"))


class Counted(CachedEmbedder):
    """Remembers every text it had to embed; stops after `most` batches."""

    def __init__(self, embedder: CachedEmbedder, most: int = 10_000) -> None:
        self.__dict__.update(embedder.__dict__)
        self.seen: list[str] = []
        texts, self.left = embedder.encoder.texts, most

        def counted(batch: Sequence[str]) -> Tensor:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            self.seen += batch
            return texts(batch)

        self.encoder.texts = counted  # type: ignore[method-assign]


def opened(
    weights: Path, folder: Path, *, batch: int = 4, most: int = 10_000, **options
) -> Counted:
    section = EmbedSection(
        name="sentence", model=str(weights), device="cpu", batch=batch
    )
    embedder = open_embedder(section, folder, **options)
    assert isinstance(embedder, CachedEmbedder)
    return Counted(embedder, most)


def test_a_query_costs_one_call_and_leaves_no_file(weights, task, tmp_path) -> None:
    embedder = opened(weights, tmp_path)
    vectors = embedder.embed([Item(ItemId("q"), "what is", (), "query")], task)
    assert vectors.answer.shape == (1, 32)
    assert not vectors.answer.any()
    assert embedder.seen == ["what is"]
    assert list(tmp_path.iterdir()) == []
    assert embedder.embed([], task).text.shape == (0, 32)


def test_nothing_is_embedded_twice_and_the_bits_are_the_same(
    weights, task, tmp_path
) -> None:
    items = task.items("train")
    first = opened(weights, tmp_path)
    vectors = first.embed([*items, *items], task)
    assert len(set(first.seen)) == len(first.seen)
    again = opened(weights, tmp_path, batch=7)
    other = again.embed(items[::-1], task)
    assert set(again.seen) <= {item.answer for item in items}, (
        "three labels are not worth a file"
    )
    np.testing.assert_array_equal(other.text[::-1], vectors.text[: len(items)])


def test_other_weights_do_not_see_these_vectors(weights, task, tmp_path) -> None:
    items = task.items("train")
    own = opened(weights, tmp_path / "cache").embed(items, task)
    other = opened(save_sentence_model(tmp_path / "other", seed=3), tmp_path / "cache")
    assert not np.allclose(other.embed(items, task).text, own.text, atol=0.1)
    assert len(other.seen) >= len(items)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_killed_run_goes_on_after_its_last_part(weights, tmp_path) -> None:
    texts = [f"dog {n}" for n in range(3 * PART_BATCHES)]
    killed = opened(weights, tmp_path, batch=1, most=2 * PART_BATCHES + 5)
    with pytest.raises(KeyboardInterrupt):
        killed.of_texts(texts)
    assert len(list(tmp_path.glob("*/*.npz"))) == 2
    resumed = opened(weights, tmp_path, batch=1)
    assert resumed.of_texts(texts).shape == (len(texts), 32)
    assert len(resumed.seen) == PART_BATCHES
    assert not set(resumed.seen) & set(killed.seen[: 2 * PART_BATCHES])


def test_a_damaged_part_is_embedded_again(weights, tmp_path) -> None:
    texts = [f"cat {n}" for n in range(20)]
    vectors = opened(weights, tmp_path).of_texts(texts)
    (part,) = tmp_path.glob("*/*.npz")
    part.write_bytes(part.read_bytes()[:-40])
    mended = opened(weights, tmp_path)
    np.testing.assert_allclose(mended.of_texts(texts), vectors, atol=1e-6)
    assert len(mended.seen) == 20
    assert len(list(tmp_path.glob("*/*.npz"))) == 1


def test_progress_counts_to_the_end_and_what_was_kept_is_part_of_it(
    weights, tmp_path
) -> None:
    told: list[tuple[str, int, int]] = []
    opened(weights, tmp_path).of_texts([f"man {n}" for n in range(20)])
    opened(weights, tmp_path, progress=lambda *step: told.append(step)).of_texts(
        [f"man {n}" for n in range(50)]
    )
    assert [done for _, done, _ in told] == [24, 28, 32, 36, 40, 44, 48, 50]
    assert {(what, total) for what, _, total in told} == {("embedding questions", 50)}


def test_the_cache_returns_what_it_has_from_any_part(tmp_path) -> None:
    cache = VectorCache(tmp_path, {"embedder": "x"})
    keys = [content_key("text", str(n)) for n in range(6)]
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    cache.write(keys[:3], table[:3])
    cache.write(keys[2:5], table[2:5])
    found = cache.read([*keys[1:], keys[1]])
    assert found.keys() == set(keys[1:5])
    assert all(np.array_equal(found[key], table[keys.index(key)]) for key in found)
