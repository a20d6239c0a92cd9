"""Reading in batches with shared beginnings gives what the model itself gives, prompt by prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_hf import TEXT

from leverplus.errors import ScoringError
from leverplus.models.hf.language import Language
from leverplus.models.hf.load import load_model
from leverplus.models.hf.reader import Reader
from leverplus.models.hf.tree import Prompt
from leverplus.models.settings import ModelSection


@pytest.fixture(scope="module", params=list(TEXT))
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    folder: Path = TEXT[request.param](tmp_path_factory.mktemp(request.param))
    return load_model(folder, ModelSection(device="cpu")).model


def workload() -> list[Prompt]:
    """Two first demonstrations, several second ones, several ends: 0 to 3 answers of 1 to 4 tokens each."""
    rng = np.random.default_rng(0)
    head, firsts, seconds = (
        rng.integers(50, 300, 18),
        rng.integers(50, 300, (2, 25)),
        rng.integers(50, 300, (3, 20)),
    )
    prompts = []
    for number in range(14):
        parts = [
            head,
            firsts[number % 2],
            seconds[number % 3],
            rng.integers(50, 300, 3 + number % 5),
        ]
        codes = np.concatenate(
            parts[: 1 + number % 4] + parts[3:] if number % 4 < 3 else parts
        ).astype(np.int64)
        answers = tuple(
            tuple(rng.integers(50, 300, 1 + (number + a) % 4).tolist())
            for a in range(number % 4)
        )
        prompts.append(Prompt(codes, np.arange(len(codes))[None], answers))
    return prompts


@torch.inference_mode()
def own_logprob(model: Any, prompt: Prompt, answer: tuple[int, ...]) -> float:
    ids = torch.tensor([[*prompt.codes.tolist(), *answer]])
    logits = model(ids, use_cache=False).logits[0, -len(answer) - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, torch.tensor([answer]).T).sum())


@torch.inference_mode()
def own_words(
    model: Any, prompt: Prompt, count: int, stops: frozenset[int]
) -> tuple[int, ...]:
    """Greedy decoding with a whole pass for every token."""
    ids = prompt.codes.tolist()
    for _ in range(count):
        ids.append(
            int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        )
        if ids[-1] in stops:
            break
    return tuple(ids[len(prompt.codes) :])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "batch_tokens"), [(True, 300), (True, 10_000), (False, 300)]
)
def test_log_probabilities_and_words_are_the_models_own(
    model: Any, share: bool, batch_tokens: int
) -> None:
    prompts = workload()
    stops = frozenset(range(0, 512, 7))
    readings = Reader(Language(model), batch_tokens=batch_tokens, share=share).read(
        prompts, 4, stops
    )
    assert {len(reading.written) for reading in readings} > {1}
    for prompt, reading in zip(prompts, readings, strict=True):
        expected = [own_logprob(model, prompt, answer) for answer in prompt.answers]
        np.testing.assert_allclose(reading.logprobs, expected, atol=2e-4)
        assert reading.written == own_words(model, prompt, 4, stops)


@pytest.mark.slow
def test_sharing_computes_fewer_tokens_and_counts_them(model: Any) -> None:
    prompts = workload()
    shared = Reader(Language(model), batch_tokens=300).read(prompts, 0)
    alone = Reader(Language(model), batch_tokens=300, share=False).read(prompts, 0)
    answers = sum(len(answer) - 1 for prompt in prompts for answer in prompt.answers)
    assert (
        sum(reading.tokens for reading in alone)
        == sum(len(prompt.codes) for prompt in prompts) + answers
    )
    assert sum(reading.tokens for reading in shared) < 0.7 * sum(
        reading.tokens for reading in alone
    )
    assert all(reading.written == () for reading in shared)


class Cramped(Language):
    """A device that holds only so many tokens of a pass."""

    room = 0
    error: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")

    def run(self, embedded: Any, positions: torch.Tensor, *rest: Any) -> Any:
        if positions.shape[-2] * positions.shape[-1] > self.room:
            raise self.error
        return super().run(embedded, positions, *rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        ),
    ],
)
def test_batches_that_do_not_fit_the_memory_are_halved_and_read_again(
    model: Any, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    monkeypatch.setattr("leverplus.models.hf.reader.FEWEST_TOKENS", 60)
    prompts, cramped = workload(), Cramped(model)
    cramped.error = error
    expected = Reader(Language(model), batch_tokens=1000).read(prompts, 2)
    reader, cramped.room = Reader(cramped, batch_tokens=1000), 150
    found = reader.read(prompts, 2)
    assert 60 <= reader.batch_tokens < 1000
    for own, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(own.logprobs, theirs.logprobs, atol=2e-4)
        assert own.written == theirs.written
    cramped.room = 1
    with pytest.raises(
        ScoringError, match="too small for this model even with 60 tokens"
    ):
        reader.read(prompts, 2)
    cramped.error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        reader.read(prompts, 2)


def test_layers_whose_state_cannot_be_shared_are_named(model: Any) -> None:
    before = model.config.layer_types if hasattr(model.config, "layer_types") else None
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    try:
        with pytest.raises(ScoringError, match="linear_attention"):
            Language(model)
    finally:
        model.config.layer_types = before
