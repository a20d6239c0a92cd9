"""litellm: the hook of its proxy puts demonstrations into chats, and never stands in the way of a call."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, answer_of, by_hand, colour_at, png, rgb, run_page

from leverplus.selector.selector import Selector

pytest.importorskip("litellm", reason="litellm is not installed; type `make test-adapters`")

import litellm

from leverplus.adapters.litellm import LeverHook, hook

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend

URL = "data:image/png;base64," + base64.b64encode(png("yellow")).decode()


def through(hook: LeverHook, data: dict[str, Any], call_type: str = "acompletion") -> dict[str, Any]:
    return asyncio.run(hook.async_pre_call_hook(None, None, data, call_type))


def test_demonstrations_stand_before_the_last_user_turn_with_their_pictures(selector: Selector) -> None:
    asked = {
        "role": "user",
        "content": [{"type": "text", "text": ASKED}, {"type": "image_url", "image_url": {"url": URL}}],
    }
    data = {"model": "m", "messages": [{"role": "system", "content": "Be short."}, asked], "tools": [1]}
    found = through(LeverHook(selector, 2), data)
    assert [turn["role"] for turn in found["messages"]] == ["system", "user", "assistant", "user", "assistant", "user"]
    chosen = by_hand(ASKED, 2)
    assert [turn["content"] for turn in found["messages"] if turn["role"] == "assistant"] == [*map(answer_of, chosen)]
    shown = [turn["content"][0]["image_url"]["url"] for turn in found["messages"][1:4:2]]
    assert [colour_at(base64.b64decode(url.partition(",")[2])) for url in shown] == [
        rgb(answer_of(name)) for name in chosen
    ]
    assert found["messages"][-1] is asked
    assert found["tools"] == [1]
    assert found["metadata"]["lever_demos"] == chosen
    assert len(data["messages"]) == 2, "the caller's own request is left as it was"


@pytest.mark.parametrize(
    "data",
    [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ]
        },
        {"messages": [{"role": "system", "content": "a"}]},
        {"messages": []},
        {"input": "a text to embed"},
        {"messages": [{"role": "user", "content": ""}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}
            ]
        },
        {"messages": "nonsense"},
    ],
)
def test_what_is_no_single_question_passes_unchanged(selector: Selector, data: dict[str, Any]) -> None:
    assert through(LeverHook(selector, 2), data) is data


def test_a_failing_or_slow_choice_passes_the_request_unchanged_and_the_log_says_why(
    tmp_path: Path, selector: Selector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"messages": [{"role": "user", "content": ASKED}]}
    with caplog.at_level(logging.WARNING):
        assert through(LeverHook(tmp_path / "nowhere", 2), data) is data
    assert "nowhere" in caplog.text
    monkeypatch.setattr(selector, "select", lambda **_options: time.sleep(0.5))
    assert through(LeverHook(selector, 2, deadline_s=0.05), data) is data
    assert "TimeoutError" in caplog.text


def test_other_kinds_of_calls_are_left_alone(selector: Selector) -> None:
    data = {"messages": [{"role": "user", "content": ASKED}]}
    assert through(LeverHook(selector, 2), data, "aembedding") is data


def test_the_name_in_a_proxys_yaml_leads_to_the_hook_and_the_environment_names_the_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litellm.proxy.types_utils.utils import get_instance_fn

    assert get_instance_fn("leverplus.adapters.litellm.hook") is hook
    assert isinstance(hook, litellm.integrations.custom_logger.CustomLogger)
    monkeypatch.setenv("LEVER_BUNDLE", str(folder))
    monkeypatch.setenv("LEVER_SHOTS", "1")
    found = through(hook, {"messages": [{"role": "user", "content": ASKED}]})
    assert found["metadata"]["lever_demos"] == by_hand(ASKED, 1)


def test_the_page_runs(reader: Path) -> None:
    assert run_page("litellm")["request"]["metadata"]["lever_demos"] == by_hand(ASKED, 2)
