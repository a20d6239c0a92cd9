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

from leverplus.adapters.opening import BUNDLE, open_selector
from leverplus.bundle.selector import Selector
from leverplus.data.fields import asked_in
from leverplus.errors import needs_extra

with needs_extra("the adapter for litellm"):
    from litellm.integrations.custom_logger import CustomLogger

SHOTS = "LEVER_SHOTS"
CHATS = ("completion", "acompletion")
"""Kinds of calls that have messages to be shown demonstrations."""

logger = logging.getLogger(__name__)


class LeverHook(CustomLogger):
    """Puts demonstrations in front of the last user message of a chat.

    A request that holds an assistant's turn already (a conversation, or the caller's own shots) passes unchanged, and
    so does every request whose demonstrations cannot be chosen within `deadline_s`: a user's call never fails because
    of the choice. Only the first waits until the bundle and its encoder are open. The ids of what was shown go into the
    request's metadata as `lever_demos`.
    """

    def __init__(
        self,
        selector: Selector | str | Path | None = None,
        shots: int | None = None,
        deadline_s: float = 2.0,
    ) -> None:
        super().__init__()
        self.source = selector
        self.shots = shots
        self.deadline_s = deadline_s

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002 litellm's signature
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """The request with demonstrations, or as it is."""
        messages = data.get("messages")
        place = _last_user_turn(messages)
        if messages is None or place is None or call_type not in CHATS:
            return data
        try:
            selector = await asyncio.to_thread(self._open)
            content = messages[place].get("content")
            choice = asyncio.to_thread(self._choose, selector, content)
            names, turns = await asyncio.wait_for(choice, self.deadline_s)
        except Exception as error:  # whatever it is, the user's call goes on; the log says why nothing was shown
            logger.warning(
                "no demonstrations for this request: %s: %s",
                type(error).__name__,
                error,
            )
            return data
        return {
            **data,
            "messages": [*messages[:place], *turns, *messages[place:]],
            "metadata": {**(data.get("metadata") or {}), "lever_demos": names},
        }

    def _open(self) -> Selector:
        selector = open_selector(self.source or os.environ.get(BUNDLE))
        if selector.way.vector_fields:
            _ = selector.source.embedder
        return selector

    def _choose(self, selector: Selector, content: Any) -> tuple[list[str], list[Any]]:
        shots = self.shots
        if shots is None and SHOTS in os.environ:
            shots = int(os.environ[SHOTS])
        words, images = asked_in({"content": content})
        image = next(iter(images), None)
        demos = selector.select(question=words, image=image, shots=shots)
        return [str(demo.id) for demo in demos], selector.turns(demos)


def _last_user_turn(messages: Any) -> int | None:
    """Where the last user turn stands; None where there is none, or somebody has answered already."""
    if not isinstance(messages, Sequence):
        return None
    place = None
    for number, message in enumerate(messages):
        role = isinstance(message, Mapping) and message.get("role")
        if role in ("assistant", "tool", "function"):
            return None
        if role == "user":
            place = number
    return place


hook = LeverHook()
"""What a proxy's YAML names."""
