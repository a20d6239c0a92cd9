"""lm-evaluation-harness: demonstrations chosen for every document, as a task class with pictures and as a sampler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.adapters.opening import apart_from, as_picture, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.demo import Demo
from leverplus.selector.selector import Selector

require_framework("lm_eval", "lm-eval")
from lm_eval.api.samplers import ContextSampler  # noqa: E402 after the sentence about what is missing
from lm_eval.api.task import ConfigurableTask  # noqa: E402

BUNDLE = "LEVER_BUNDLE"
"""The environment variable that names the bundle; it goes before the YAML file."""

FIELDS = {"question": "question", "image": "image", "answer": "answer"}
"""Columns of a document; `metadata: {lever_fields: {question: text}}` names others."""


def chosen_docs(selector: Selector, doc: Mapping[str, Any], shots: int, fields: Mapping[str, str]) -> list[Any]:
    """The demonstrations for a document, as documents of the same columns, nearest last, never the document itself."""
    if fields["question"] not in doc:
        raise LeverError(
            f"the document has no column '{fields['question']}' (it has {', '.join(doc)}); name the column of the "
            "question with metadata: {lever_fields: {question: NAME}}"
        )
    question, image = str(doc[fields["question"]]), as_picture(doc.get(fields["image"]))
    demos = selector.select(question=question, image=image, shots=shots, allowed=apart_from(question, image))
    return [_document(demo, fields) for demo in demos]


def _document(demo: Demo, fields: Mapping[str, str]) -> dict[str, Any]:
    """A demonstration in the columns of a task; its metadata are further columns."""
    own: dict[str, Any] = {fields["question"]: demo.question, fields["answer"]: demo.answer}
    if demo.picture is not None:
        own[fields["image"]] = demo.pil()
    return {**demo.meta, **own}


class LeverSampler(ContextSampler):
    """`fewshot_config: {sampler: !function leverplus.adapters.lm_eval.LeverSampler}`, for tasks without pictures.

    The bundle comes from the environment variable LEVER_BUNDLE, because the harness passes a sampler no settings. The
    harness tells a sampler the document only where `fewshot_split` equals `test_split`; demonstrations come from the
    bundle all the same.
    """

    def __init__(self, df: Sequence[Any] | None = None, **options: Any) -> None:
        super().__init__(df, **options)
        source = os.environ.get(BUNDLE)
        if not source:
            raise LeverError(f"set the environment variable {BUNDLE} to the folder of a bundle, or use LeverTask")
        self.selector = open_selector(source)

    def sample(self, n: int, eval_doc: Any = None, df: Any = None, **_options: Any) -> list[Any]:  # noqa: ARG002
        if n == 0:
            return []
        if eval_doc is None:
            raise LeverError(
                "the harness does not say which document the demonstrations are for; set fewshot_split to the same "
                "split as test_split, or use class: !function leverplus.adapters.lm_eval.LeverTask"
            )
        return chosen_docs(self.selector, eval_doc, n, FIELDS)


class ChosenSampler:
    """Hands out documents that were chosen already; takes the place of a task's sampler for one document."""

    def __init__(self, docs: Sequence[Any]) -> None:
        self.docs = docs

    def sample(self, n: int, eval_doc: Any = None, **_options: Any) -> list[Any]:  # noqa: ARG002
        return list(self.docs[:n])

    def set_rnd(self, rnd: int | None) -> ChosenSampler:  # noqa: ARG002 nothing is drawn
        return self


class LeverTask(ConfigurableTask):
    """A task of the harness whose demonstrations are chosen per document and carry their pictures.

    YAML: `class: !function leverplus.adapters.lm_eval.LeverTask` and `metadata: {lever_bundle: FOLDER}`; a bundle named
    in the environment (LEVER_BUNDLE) wins. Everything else is as in any other task. Where the task has `doc_to_image`,
    the pictures of the demonstrations stand before the query's, in the order of the prompt.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        own = dict(config or {})
        own.pop("class", None)
        metadata = own.get("metadata") or {}
        source = os.environ.get(BUNDLE) or metadata.get("lever_bundle")
        if not source:
            raise LeverError("the task names no bundle; write metadata: {lever_bundle: FOLDER} into its YAML file")
        self._fields = {**FIELDS, **(metadata.get("lever_fields") or {})}
        self._selector = open_selector(source)
        self._shown: tuple[Any, list[Any]] = (None, [])
        super().__init__(config=own, **options)

    def fewshot_context(self, doc: Any, num_fewshot: int, *positional: Any, **options: Any) -> Any:
        """The prompt of a document. The harness asks for it before the pictures of the same document."""
        shown = chosen_docs(self._selector, doc, num_fewshot, self._fields) if num_fewshot else []
        self._shown = (doc, shown)
        self.sampler = ChosenSampler(shown)
        return super().fewshot_context(doc, len(shown), *positional, **options)

    def doc_to_image(self, doc: Any, doc_to_image: Any = None) -> Any:
        """The pictures of a prompt: the demonstrations', then the query's."""
        own = _listed(super().doc_to_image(doc, doc_to_image))
        if self._shown[0] is not doc or doc_to_image is not None:  # a demonstration, or one column of several
            return own
        shown = [picture for demo in self._shown[1] for picture in _listed(super(LeverTask, self).doc_to_image(demo))]
        return [*shown, *own]


def _listed(pictures: Any) -> list[Any]:
    if pictures is None:
        return []
    return list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
