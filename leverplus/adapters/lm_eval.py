"""lm-evaluation-harness: demonstrations chosen for every document, with their pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.adapters.opening import BUNDLE, Columns, open_selector
from leverplus.errors import LeverError, needs_extra

with needs_extra("the adapter for lm-eval"):
    from lm_eval.api.task import ConfigurableTask


def chosen_docs(columns: Columns, doc: Mapping[str, Any], shots: int) -> list[Any]:
    """The demonstrations for a document, as documents of the same columns, nearest last, never the document itself.

    Their metadata are further columns.
    """
    found = []
    for demo in columns.choose(doc, shots, apart=True):
        own = {**demo.meta, **columns.example(demo)}
        if demo.image is not None:
            own[columns.image] = demo.pil()
        found.append(own)
    return found


class ChosenSampler:
    """Hands out documents that were chosen already; takes the place of a task's sampler for one document."""

    def __init__(self, docs: Sequence[Any]) -> None:
        self.docs = docs

    def sample(self, n: int, **_options: Any) -> list[Any]:
        return list(self.docs[:n])

    def set_rnd(self, rnd: int | None) -> ChosenSampler:  # noqa: ARG002 nothing is drawn
        return self


class LeverTask(ConfigurableTask):
    """A task of the harness whose demonstrations are chosen per document and carry their pictures.

    YAML: `class: !function leverplus.adapters.lm_eval.LeverTask` and `metadata: {lever_bundle: FOLDER}`; a bundle named
    in the environment (LEVER_BUNDLE) wins. Documents have the columns `question`, `image` and `answer`;
    `metadata: {lever_fields: {question: text}}` names others. Everything else is as in any other task. Where the task has
    `doc_to_image`, the pictures of the demonstrations stand before the query's, in the order of the prompt.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        own = dict(config or {})
        own.pop("class", None)
        metadata = own.get("metadata") or {}
        source = os.environ.get(BUNDLE) or metadata.get("lever_bundle")
        if not source:
            raise LeverError(
                "the task names no bundle; write metadata: {lever_bundle: FOLDER} into its YAML file"
            )
        names = metadata.get("lever_fields") or {}
        self._columns = Columns(open_selector(source), **names)
        self._shown: tuple[Any, list[Any]] = (None, [])
        super().__init__(config=own, **options)

    def fewshot_context(
        self, doc: Any, num_fewshot: int, *positional: Any, **options: Any
    ) -> Any:
        """The prompt of a document. The harness asks for it before the pictures of the same document."""
        shown = []
        if num_fewshot:
            shown = chosen_docs(self._columns, doc, num_fewshot)
        self._shown, self.sampler = (doc, shown), ChosenSampler(shown)
        return super().fewshot_context(doc, len(shown), *positional, **options)

    def doc_to_image(self, doc: Any, doc_to_image: Any = None) -> Any:
        """The pictures of a prompt: the demonstrations', then the query's."""
        own = _listed(super().doc_to_image(doc, doc_to_image))
        if self._shown[0] is not doc or doc_to_image is not None:
            return own  # a demonstration, or one column of several
        pictures = []
        for demo in self._shown[1]:
            pictures += _listed(super().doc_to_image(demo))
        return [*pictures, *own]


def _listed(pictures: Any) -> list[Any]:
    if pictures is None:
        return []
    if isinstance(pictures, (list, tuple)):
        return list(pictures)
    return [pictures]
