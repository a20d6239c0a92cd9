"""lmms-eval: the conversation of a document, demonstrations with pictures as turns, for its chat models.

Needs no import of lmms-eval: a task's YAML names `doc_to_messages`, and the harness calls it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from leverplus.adapters.opening import apart_from, as_picture, open_selector
from leverplus.errors import LeverError
from leverplus.selector.demo import Demo
from leverplus.selector.query import clean_picture

BUNDLE = "LEVER_BUNDLE"
"""The environment variable that names the bundle; it goes before the YAML file."""


def doc_to_messages(
    doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Turns of demonstrations, each a question and its answer, then the document's own question.

    In the YAML: `doc_to_messages: !function leverplus.adapters.lmms_eval.doc_to_messages`, and under
    `lmms_eval_specific_kwargs: {default: {...}}` perhaps `lever_bundle`, `lever_shots`, `lever_question` and
    `lever_image` (columns), `pre_prompt` and `post_prompt` (texts around every question). A document is never shown
    itself.
    """
    options = lmms_eval_specific_kwargs or {}
    source = os.environ.get(BUNDLE) or options.get("lever_bundle")
    if not source:
        raise LeverError(f"set {BUNDLE}, or lever_bundle under lmms_eval_specific_kwargs, to the folder of a bundle")
    column = options.get("lever_question", "question")
    if column not in doc:
        raise LeverError(f"the document has no column '{column}' (it has {', '.join(doc)}); name it: lever_question")
    question, image = str(doc[column]), as_picture(doc.get(options.get("lever_image", "image")))
    demos = open_selector(source).select(
        question=question, image=image, shots=options.get("lever_shots"), allowed=apart_from(question, image)
    )
    before, after = options.get("pre_prompt", ""), options.get("post_prompt", "")
    turns = [turn for demo in demos for turn in _turns(demo, before, after)]
    return [*turns, _user(before + question + after, clean_picture(image))]


def _turns(demo: Demo, before: str, after: str) -> list[dict[str, Any]]:
    answer = {"role": "assistant", "content": [{"type": "text", "text": demo.answer}]}
    return [_user(before + demo.question + after, demo.pil()), answer]


def _user(text: str, picture: Any) -> dict[str, Any]:
    """A user's turn; `url` of a picture is a PIL image, as lmms-eval's models take it."""
    shown = [] if picture is None else [{"type": "image", "url": picture}]
    return {"role": "user", "content": [*shown, {"type": "text", "text": text}]}
