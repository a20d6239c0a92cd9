"""The prompt of a query with its demonstrations, exactly as a backend asks it: for use outside, with another client."""

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
    """What `backend` ("hf" or "openai", `score.backend`) asks a model for a query: up to where the answer begins.

    A text, in which a picture of an `hf` model is its own marker; the turns of a chat for `openai` with
    `model.prompt = "chat"`, pictures as data URLs. No weights are loaded and nobody is asked.
    """
    request = Request(query, tuple(demos), ())
    if backend == "openai":
        from leverplus.backends.api.prompts import Prompts

        written = Prompts(model, task)
        return written.turns(request) if model.prompt == "chat" else written.text(request)
    if backend == "hf":
        from leverplus.backends.hf.files import find_model
        from leverplus.backends.hf.load import load_words
        from leverplus.backends.hf.sight import prompts_for

        tokenizer, processor = load_words(find_model(model).folder)
        return prompts_for(tokenizer, processor, model).text(request)
    raise LeverError(f'the prompts of score.backend = "{backend}" are no text; those of "hf" and "openai" are')
