"""The public function writes the prompt that is really asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_hf import ColourTask, llama, qwen2_5_vl

from leverplus.backends.base import Request
from leverplus.backends.hf.backend import HfBackend
from leverplus.backends.prompts import render_prompt
from leverplus.errors import LeverError
from leverplus.recipe.model import ModelSection


@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("pictures", [False, True])
def test_what_is_rendered_is_what_the_model_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, pictures: bool
) -> None:
    task = ColourTask(pictures=pictures)
    folder = (qwen2_5_vl if pictures else llama)(tmp_path / "model")
    section = ModelSection(name=str(folder), device="cpu", prompt=prompt, instruction="Name it.", untrained=True)
    backend = HfBackend(task, section)
    read: list[str] = []
    tokens_of = backend.prompts.tokens_of

    def noting(texts: list[str]) -> Any:
        read.extend(texts)
        return tokens_of(texts)

    monkeypatch.setattr(backend.prompts, "tokens_of", noting)
    query, demos = task.items("dev")[0], tuple(task.items("train")[:2])
    backend.answer([Request(query, demos, ("red",))])
    assert read == [render_prompt("hf", section, task, query, demos)]
    assert query.question in read[0]


def test_the_world_has_no_text() -> None:
    task = ColourTask(pictures=False)
    with pytest.raises(LeverError, match="cannot be written as text"):
        render_prompt("world", ModelSection(), task, task.items("dev")[0])
