"""Writes the prompt of a query with its demonstrations exactly as a backend does, for use with another client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leverplus.backends.base import Request
from leverplus.errors import LeverError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

Turn = dict[str, Any]


def render_prompt(
    backend: str, model: ModelSection, task: Task, query: Item, demos: Sequence[Item] = ()
) -> str | list[Turn]:
    """The prompt that `backend` ("hf" or "openai", `score.backend`) gives a model, up to where the answer begins.

    A text, in which the model's own marker stands for a picture (`hf`); or the turns of a chat with pictures as data
    URLs (`openai` with `model.prompt = "chat"`). No weights are loaded and no server is asked.
    """
    request = Request(query, tuple(demos), ())
    if backend == "openai":
        from leverplus.backends.api.prompts import ServerPrompts

        written = ServerPrompts(model, task)
        return written.turns(request) if model.prompt == "chat" else written.text(request)
    if backend in ("hf", "vllm"):
        from leverplus.backends.hf.files import find_model
        from leverplus.backends.hf.load import load_words
        from leverplus.backends.hf.sight import prompts_for

        tokenizer, processor = load_words(find_model(model).folder)
        return prompts_for(tokenizer, processor, model).text(request)
    raise LeverError(
        f'the prompts of score.backend = "{backend}" cannot be written as text; those of "hf" and "openai" are'
    )
