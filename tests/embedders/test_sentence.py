"""Sentence encoders: the vectors that sentence-transformers would give, each text alone or in company."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leverplus.embedders.pretrained import locate
from leverplus.embedders.sentence import PACKAGE, SentenceEncoder
from leverplus.errors import LeverError, MissingFile
from leverplus.recipe.sections import EmbedSection

pytest.importorskip("transformers", reason="the extra `embed` is not installed")
from tiny_networks import save_sentence_model

TEXTS = ["what is the color of the dog?", "who?", "how many red kites in the sky on a man"]
minilm = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"the package {PACKAGE} is not installed")


def encoder_of(folder: Path | str) -> SentenceEncoder:
    return SentenceEncoder(EmbedSection(name="sentence", model=str(folder), device="cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_sentence_model(tmp_path_factory.mktemp("tiny") / "bert")


@torch.inference_mode()
def test_the_mean_is_over_the_words_of_a_text_and_not_over_padding(folder) -> None:
    encoder = encoder_of(folder)
    together = encoder.texts(TEXTS)
    for row, text in enumerate(TEXTS):
        tokens = encoder.tokenizer(text, return_tensors="pt")
        mean = encoder.network(**tokens).last_hidden_state[0].mean(0)
        torch.testing.assert_close(together[row], mean / mean.norm(), atol=1e-6, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize(("mode", "place"), [("pooling_mode_cls_token", 0), ("pooling_mode_lasttoken", -1)])
def test_other_poolings_take_one_word(tmp_path, mode, place) -> None:
    encoder = encoder_of(save_sentence_model(tmp_path, pooling=mode))
    for row, text in zip(encoder.texts(TEXTS), TEXTS, strict=True):
        state = encoder.network(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0, place]
        torch.testing.assert_close(row, state / state.norm(), atol=1e-6, rtol=0)


@torch.inference_mode()
def test_a_text_is_cut_where_the_model_says(folder) -> None:
    encoder = encoder_of(folder)
    long = "dog " * 14
    assert torch.equal(encoder.texts([long]), encoder.texts([long + "cat " * 9]))
    assert not torch.equal(encoder.texts([long]), encoder.texts(["cat " + long]))


def test_what_changes_a_vector_changes_the_fingerprint(folder, tmp_path) -> None:
    own = encoder_of(folder).fingerprint()
    assert own == encoder_of(save_sentence_model(tmp_path / "same")).fingerprint()
    assert own != encoder_of(save_sentence_model(tmp_path / "weights", seed=1)).fingerprint()
    assert own != encoder_of(save_sentence_model(tmp_path / "cls", pooling="pooling_mode_cls_token")).fingerprint()
    shorter = save_sentence_model(tmp_path / "shorter")
    (shorter / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    assert own != encoder_of(shorter).fingerprint()


@torch.inference_mode()
def test_an_encoder_has_one_fingerprint_before_and_after_it_is_used(folder) -> None:
    used = encoder_of(folder)
    used.texts(["dog", "dog cat"])
    assert used.fingerprint() == encoder_of(folder).fingerprint()


def test_layers_and_poolings_that_would_be_ignored_are_refused(tmp_path) -> None:
    weighted = save_sentence_model(tmp_path / "weighted", pooling="pooling_mode_weightedmean_tokens")
    with pytest.raises(LeverError, match="supported: mean, cls and last token"):
        encoder_of(weighted)
    dense = save_sentence_model(tmp_path / "dense")
    modules = json.loads((dense / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (dense / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(LeverError, match="has Dense after its pooling"):
        encoder_of(dense)


def test_a_model_that_is_nowhere_and_pictures_are_answered_with_a_sentence(folder, tmp_path) -> None:
    with pytest.raises(MissingFile, match=r"neither a folder with a config\.json nor an installed package"):
        encoder_of(tmp_path / "nothing")
    with pytest.raises(LeverError, match="cannot see 0 pictures"):
        encoder_of(folder).pictures([])


def test_an_unknown_device_is_answered_with_a_sentence(folder) -> None:
    with pytest.raises(LeverError, match=r'embed\.device = "gpu7" is not there'):
        SentenceEncoder(EmbedSection(name="sentence", model=str(folder), device="gpu7"))


@minilm
@torch.inference_mode()
def test_minilm_is_found_in_its_package_and_knows_what_questions_mean() -> None:
    assert Path(locate(PACKAGE.replace("_", "-"))).name == "model"
    encoder = SentenceEncoder(EmbedSection(name="sentence", device="cpu"))
    near = encoder.texts(
        ["How far is the moon from the earth?", "What is the distance to the moon?", "Who wrote Hamlet?"]
    )
    assert near.shape == (3, 384)
    assert float(near[0] @ near[1]) > 0.7
    assert float(near[0] @ near[2]) < 0.2


@minilm
def test_minilm_gives_the_vectors_of_sentence_transformers() -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts = ["How far is the moon?", "a " * 400, "Wer?"]
    theirs = library.SentenceTransformer(locate(PACKAGE), device="cpu").encode(texts, show_progress_bar=False)
    with torch.inference_mode():
        ours = SentenceEncoder(EmbedSection(name="sentence", device="cpu")).texts(texts).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
