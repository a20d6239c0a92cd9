"""Beam search writes what `generate` of transformers writes, for several beams and penalties on length."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tiny_hf import llama

from leverplus.models.hf.language import Language
from leverplus.models.hf.load import load_model
from leverplus.models.hf.reader import Beams, Reader
from leverplus.models.hf.tree import Prompt
from leverplus.models.settings import ModelSection


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_model(
        llama(tmp_path_factory.mktemp("beams")), ModelSection(device="cpu")
    ).model


def prompts(count: int) -> list[Prompt]:
    rng = np.random.default_rng(7)
    common = rng.integers(60, 300, 6)
    found = []
    for number in range(count):
        ids = np.concatenate([common, rng.integers(60, 300, 2 + number % 3)]).astype(
            np.int64
        )
        found.append(Prompt(ids, np.arange(len(ids), dtype=np.int64)[None], ()))
    return found


def of_transformers(
    model: Any, prompt: Prompt, beams: Beams, stops: list[int]
) -> list[int]:
    ids = torch.from_numpy(prompt.codes)[None]
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, num_beams=beams.count, length_penalty=beams.penalty,
        do_sample=False, eos_token_id=stops, pad_token_id=stops[0], early_stopping=False,
    )  # fmt: skip
    new: list[int] = out[0, ids.shape[1] :].tolist()
    ends = [place for place, token in enumerate(new) if token in stops]
    return new[: ends[0] + 1] if ends else new


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beams", "penalty"), list(product((2, 3, 5), (0.0, 1.0, 2.0)))
)
def test_the_reader_writes_what_generate_writes(
    model: Any, beams: int, penalty: float
) -> None:
    stops = list(
        range(100, 180)
    )  # a random model ends often only if many tokens end an answer
    asked = prompts(6)
    reader = Reader(Language(model), batch_tokens=512, beams=Beams(beams, penalty))
    found = [
        list(reading.written) for reading in reader.read(asked, 5, frozenset(stops))
    ]
    assert found == [
        of_transformers(model, prompt, Beams(beams, penalty), stops) for prompt in asked
    ]
    assert penalty > 0.0 or any(words[-1] in stops for words in found), (
        "some endings come before the last token"
    )
