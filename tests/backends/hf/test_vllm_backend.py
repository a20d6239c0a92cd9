"""The vllm backend against a stand-in of vLLM: the same answers and log-probabilities as the hf backend.

No real vLLM runs here. With LEVERPLUS_VLLM_WHEEL set to a wheel (`pip download --no-deps vllm`) the last test reads in
it that everything the backend uses has these names.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vllm_stand_in
from tiny_hf import COLOURS, ColourTask, llama, qwen2_5_vl, qwen3_vl

from leverplus.backends import vllm as vllm_module
from leverplus.backends.base import Request
from leverplus.backends.hf.backend import HfBackend
from leverplus.backends.vllm import VllmBackend
from leverplus.engine.open import build_backend
from leverplus.errors import LeverError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.scoring.selftest import self_test

MODELS = {"llama": llama, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = vllm_stand_in.module()
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.fixture(scope="module", params=list(MODELS))
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, MODELS[request.param](tmp_path_factory.mktemp(request.param))


def open_backend(
    task: ColourTask, section: ModelSection, monkeypatch: pytest.MonkeyPatch, *, replays: bool
) -> VllmBackend:
    if replays:  # which the backend expects of a GPU; the stand-in computes on the CPU all the same
        monkeypatch.setattr(vllm_module, "pick_device", lambda wanted: "cuda")
    backend = build_backend("vllm", task, section)
    assert isinstance(backend, VllmBackend)
    assert backend.replays == replays
    return backend


def requests_of(task: ColourTask) -> list[Request]:
    queries, shown = task.items("dev"), task.items("train")
    some = [Request(queries[n], (shown[n], shown[n + 1]), ("red", "dark blue")) for n in range(3)]
    return [*some, Request(queries[3], (), ("green",)), Request(queries[4], (shown[1],), tuple(COLOURS), choose=True)]


@pytest.mark.parametrize("replays", [True, False], ids=["by replay", "in the prompt"])
@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_it_answers_and_weighs_as_the_hf_backend(named, prompt, replays, monkeypatch) -> None:
    kind, folder = named
    task = ColourTask(pictures=kind != "llama")
    # Random weights may write the token of a picture, which the stand-in could not read again: one token is enough.
    most = 4 if kind == "llama" else 1
    section = ModelSection(
        name=str(folder), device="cpu", dtype="float32", prompt=prompt, max_new_tokens=most, untrained=True
    )
    backend = open_backend(task, section, monkeypatch, replays=replays)
    monkeypatch.undo()
    known = HfBackend(task, section).answer(requests_of(task))
    monkeypatch.setitem(sys.modules, "vllm", vllm_stand_in.module())
    for own, theirs in zip(backend.answer(requests_of(task)), known, strict=True):
        assert own.raw == theirs.raw
        np.testing.assert_allclose(own.logprobs, theirs.logprobs, atol=1e-4)
        assert own.tokens > 0
    assert backend.engine.settings["enable_prefix_caching"]
    assert backend.engine.settings["trust_remote_code"] is False


def test_it_passes_the_self_test(tmp_path, monkeypatch) -> None:
    task = ColourTask()
    section = ModelSection(
        name=str(qwen2_5_vl(tmp_path)), dtype="float32", prompt="chat", max_new_tokens=1, untrained=True
    )
    backend = open_backend(task, section, monkeypatch, replays=True)
    assert self_test(task, backend, trained=False, queries=4).batch_gap < 1e-3


def test_pictures_go_with_the_digest_of_their_pixels_and_of_their_size(tmp_path, monkeypatch) -> None:
    task = ColourTask()
    section = ModelSection(
        name=str(qwen2_5_vl(tmp_path)), dtype="float32", prompt="chat", max_new_tokens=1, image_pixels=1024
    )
    backend = open_backend(task, section, monkeypatch, replays=False)
    query, demo = task.items("dev")[0], task.items("train")[0]
    backend.answer([Request(query, (demo,), ())])
    sent = backend.engine.seen[0]
    assert sent["multi_modal_uuids"] == {"image": [f"{demo.image}-1024", f"{query.image}-1024"]}
    assert all(picture.width * picture.height <= 1024 for picture in sent["multi_modal_data"]["image"])
    assert backend.engine.settings["limit_mm_per_prompt"]["image"] == {"count": 17, "width": 32, "height": 32}


def test_what_cannot_be_answered_is_refused_with_a_sentence(tmp_path, monkeypatch) -> None:
    folder = llama(tmp_path)
    section = ModelSection(name=str(folder), dtype="float32", untrained=True)
    backend = open_backend(ColourTask(pictures=False), section, monkeypatch, replays=False)
    query = ColourTask(pictures=False).items("dev")[0]
    with pytest.raises(ScoringError, match="vLLM refuses a prompt: The prompt"):
        backend.answer([Request(replace(query, question="thing " * 5000), (), ("red",))])
    with pytest.raises(ScoringError, match="no labels"):
        backend.answer([Request(query, (), (), choose=True)])
    with pytest.raises(ScoringError, match="is a language model"):
        backend.answer([Request(ColourTask().items("dev")[0], (), ("red",))])
    with pytest.raises(LeverError, match="writes greedily"):
        VllmBackend(ColourTask(pictures=False), replace(section, beams=2))


def test_without_vllm_the_user_is_told_what_to_type(tmp_path, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm")
    with pytest.raises(LeverError, match="type `pip install vllm` on a machine with a GPU"):
        VllmBackend(ColourTask(), ModelSection(name=str(tmp_path)))


def fields_of(wheel: zipfile.ZipFile, path: str, name: str) -> set[str]:
    """The fields, parameters of `__init__` and methods of a class in a wheel, read without importing it."""
    tree = ast.parse(wheel.read(path))
    kind = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    found = set()
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
            if node.name == "__init__":
                found |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return found


def test_the_real_vllm_has_these_names() -> None:
    path = os.environ.get("LEVERPLUS_VLLM_WHEEL")
    if not path:
        pytest.skip("LEVERPLUS_VLLM_WHEEL names no wheel; get one with `pip download --no-deps vllm` (327 MB)")
    with zipfile.ZipFile(path) as wheel:
        params = fields_of(wheel, "vllm/sampling_params.py", "SamplingParams")
        ours = set(vllm_stand_in.SamplingParams.__annotations__)
        assert ours <= params
        assert {"prompt_token_ids", "prompt_logprobs", "outputs", "num_cached_tokens"} <= fields_of(
            wheel, "vllm/outputs.py", "RequestOutput"
        )
        assert {"token_ids", "logprobs"} <= fields_of(wheel, "vllm/outputs.py", "CompletionOutput")
        assert {"multi_modal_data", "multi_modal_uuids"} <= fields_of(wheel, "vllm/inputs/llm.py", "_PromptOptions")
        assert "prompt_token_ids" in fields_of(wheel, "vllm/inputs/llm.py", "TokensPrompt")
        engine = fields_of(wheel, "vllm/engine/arg_utils.py", "EngineArgs")
        needed = {"dtype", "enable_prefix_caching", "seed", "trust_remote_code", "enable_trace_replay"}
        assert needed | {"limit_mm_per_prompt"} <= engine
        assert "generate" in fields_of(wheel, "vllm/entrypoints/llm.py", "LLM")
