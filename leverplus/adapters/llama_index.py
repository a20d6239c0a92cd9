"""LlamaIndex: demonstrations as a variable of a prompt, and as a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import as_picture, in_order, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.selector import Selector

require_framework("llama_index.core", "llama-index")
from llama_index.core.retrievers import BaseRetriever  # noqa: E402 after the sentence about what is missing
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode  # noqa: E402


@dataclass(frozen=True)
class ShownDemo:
    """A demonstration in a template: `{{ d.question }}`, `{{ d.answer }}`, `{{ d.image | image }}` where it has one."""

    question: str
    answer: str
    image: str | None


def lever_demos(
    selector: Selector | str | Path,
    shots: int | None = None,
    *,
    question: str = "question",
    image: str = "image",
    order: str = "nearest_last",
) -> Callable[..., list[ShownDemo]]:
    """A function for `function_mappings={"demos": lever_demos(...)}` of a `RichPromptTemplate`.

    `question` and `image` name the prompt's variables; a picture is a path, a data URL or bytes.
    """
    opened = open_selector(selector)
    in_order([], order)  # a wrong order is refused here, not at the first query

    def demos(**variables: Any) -> list[ShownDemo]:
        if question not in variables:
            raise LeverError(f"the prompt has no variable '{question}'; name the right one with question=")
        picture = as_picture(variables.get(image))
        chosen = opened.select(question=str(variables[question]), image=picture, shots=shots)
        return [ShownDemo(demo.question, demo.answer, demo.data_url()) for demo in in_order(chosen, order)]

    return demos


class LeverRetriever(BaseRetriever):
    """Retrieves demonstrations as nodes, nearest first as retrievers do; the answer is in a node's metadata.

    A query's picture is `QueryBundle(query_str, image_path=...)`.
    """

    def __init__(self, selector: Selector | str | Path, shots: int | None = None, **options: Any) -> None:
        self._selector, self._shots = open_selector(selector), shots
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        picture = as_picture(query_bundle.image_path)
        chosen = self._selector.select(question=query_bundle.query_str, image=picture, shots=self._shots, explain=True)
        explained = (chosen.explanation or {}).get("candidates", [])
        scores = {row["id"]: row.get("score") for row in explained}
        nodes = []
        for demo in reversed(chosen):
            told = {**demo.meta, "answer": demo.answer}
            path = demo.image_path
            node: Any
            if path is None:
                node = TextNode(text=demo.question, id_=str(demo.id), metadata=told)
            else:
                node = ImageNode(text=demo.question, id_=str(demo.id), metadata=told, image_path=path)
            nodes.append(NodeWithScore(node=node, score=scores.get(demo.id)))
        return nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)
