"""Vision-language models with several pictures a prompt: tokens, log-probabilities and words are those of the model's
own processor and forward pass, and every picture is seen once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_hf import COLOURS, VISION, ColourTask, qwen2_5_vl

from leverplus.errors import ScoringError
from leverplus.models.base import Request
from leverplus.models.hf.backend import HfBackend
from leverplus.models.settings import ModelSection
from leverplus.scores.selftest import self_test

TASK = ColourTask()


@pytest.fixture(scope="module", params=list(VISION))
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HfBackend:
    folder = VISION[request.param](tmp_path_factory.mktemp(request.param))
    return HfBackend(
        TASK,
        ModelSection(name=str(folder), prompt="chat", device="cpu", max_new_tokens=4),
    )


def request_of(
    query: int, *demos: int, references: tuple[str, ...] = ("red", "blue")
) -> Request:
    items, shown = TASK.items("dev"), TASK.items("train")
    return Request(items[query], tuple(shown[demo] for demo in demos), references)


def own_inputs(
    backend: HfBackend, request: Request, answer: str = ""
) -> dict[str, Any]:
    """The whole prompt through the model's own processor."""
    images = [TASK.image(item) for item in (*request.demos, request.query)]
    text = backend.prompts.text(request) + answer
    return dict(
        backend.loaded.processor(
            text=[text], images=images, return_tensors="pt", add_special_tokens=False
        )
    )


REQUESTS = [
    request_of(0, 1, 2),
    request_of(1, 1, 2),
    request_of(2, 1, 3),
    request_of(3),
    request_of(4, 5),
]


@pytest.mark.slow
def test_the_tokens_are_those_of_the_models_own_processor(backend: HfBackend) -> None:
    assert backend.sight is not None
    for request in REQUESTS:
        codes = backend._prompts([request])[0].codes
        ids = np.where(codes < 0, backend.sight.pictures.image_token, codes)
        assert ids.tolist() == own_inputs(backend, request)["input_ids"][0].tolist()


@pytest.mark.slow
@torch.inference_mode()
def test_log_probabilities_and_words_are_the_models_own(backend: HfBackend) -> None:
    model, ending = backend.loaded.model, backend.prompts.end
    replies = backend.answer(REQUESTS)
    for request, reply in zip(REQUESTS, replies, strict=True):
        assert reply.logprobs is not None
        for reference, logprob in zip(request.references, reply.logprobs, strict=True):
            end = backend.loaded.tokenizer.convert_ids_to_tokens(ending.tokens[0])
            inputs = own_inputs(backend, request, ending.lead + reference + end)
            before = own_inputs(backend, request)["input_ids"].shape[1]
            ids = inputs["input_ids"][0]
            logits = (
                model(**inputs, use_cache=False).logits[0, before - 1 : -1].double()
            )
            expected = logits.log_softmax(-1).gather(1, ids[before:, None]).sum()
            assert logprob == pytest.approx(float(expected), abs=2e-4)
        inputs = own_inputs(backend, request)
        out = model.generate(
            **inputs,
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=list(backend.stops),
            pad_token_id=0,
        )
        assert reply.raw == backend.prompts.decode(
            out[0, inputs["input_ids"].shape[1] :]
        )


@pytest.mark.slow
def test_order_and_pictures_of_demonstrations_matter(backend: HfBackend) -> None:
    one, turned = backend.answer([request_of(0, 1, 2), request_of(0, 2, 1)])
    assert one.logprobs != turned.logprobs
    plain = request_of(0, 1, 2)
    other = replace(plain.demos[0], image="train9")
    changed = backend.answer([replace(plain, demos=(other, plain.demos[1]))])[0]
    assert np.abs(np.subtract(changed.logprobs, one.logprobs)).max() > 1e-3


@pytest.mark.slow
def test_every_picture_is_seen_once(backend: HfBackend) -> None:
    assert backend.sight is not None
    requests = [request_of(query, 9, 10) for query in range(6, 10)]
    backend.answer(requests)
    seen = backend.sight.pictures.encoded
    backend.answer(requests)
    backend.answer([request_of(query, 10, 9) for query in range(6, 10)])
    assert backend.sight.pictures.encoded == seen


@pytest.mark.slow
def test_features_that_had_to_go_are_seen_again(backend: HfBackend) -> None:
    assert backend.sight is not None
    pictures = backend.sight.pictures
    before = backend.answer(REQUESTS)
    capacity, pictures.capacity = pictures.capacity, 2
    try:
        seen = pictures.encoded
        after = [backend.answer([request])[0] for request in REQUESTS]
        assert pictures.encoded > seen
        assert len(pictures._features) <= 3
    finally:
        pictures.capacity = capacity
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_a_question_with_the_models_own_marker_is_refused(backend: HfBackend) -> None:
    assert backend.sight is not None
    request = request_of(0)
    strange = replace(
        request,
        query=replace(request.query, question=f"What is {backend.sight.token}?"),
    )
    with pytest.raises(ScoringError, match="marker"):
        backend.answer([strange])


@pytest.mark.slow
def test_plain_prompts_put_the_picture_before_its_question(tmp_path: Any) -> None:
    section = ModelSection(
        name=str(qwen2_5_vl(tmp_path)), device="cpu", instruction="Look."
    )
    backend = HfBackend(TASK, section)
    marker = "<|vision_start|><|image_pad|><|vision_end|>"
    demo, query = TASK.items("train")[1], TASK.items("dev")[0]
    assert backend.prompts.text(Request(query, (demo,), ())) == (
        f"Look.\n{marker}Question: {demo.question}\nAnswer: {COLOURS[1]}\n{marker}Question: {query.question}\nAnswer:"
    )
    assert self_test(TASK, backend, trained=False).batch_gap < 1e-4
    smaller = HfBackend(TASK, replace(section, image_pixels=28 * 28))
    assert smaller.fingerprint() != backend.fingerprint()
    assert len(smaller._prompts([request_of(0)])[0].codes) < len(
        backend._prompts([request_of(0)])[0].codes
    )
