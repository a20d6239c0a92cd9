"""LlamaIndex: demonstrations as a variable of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import Columns, open_selector
from leverplus.bundle.selector import Selector
from leverplus.errors import needs_extra

with needs_extra("the adapter for LlamaIndex"):
    import llama_index.core  # noqa: F401 to say at once what is missing


def lever_demos(
    selector: Selector | str | Path,
    shots: int | None = None,
    *,
    question: str = "question",
    image: str = "image",
    order: str = "nearest_last",
) -> Callable[..., list[dict[str, Any]]]:
    """A function for `function_mappings={"demos": lever_demos(...)}` of a `RichPromptTemplate`.

    `question` and `image` name the prompt's variables; a picture is a path, a data URL or bytes. Where the bundle's
    demonstrations have several named inputs, variables of these names are the query. In a template a demonstration
    `d` is `{{ d.question }}`, `{{ d.answer }}`, `{{ d.image | image }}` where it has one, `{{ d.fields.context }}`.
    """
    columns = Columns(open_selector(selector), question, image, order=order)

    def demos(**variables: Any) -> list[dict[str, Any]]:
        shown = []
        for demo in columns.choose(variables, shots):
            own = {"question": demo.question, "answer": demo.answer}
            picture = demo.data_url()
            shown.append({**own, "image": picture, "fields": demo.fields})
        return shown

    return demos
