"""Cached vectors: each text and picture is embedded once for ever, whoever asks, even through a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leverplus.embedders.cache import VectorCache, content_key
from leverplus.embedders.cached import PART_BATCHES, CachedEmbedder, open_embedder
from leverplus.embedders.world import WorldEmbedder
from leverplus.errors import RecipeError
from leverplus.recipe.recipe import build_recipe
from leverplus.recipe.sections import EmbedSection, TaskSection
from leverplus.tasks.labels import labels
from leverplus.types import Item, ItemId

pytest.importorskip("transformers", reason="the extra `embed` is not installed")
from tiny_networks import WORDS, save_sentence_model

COUNT = 70


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return save_sentence_model(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "texts.jsonl"
    lines = [f'{{"text": "{WORDS[n % 20]} {WORDS[n // 20]} {n}", "label": "l{n % 3}"}}' for n in range(COUNT)]
    path.write_text("\n".join(lines))
    return labels(TaskSection(name="labels", file=str(path), folder=str(path.parent), dev_items=10, test_items=10))


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


def opened(weights: Path, folder: Path, *, batch: int = 4, most: int = 10_000, **options) -> Counted:
    section = EmbedSection(name="sentence", model=str(weights), device="cpu", batch=batch)
    embedder = open_embedder(section, folder, **options)
    assert isinstance(embedder, CachedEmbedder)
    return Counted(embedder, most)


def test_rows_follow_the_items_and_a_text_task_has_no_pictures(weights, task, tmp_path) -> None:
    embedder = opened(weights, tmp_path)
    items = list(task.items("train"))
    vectors = embedder.embed(items, task)
    assert vectors.image is None
    np.testing.assert_allclose(np.linalg.norm(vectors.text, axis=1), 1.0, atol=1e-6)
    with torch.inference_mode():
        for row in (0, 7, len(items) - 1):
            alone = embedder.encoder.texts([items[row].question, items[row].answer]).numpy()
            np.testing.assert_allclose(np.stack([vectors.text[row], vectors.answer[row]]), alone, atol=1e-6)


def test_a_query_without_answers_has_a_zero_answer_vector(weights, task, tmp_path) -> None:
    query = Item(ItemId("q"), "what is the dog", (), "query")
    encoder = opened(weights, tmp_path)
    heard: list[str] = []
    texts = encoder.encoder.texts
    encoder.encoder.texts = lambda given: heard.extend(given) or texts(given)  # type: ignore[method-assign, func-returns-value]
    vectors = encoder.embed([query], task)
    assert vectors.answer.shape == (1, 32)
    assert not vectors.answer.any()
    assert heard == ["what is the dog"], "the network runs once for a query"


def test_nothing_is_embedded_twice_and_the_bits_are_the_same(weights, task, tmp_path) -> None:
    items = task.items("train")
    first = opened(weights, tmp_path)
    vectors = first.embed([*items, *items], task)
    assert len(set(first.seen)) == len(first.seen)
    again = opened(weights, tmp_path, batch=7)
    other = again.embed(items[::-1], task)
    assert set(again.seen) <= {item.answer for item in items}, "three labels are not worth a file"
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
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2
    resumed = opened(weights, tmp_path, batch=1)
    assert resumed.of_texts(texts).shape == (len(texts), 32)
    assert len(resumed.seen) == PART_BATCHES
    assert not set(resumed.seen) & set(killed.seen[: 2 * PART_BATCHES])


def test_a_damaged_part_is_embedded_again(weights, tmp_path) -> None:
    texts = [f"cat {n}" for n in range(20)]
    vectors = opened(weights, tmp_path).of_texts(texts)
    (part,) = tmp_path.glob("*/*.safetensors")
    part.write_bytes(part.read_bytes()[:-40])
    mended = opened(weights, tmp_path)
    np.testing.assert_allclose(mended.of_texts(texts), vectors, atol=1e-6)
    assert len(mended.seen) == 20
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 1


def test_progress_counts_to_the_end_and_what_was_kept_is_part_of_it(weights, tmp_path) -> None:
    told: list[tuple[str, int, int]] = []
    opened(weights, tmp_path).of_texts([f"man {n}" for n in range(20)])
    opened(weights, tmp_path, progress=lambda *step: told.append(step)).of_texts([f"man {n}" for n in range(50)])
    assert [done for _, done, _ in told] == [24, 28, 32, 36, 40, 44, 48, 50]
    assert {(what, total) for what, _, total in told} == {("embedding questions", 50)}


def test_single_queries_leave_no_files(weights, task, tmp_path) -> None:
    opened(weights, tmp_path).embed(task.items("dev")[:1], task)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_of_a_kind_and_a_content() -> None:
    keys = [content_key("text", "a"), content_key("image", "a"), content_key("text", "b")]
    assert len(set(keys)) == 3


def test_the_cache_returns_what_it_has_from_any_part(tmp_path) -> None:
    cache = VectorCache(tmp_path, {"embedder": "x"})
    keys = [content_key("text", str(n)) for n in range(6)]
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    cache.write(keys[:3], table[:3])
    cache.write(keys[2:5], table[2:5])
    found = cache.read([*keys[1:], keys[1]])
    assert found.keys() == set(keys[1:5])
    assert all(np.array_equal(found[key], table[keys.index(key)]) for key in found)


def test_the_world_has_its_own_embedder_and_settings_it_ignores_are_refused(tmp_path) -> None:
    assert isinstance(open_embedder(EmbedSection(), tmp_path), WorldEmbedder)
    with pytest.raises(RecipeError) as caught:
        build_recipe("test", {"embed": {"batch": 3, "device": "cpu"}}, "test")
    assert caught.value.problems == [
        f"embed.{key}: the world's embedder has no such choice" for key in ("device", "batch")
    ]
    assert replace(EmbedSection(), name="sentence", mean=True).problems() != []
