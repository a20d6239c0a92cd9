"""The vllm backend against a stand-in of vLLM: the same answers and log-probabilities as the hf backend.

No real vLLM runs here.
"""

from __future__ import annotations

import importlib.machinery
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vllm_stand_in
from tiny_hf import COLOURS, ColourTask, llama, qwen2_5_vl, qwen3_vl

from leverplus.errors import LeverError, ScoringError
from leverplus.models.base import Request
from leverplus.models.hf.backend import HfBackend
from leverplus.models.open import build_backend
from leverplus.models.settings import ModelSection
from leverplus.models.vllm import VllmBackend

MODELS = {"llama": llama, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = vllm_stand_in.module()
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.fixture(scope="module", params=list(MODELS))
def named(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    return request.param, MODELS[request.param](tmp_path_factory.mktemp(request.param))


def open_backend(task: ColourTask, section: ModelSection) -> VllmBackend:
    backend = build_backend("vllm", task, section)
    assert isinstance(backend, VllmBackend)
    return backend


def requests_of(task: ColourTask) -> list[Request]:
    queries, shown = task.items("dev"), task.items("train")
    some = [
        Request(queries[n], (shown[n], shown[n + 1]), ("red", "dark blue"))
        for n in range(3)
    ]
    return [
        *some,
        Request(queries[3], (), ("green",)),
        Request(queries[4], (shown[1],), tuple(COLOURS), choose=True),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_it_answers_and_weighs_as_the_hf_backend(named, prompt, monkeypatch) -> None:
    kind, folder = named
    task = ColourTask(pictures=kind != "llama")
    # Random weights may write the token of a picture, which the stand-in could not read again: one token is enough.
    most = 4 if kind == "llama" else 1
    section = ModelSection(
        name=str(folder),
        device="cpu",
        dtype="float32",
        prompt=prompt,
        max_new_tokens=most,
        untrained=True,
    )
    backend = open_backend(task, section)
    known = HfBackend(task, section).answer(requests_of(task))
    for own, theirs in zip(backend.answer(requests_of(task)), known, strict=True):
        assert own.raw == theirs.raw
        np.testing.assert_allclose(own.logprobs, theirs.logprobs, atol=1e-4)
        assert own.tokens > 0
    assert backend.engine.settings["enable_prefix_caching"]
    assert backend.engine.settings["trust_remote_code"] is False


@pytest.mark.slow
def test_pictures_go_with_the_digest_of_their_pixels_and_of_their_size(
    tmp_path, monkeypatch
) -> None:
    task = ColourTask()
    section = ModelSection(
        name=str(qwen2_5_vl(tmp_path)),
        dtype="float32",
        prompt="chat",
        max_new_tokens=1,
        image_pixels=1024,
    )
    backend = open_backend(task, section)
    query, demo = task.items("dev")[0], task.items("train")[0]
    backend.answer([Request(query, (demo,), ())])
    sent = backend.engine.seen[0]
    assert sent["multi_modal_uuids"] == {
        "image": [f"{demo.image}-1024", f"{query.image}-1024"]
    }
    assert all(
        picture.width * picture.height <= 1024
        for picture in sent["multi_modal_data"]["image"]
    )
    assert backend.engine.settings["limit_mm_per_prompt"]["image"] == {
        "count": 17,
        "width": 32,
        "height": 32,
    }


def test_what_cannot_be_answered_is_refused_with_a_sentence(
    tmp_path, monkeypatch
) -> None:
    folder = llama(tmp_path)
    section = ModelSection(name=str(folder), dtype="float32", untrained=True)
    backend = open_backend(ColourTask(pictures=False), section)
    query = ColourTask(pictures=False).items("dev")[0]
    with pytest.raises(ScoringError, match="vLLM refuses a prompt: The prompt"):
        backend.answer(
            [Request(replace(query, question="thing " * 5000), (), ("red",))]
        )
    with pytest.raises(ScoringError, match="no labels"):
        backend.answer([Request(query, (), (), choose=True)])
    with pytest.raises(ScoringError, match="is a language model"):
        backend.answer([Request(ColourTask().items("dev")[0], (), ("red",))])
    with pytest.raises(LeverError, match="writes greedily"):
        VllmBackend(ColourTask(pictures=False), replace(section, beams=2))


def test_without_vllm_the_user_is_told_what_to_type(tmp_path, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm")
    with pytest.raises(
        LeverError, match="type `pip install vllm` on a machine with a GPU"
    ):
        VllmBackend(ColourTask(), ModelSection(name=str(tmp_path)))
