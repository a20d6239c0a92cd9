"""litellm: the hook of its proxy puts demonstrations into chats, and never stands in the way of a call."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    answer_of,
    by_hand,
    colour_at,
    encoded,
    rgb,
    run_page,
)

from leverplus.bundle.selector import Selector

pytest.importorskip(
    "litellm", reason="litellm is not installed; type `make test-adapters`"
)

import litellm

from leverplus.adapters.litellm import LeverHook, hook

# the package's own warnings are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")

TEXT = {"type": "text", "text": ASKED}
CHAT = {"messages": [{"role": "user", "content": ASKED}]}


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def through(hook: LeverHook, data: Any, call_type: str = "acompletion") -> Any:
    return asyncio.run(hook.async_pre_call_hook(None, None, data, call_type))


def test_demonstrations_stand_before_the_last_user_turn_with_their_pictures(
    selector: Selector,
) -> None:
    url = "data:image/png;base64," + encoded("yellow")
    asked = {"role": "user", "content": [TEXT, picture(url)]}
    system = {"role": "system", "content": "Be short."}
    data = {"model": "m", "messages": [system, asked], "tools": [1]}
    found = through(LeverHook(selector, 2), data)
    turns, chosen = found["messages"], by_hand(ASKED, 2)
    assert [turn["role"] for turn in turns] == ["system", *TURN_ROLES]
    answers = [answer_of(name) for name in chosen]
    assert [turn["content"] for turn in turns[2::2]] == answers
    urls = [turn["content"][0]["image_url"]["url"] for turn in turns[1:4:2]]
    shown = [colour_at(base64.b64decode(url.partition(",")[2])) for url in urls]
    assert shown == [rgb(answer) for answer in answers]
    assert turns[-1] is asked
    assert found["tools"] == [1]
    assert found["metadata"]["lever_demos"] == chosen
    assert len(data["messages"]) == 2, "the caller's own request is left as it was"
    none = through(LeverHook(selector, 0), data)
    assert none["messages"] == data["messages"]


@pytest.mark.parametrize(
    "messages",
    [
        [*CHAT["messages"], {"role": "assistant", "content": "b"}, *CHAT["messages"]],
        [{"role": "system", "content": "a"}],
        [],
        None,
        "nonsense",
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": ["a part"]}],
        [{"role": "user", "content": [TEXT, picture("https://example.com/a.png")]}],
    ],
)
def test_what_is_no_single_question_passes_unchanged(
    selector: Selector, messages: Any
) -> None:
    data = {"messages": messages}
    assert through(LeverHook(selector, 2), data) is data


def test_a_failing_or_slow_choice_passes_the_request_unchanged_and_the_log_says_why(
    tmp_path: Path,
    selector: Selector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert through(LeverHook(tmp_path / "nowhere", 2), CHAT) is CHAT
    assert "nowhere" in caplog.text
    monkeypatch.setattr(selector, "select", lambda **_options: time.sleep(0.5))
    assert through(LeverHook(selector, 2, deadline_s=0.05), CHAT) is CHAT
    assert "TimeoutError" in caplog.text
    assert through(LeverHook(selector, 2), CHAT, "aembedding") is CHAT


def test_the_name_in_a_proxys_yaml_leads_to_the_hook_and_the_environment_names_the_bundle(
    reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litellm.proxy.types_utils.utils import get_instance_fn

    assert get_instance_fn("leverplus.adapters.litellm.hook") is hook
    assert isinstance(hook, litellm.integrations.custom_logger.CustomLogger)
    monkeypatch.setenv("LEVER_BUNDLE", "bundles/mine")
    monkeypatch.setenv("LEVER_SHOTS", "1")
    assert through(hook, CHAT)["metadata"]["lever_demos"] == by_hand(ASKED, 1)
    assert run_page("litellm")["shown"] == by_hand(ASKED, 2)
