"""lmms-eval: the conversation of a document; its message protocol takes it where the package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    answer_of,
    by_hand,
    colour_at,
    png,
    rgb,
    run_page,
)

from leverplus.adapters.lmms_eval import doc_to_messages
from leverplus.errors import LeverError

DOC = {"question": ASKED, "image": {"bytes": png("yellow"), "path": None}}


def test_demonstrations_are_turns_and_the_document_comes_last(folder: Path) -> None:
    turns = doc_to_messages(DOC, {"lever_bundle": str(folder), "lever_shots": 2})
    assert [turn["role"] for turn in turns] == TURN_ROLES
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [turn["content"][0]["text"] for turn in turns[1::2]] == chosen
    pictures = [colour_at(turn["content"][0]["url"]) for turn in turns[::2]]
    assert pictures == [*map(rgb, chosen), rgb("yellow")]
    assert turns[-1]["content"][1]["text"] == ASKED


def test_texts_of_the_yaml_stand_around_every_question_and_a_document_is_not_shown_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVER_BUNDLE", str(folder))
    options: dict[str, Any] = {"pre_prompt": "Look. ", "post_prompt": " One word."}
    options |= {"lever_question": "text", "lever_shots": 3}
    turns = doc_to_messages({"text": ASKED, "image": png("red")}, options)
    texts = [turn["content"][-1]["text"] for turn in turns]
    assert texts[-1] == f"Look. {ASKED} One word."
    assert texts[0].startswith("Look. what colour")
    assert len(texts) == 7
    assert "red" not in texts, "it is on the document's own picture"


def test_what_is_missing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVER_BUNDLE", raising=False)
    with pytest.raises(LeverError, match="set the environment variable LEVER_BUNDLE"):
        doc_to_messages(DOC)
    with pytest.raises(LeverError, match="there is no 'text'"):
        doc_to_messages(DOC, {"lever_bundle": str(folder), "lever_question": "text"})


@pytest.mark.filterwarnings("default")
def test_the_protocol_of_lmms_eval_keeps_roles_and_order(reader: Path) -> None:
    messages = run_page("lmms_eval")["messages"]
    assert [turn["role"] for turn in messages] == TURN_ROLES
    if importlib.util.find_spec("lmms_eval") is None:
        pytest.skip("lmms-eval is not installed; type `make test-adapters`")
    from lmms_eval.protocol import ChatMessages

    chat = ChatMessages(messages=messages)
    colours = [rgb(answer_of(name)) for name in by_hand(ASKED, 2)]
    pictures = [colour_at(picture) for picture in chat.extract_media()[0]]
    assert pictures == [*colours, rgb("yellow")]
    for form in (chat.to_hf_messages(), chat.to_openai_messages()):
        assert [turn["role"] for turn in form] == TURN_ROLES
    assert form[0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64")
