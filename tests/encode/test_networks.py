"""Encoders that torch computes: the vectors that the networks give one by one, whatever stands beside a text."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.encode.cached import CachedEmbedder, open_embedder
from leverplus.encode.pretrained import PACKAGE, locate
from leverplus.encode.settings import EmbedSection
from leverplus.errors import DataError, LeverError, MissingFile

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
from tiny_networks import save_dual_model, save_sentence_model

from leverplus.encode.networks import PictureTextEncoder, SentenceEncoder

TEXTS = ["what is the color of the dog?", "who?", "how many red kites in the sky"]
KINDS = ("clip", "siglip")
minilm = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed"
)


def sentence(folder: Path | str, device: str = "cpu") -> SentenceEncoder:
    return SentenceEncoder(EmbedSection("sentence", str(folder), device))


def dual(kind: str, folder: Path) -> PictureTextEncoder:
    return PictureTextEncoder(EmbedSection(kind, str(folder), "cpu"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("networks")
    folders = {kind: save_dual_model(place / kind, kind) for kind in KINDS}
    return {**folders, "sentence": save_sentence_model(place / "bert")}


def unit(vector: Any) -> Any:
    return vector / vector.norm()


@torch.inference_mode()
def test_the_mean_is_over_the_words_of_a_text_and_not_over_padding(folders) -> None:
    encoder = sentence(folders["sentence"])
    for row, text in zip(encoder.texts(TEXTS), TEXTS, strict=True):
        tokens = encoder.tokenizer(text, return_tensors="pt")
        mean = encoder.network(**tokens).last_hidden_state[0].mean(0)
        torch.testing.assert_close(row, unit(mean), atol=1e-6, rtol=0)
    long = "dog " * 14
    assert torch.equal(encoder.texts([long]), encoder.texts([long + "cat " * 9]))
    assert not torch.equal(encoder.texts([long]), encoder.texts(["cat " + long]))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("modes", "place"),
    [
        ({"pooling_mode_cls_token": True, "include_prompt": True}, 0),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, -1),
        ({"pooling_mode": "cls"}, 0),
        ({"pooling_mode": "lasttoken"}, -1),
    ],
)
def test_other_poolings_take_one_word(tmp_path, modes, place) -> None:
    folder = save_sentence_model(tmp_path)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    encoder = sentence(folder)
    for row, text in zip(encoder.texts(TEXTS), TEXTS, strict=True):
        states = encoder.network(**encoder.tokenizer(text, return_tensors="pt"))
        state = states.last_hidden_state[0, place]
        torch.testing.assert_close(row, unit(state), atol=1e-6, rtol=0)


def test_layers_and_poolings_that_would_be_ignored_are_refused(tmp_path) -> None:
    folder = save_sentence_model(tmp_path)
    for modes in (
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "max"},
    ):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
        with pytest.raises(LeverError, match="supported: mean, cls and last token"):
            sentence(folder)
    dense = [{"type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(dense))
    with pytest.raises(LeverError, match="has Dense after its pooling"):
        sentence(folder)


@pytest.mark.slow
def test_what_changes_a_vector_changes_the_fingerprint(folders, tmp_path) -> None:
    own = sentence(folders["sentence"]).fingerprint()
    other = save_sentence_model(tmp_path / "same")
    assert sentence(other).fingerprint() == own
    (other / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    assert sentence(other).fingerprint() != own
    weights = save_sentence_model(tmp_path / "weights", seed=1)
    assert sentence(weights).fingerprint() != own
    clip = save_dual_model(tmp_path / "clip", "clip")
    own = dual("clip", folders["clip"]).fingerprint()
    assert dual("clip", clip).fingerprint() == own
    path = clip / "preprocessor_config.json"
    changed = {**json.loads(path.read_text()), "image_mean": [0.5, 0.5, 0.5]}
    path.write_text(json.dumps(changed))
    assert dual("clip", clip).fingerprint() != own


def test_what_is_not_there_is_a_sentence(folders, tmp_path) -> None:
    with pytest.raises(MissingFile, match=r"neither a folder of a model .* nor an"):
        sentence(tmp_path / "nothing")
    with pytest.raises(LeverError, match=r'embed\.device = "gpu7" is not there'):
        sentence(folders["sentence"], "gpu7")
    with pytest.raises(LeverError, match=r"a siglip, but embed\.name = clip reads"):
        dual("clip", folders["siglip"])


def opened(folders, kind: str, cache: Path, **settings: Any) -> CachedEmbedder:
    section = EmbedSection(kind, str(folders[kind]), "cpu", 4, **settings)
    embedder = open_embedder(section, cache)
    assert isinstance(embedder, CachedEmbedder)
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
            items.append(Item(name, question, ("red",), "train", str(path)))
    return FileTask("painted", items, answers=AnswerRules("vqa_accuracy"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_each_vector_is_that_of_its_own_picture_and_text_alone(
    folders, tmp_path, kind
) -> None:
    task = painted(tmp_path, 7)
    items = list(task.items("train"))
    embedder = opened(folders, kind, tmp_path / "cache")
    vectors, encoder = embedder.embed(items, task), embedder.encoder
    assert vectors.image is not None
    assert vectors.image.shape == vectors.text.shape == vectors.answer.shape
    for row in (0, 3, 13):
        with Image.open(str(items[row].image)) as file:
            pixels = encoder.processor(file.convert("RGB"), return_tensors="pt")
        one = encoder.network.get_image_features(**pixels).pooler_output[0]
        np.testing.assert_allclose(vectors.image[row], unit(one), atol=1e-5)
        tokens = encoder.tokenizer(items[row].question, return_tensors="pt")
        ids = tokens["input_ids"]
        if kind == "siglip":  # always sixteen tokens, padding is read too
            padding = ids[:, -1:].expand(1, 16 - ids.shape[1])
            ids = torch.cat([ids, padding], dim=1)
        one = encoder.network.get_text_features(input_ids=ids).pooler_output[0]
        np.testing.assert_allclose(vectors.text[row], unit(one), atol=1e-5)
    for block in (vectors.image, vectors.text):
        assert (block @ block.T).min() < 0.99, "different things differ"
    assert encoder.texts(["dog " * 90]).isfinite().all()


@pytest.mark.slow
def test_a_picture_is_seen_once_until_its_file_changes(folders, tmp_path) -> None:
    task = painted(tmp_path, 20)
    embedder, seen = opened(folders, "clip", tmp_path / "cache"), []
    see = embedder.encoder.pictures
    embedder.encoder.pictures = lambda batch: seen.extend(batch) or see(batch)
    before = embedder.embed(task.items("train"), task)
    assert len(seen) == 20
    task = painted(tmp_path, 20)  # a task remembers the digests of its pictures
    Image.new("RGB", (50, 50), "red").save(tmp_path / "3.png")
    again = opened(folders, "clip", tmp_path / "cache")
    again.encoder.pictures = embedder.encoder.pictures
    after = again.embed(task.items("train"), task)
    assert len(seen) == 21
    assert before.image is not None
    changed = np.abs(after.image - before.image).max(axis=1) > 1e-3
    assert changed.nonzero()[0].tolist() == [6, 7]
    blind = Item(ItemId("b"), "who", ("a",), "train")
    with pytest.raises(DataError, match="1 of 41 items have no picture, b among them"):
        again.embed([*task.items("train"), blind], task)


@pytest.mark.slow
@minilm
@torch.inference_mode()
def test_minilm_is_found_in_its_package_and_knows_what_questions_mean() -> None:
    assert Path(locate(PACKAGE.replace("_", "-"))).name == "model"
    encoder = sentence("")
    asked = ["How far is the moon from the earth?", "What is the distance to the moon?"]
    near = encoder.texts([*asked, "Who wrote Hamlet?"])
    assert near.shape == (3, 384)
    assert float(near[0] @ near[1]) > 0.7
    assert float(near[0] @ near[2]) < 0.2
