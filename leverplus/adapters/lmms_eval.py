"""lmms-eval: the conversation of a document, demonstrations with pictures as turns, for its chat models.

Needs no import of lmms-eval: a task's YAML names `doc_to_messages`, and the harness calls it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from leverplus.adapters.opening import BUNDLE, Columns, open_selector
from leverplus.bundle.demo import clean_picture


def doc_to_messages(
    doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Turns of demonstrations, each a question and its answer, then the document's own question.

    In the YAML: `doc_to_messages: !function leverplus.adapters.lmms_eval.doc_to_messages`, and under
    `lmms_eval_specific_kwargs: {default: {...}}` perhaps `lever_bundle` (the environment variable LEVER_BUNDLE goes
    before it), `lever_shots`, `lever_question` and `lever_image` (columns), `pre_prompt` and `post_prompt` (texts
    around every question). A document is never shown itself.
    """
    options = lmms_eval_specific_kwargs or {}
    columns = Columns(
        open_selector(os.environ.get(BUNDLE) or options.get("lever_bundle")),
        options.get("lever_question", "question"),
        options.get("lever_image", "image"),
    )

    def user(text: str, picture: Any) -> dict[str, Any]:
        """A user's turn; `url` of a picture is a PIL image, as lmms-eval's models take it."""
        before = options.get("pre_prompt", "")
        words = before + text + options.get("post_prompt", "")
        content = [{"type": "text", "text": words}]
        if picture is not None:
            content.insert(0, {"type": "image", "url": picture})
        return {"role": "user", "content": content}

    turns = []
    for demo in columns.choose(doc, options.get("lever_shots"), apart=True):
        turns.append(user(demo.question, demo.pil()))
        answer = [{"type": "text", "text": demo.answer}]
        turns.append({"role": "assistant", "content": answer})
    image = clean_picture(doc.get(columns.image))
    return [*turns, user(str(doc[columns.question]), image)]
