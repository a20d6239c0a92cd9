"""litellm: a hook of its proxy that puts chosen demonstrations into chat requests.

In the proxy's YAML: `litellm_settings: {callbacks: leverplus.adapters.litellm.hook}`; the bundle and the number of
shots come from the environment (LEVER_BUNDLE, LEVER_SHOTS).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.demo import Demo
from leverplus.selector.selector import Selector

require_framework("litellm", "litellm")
from litellm.integrations.custom_logger import CustomLogger  # noqa: E402 after the sentence about what is missing

BUNDLE, SHOTS = "LEVER_BUNDLE", "LEVER_SHOTS"
CHATS = ("completion", "acompletion")
"""Kinds of calls that have messages to be shown demonstrations."""

logger = logging.getLogger(__name__)


class LeverHook(CustomLogger):
    """Puts demonstrations in front of the last user message of a chat.

    A request that holds an assistant's turn already (a conversation, or the caller's own shots) passes unchanged, and
    so does every request whose demonstrations cannot be chosen within `deadline_s`: a user's call never fails because
    of the choice. The ids of what was shown go into the request's metadata as `lever_demos`.
    """

    def __init__(
        self, selector: Selector | str | Path | None = None, shots: int | None = None, deadline_s: float = 2.0
    ) -> None:
        super().__init__()
        self.source, self.shots, self.deadline_s = selector, shots, deadline_s

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002 litellm's signature
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """The request with demonstrations, or as it is."""
        messages = data.get("messages")
        if call_type not in CHATS or not isinstance(messages, list):
            return data
        place = _last_user_turn(messages)
        if place is None:
            return data
        try:
            demos = await asyncio.wait_for(asyncio.to_thread(self._choose, messages[place]), self.deadline_s)
        except Exception as error:  # whatever it is, the user's call goes on; the log says why nothing was shown
            logger.warning("no demonstrations for this request: %s: %s", type(error).__name__, error)
            return data
        turns = [turn for demo in demos for turn in _turns(demo)]
        shown = {**(data.get("metadata") or {}), "lever_demos": [str(demo.id) for demo in demos]}
        return {**data, "messages": [*messages[:place], *turns, *messages[place:]], "metadata": shown}

    def _choose(self, message: Mapping[str, Any]) -> Sequence[Demo]:
        source = self.source or os.environ.get(BUNDLE)
        if not source:
            raise LeverError(f"set the environment variable {BUNDLE} to the folder of a bundle")
        shots = self.shots
        if shots is None and os.environ.get(SHOTS):
            shots = int(os.environ[SHOTS])
        question, image = _asked(message)
        return open_selector(source).select(question=question, image=image, shots=shots)


def _last_user_turn(messages: Sequence[Any]) -> int | None:
    """Where the last user turn stands; None where there is none, or somebody has answered already."""
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in messages]
    if "user" not in roles or {"assistant", "tool", "function"} & set(roles):
        return None
    return len(roles) - 1 - roles[::-1].index("user")


def _asked(message: Mapping[str, Any]) -> tuple[str, str | None]:
    """The text and the first picture of a message of the OpenAI form."""
    content = message.get("content")
    if isinstance(content, str):
        return content, None
    parts = [part for part in content or () if isinstance(part, Mapping)]
    words = " ".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    for part in parts:
        if part.get("type") == "image_url":
            url = part.get("image_url")
            return words, str(url.get("url") if isinstance(url, Mapping) else url)
    return words, None


def _turns(demo: Demo) -> list[dict[str, Any]]:
    url = demo.data_url()
    content: Any = demo.question
    if url is not None:
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": demo.question}]
    return [{"role": "user", "content": content}, {"role": "assistant", "content": demo.answer}]


hook = LeverHook()
"""What a proxy's YAML names."""
