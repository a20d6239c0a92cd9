"""CLIP and SigLIP: unit vectors of pictures and questions, as the networks give them one by one, and their mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leverplus.embedders.cached import CachedEmbedder, mean_vectors, open_embedder
from leverplus.embedders.dual import PictureTextEncoder, clip
from leverplus.errors import DataError, LeverError
from leverplus.recipe.sections import EmbedSection, TaskSection
from leverplus.tasks.coco_small import coco_small
from leverplus.tasks.files import FileTask
from leverplus.types import Item, ItemId

pytest.importorskip("transformers", reason="the extra `embed` is not installed")
from tiny_networks import save_dual_model

PHOTOGRAPHS = Path(__file__).parents[3] / "shared" / "data" / "coco_small"
TEXTS = ["what is the color of the dog", "who", "how many red kite on a man"]
KINDS = ("clip", "siglip")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("dual")
    return {kind: save_dual_model(place / kind, kind) for kind in KINDS}


def opened(folders, kind: str, cache: Path, **settings) -> CachedEmbedder:
    section = EmbedSection(name=kind, model=str(folders[kind]), device="cpu", batch=4, **settings)
    embedder = open_embedder(section, cache)
    assert isinstance(embedder, CachedEmbedder)
    assert isinstance(embedder.encoder, PictureTextEncoder)
    return embedder


def painted(folder: Path, count: int) -> FileTask:
    """Items on generated pictures of several shapes, two questions each."""
    rng = np.random.default_rng(5)
    items = []
    for number in range(count):
        path = folder / f"{number}.png"
        low = rng.integers(0, 255, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(low).resize((40 + 9 * number, 33 + 5 * (number % 4))).save(path)
        for question in ("what is the color", f"who is {'ab'[number % 2]}"):
            name = ItemId(f"{number}-{question[-1]}")
            items.append(Item(name, question, ("red",), "train", str(path), str(number)))
    return FileTask("painted", items, metric="vqa_accuracy", postprocess="first_line")


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_each_vector_is_that_of_its_own_picture_and_text_alone(folders, tmp_path, kind) -> None:
    task = painted(tmp_path, 7)
    items = list(task.items("train"))
    embedder = opened(folders, kind, tmp_path / "cache")
    vectors = embedder.embed(items, task)
    assert vectors.image is not None
    assert vectors.image.shape == vectors.text.shape == vectors.answer.shape
    network, processor = embedder.encoder.network, embedder.encoder.processor
    for row in (0, 3, 13):
        with Image.open(items[row].image) as file:
            pixels = processor(file.convert("RGB"), return_tensors="pt")["pixel_values"]
        one = network.get_image_features(pixel_values=pixels).pooler_output[0].numpy()
        np.testing.assert_allclose(vectors.image[row], one / np.linalg.norm(one), atol=1e-5)
        tokens = embedder.encoder.tokenizer(items[row].question, return_tensors="pt")["input_ids"]
        if kind == "siglip":  # always sixteen tokens, padding is read too
            tokens = torch.cat([tokens, tokens[:, -1:].expand(1, 16 - tokens.shape[1])], dim=1)
        one = network.get_text_features(input_ids=tokens).pooler_output[0].numpy()
        np.testing.assert_allclose(vectors.text[row], one / np.linalg.norm(one), atol=1e-5)
    for block in (vectors.image, vectors.text):
        likeness = block @ block.T
        assert likeness.min() < 0.99, "different things must have different vectors for this test to mean anything"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_has_one_vector_in_any_company(folders, tmp_path, kind) -> None:
    encoder = opened(folders, kind, tmp_path).encoder
    with torch.inference_mode():
        together = encoder.texts(TEXTS)
        for row, text in enumerate(TEXTS):
            torch.testing.assert_close(together[row], encoder.texts([text])[0], atol=1e-5, rtol=0)


def test_a_long_text_is_cut_instead_of_failing(folders, tmp_path) -> None:
    for kind in KINDS:
        with torch.inference_mode():
            assert opened(folders, kind, tmp_path).encoder.texts(["dog " * 90]).isfinite().all()


def test_each_picture_is_seen_once_however_many_questions_it_has(folders, tmp_path, monkeypatch) -> None:
    task = painted(tmp_path, 20)
    embedder, seen = opened(folders, "clip", tmp_path / "cache"), []
    see = embedder.encoder.pictures
    monkeypatch.setattr(embedder.encoder, "pictures", lambda batch: seen.extend(batch) or see(batch))
    first = embedder.embed(task.items("train"), task)
    assert len(seen) == 20
    other = opened(folders, "clip", tmp_path / "cache")
    monkeypatch.setattr(other.encoder, "pictures", lambda batch: pytest.fail("a kept picture was embedded again"))
    np.testing.assert_array_equal(other.embed(task.items("train"), task).image, first.image)


def test_another_picture_in_the_same_file_has_another_vector(folders, tmp_path) -> None:
    task = painted(tmp_path, 20)
    before = opened(folders, "clip", tmp_path / "cache").embed(task.items("train"), task)
    task = painted(tmp_path, 20)  # a task remembers the digests of its pictures
    Image.new("RGB", (50, 50), "red").save(tmp_path / "3.png")
    after = opened(folders, "clip", tmp_path / "cache").embed(task.items("train"), task)
    changed = np.abs(after.image - before.image).max(axis=1) > 1e-3
    assert changed.nonzero()[0].tolist() == [6, 7]


def test_the_mean_is_the_unit_vector_between_picture_and_question(folders, tmp_path) -> None:
    task = painted(tmp_path, 5)
    items = task.items("train")
    both = opened(folders, "clip", tmp_path / "cache").embed(items, task)
    embedder = opened(folders, "clip", tmp_path / "cache", mean=True)
    joined = embedder.embed(items, task)
    assert joined.image is None
    np.testing.assert_allclose(np.linalg.norm(joined.text, axis=1), 1.0, atol=1e-6)
    cosines = [(joined.text * block).sum(1) for block in (both.image, both.text)]
    np.testing.assert_allclose(*cosines, atol=1e-5)
    assert embedder.fingerprint() != opened(folders, "clip", tmp_path / "cache").fingerprint()


def test_the_mean_by_hand() -> None:
    image, text = np.array([[1.0, 0.0]], dtype=np.float32), np.array([[0.0, 1.0]], dtype=np.float32)
    np.testing.assert_allclose(mean_vectors(image, text), [[0.5**0.5, 0.5**0.5]], atol=1e-7)


def test_what_prepares_a_picture_is_in_the_fingerprint(folders, tmp_path) -> None:
    own = opened(folders, "clip", tmp_path).fingerprint()
    other = save_dual_model(tmp_path / "other", "clip")
    config = json.loads((other / "preprocessor_config.json").read_text())
    (other / "preprocessor_config.json").write_text(json.dumps({**config, "image_mean": [0.5, 0.5, 0.5]}))
    section = EmbedSection(name="clip", model=str(other), device="cpu")
    assert clip(section).fingerprint() != own
    (other / "preprocessor_config.json").write_text(json.dumps(config))
    assert clip(section).fingerprint() == own


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_has_one_fingerprint_before_and_after_it_is_used(folders, tmp_path, kind) -> None:
    own = opened(folders, kind, tmp_path).encoder.fingerprint()
    used = opened(folders, kind, tmp_path).encoder
    with torch.inference_mode():
        used.texts(TEXTS)
    assert used.fingerprint() == own


def test_a_model_of_another_kind_and_a_missing_picture_are_refused(folders, tmp_path) -> None:
    with pytest.raises(LeverError, match=r"is a siglip, but embed\.name = clip reads clip"):
        clip(EmbedSection(name="clip", model=str(folders["siglip"]), device="cpu"))
    task = painted(tmp_path, 3)
    blind = Item(ItemId("b"), "who", ("a",), "train")
    with pytest.raises(DataError, match="1 of 7 items have no picture, b among them"):
        opened(folders, "clip", tmp_path / "cache").embed([*task.items("train"), blind], task)


@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason="the real data sets are not beside the repository")
@pytest.mark.parametrize("kind", KINDS)
def test_real_photographs_go_the_whole_way(folders, tmp_path, kind) -> None:
    task = coco_small(TaskSection(name="coco_small", folder=str(PHOTOGRAPHS), skip_empty=True))
    items = task.items("train")
    vectors = opened(folders, kind, tmp_path).embed(items, task)
    assert vectors.image is not None
    assert len(vectors) == len(items) > 50
    for block in (vectors.image, vectors.text, vectors.answer):
        np.testing.assert_allclose(np.linalg.norm(block, axis=1), 1.0, atol=1e-5)
    pictures = {item.image: row for row, item in enumerate(items)}
    likeness = vectors.image[list(pictures.values())] @ vectors.image[list(pictures.values())].T
    assert (likeness - 2 * np.eye(len(likeness)) < 1 - 1e-4).all(), "no two photographs share a vector"
