"""lmms-eval: the conversation of a document; its message protocol takes it where the package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, answer_of, by_hand, colour_at, png, rgb, run_page

from leverplus.adapters.lmms_eval import doc_to_messages
from leverplus.errors import LeverError

DOC = {"question": ASKED, "image": {"bytes": png("yellow"), "path": None}, "question_id": 7}


@pytest.fixture
def messages(folder: Path) -> list[dict[str, Any]]:
    return doc_to_messages(DOC, {"lever_bundle": str(folder), "lever_shots": 2})


def test_demonstrations_are_turns_and_the_document_comes_last(messages: list[dict[str, Any]]) -> None:
    assert [turn["role"] for turn in messages] == ["user", "assistant", "user", "assistant", "user"]
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [turn["content"][0]["text"] for turn in messages if turn["role"] == "assistant"] == chosen
    pictures = [colour_at(turn["content"][0]["url"]) for turn in messages if turn["role"] == "user"]
    assert pictures == [*map(rgb, chosen), rgb("yellow")]
    assert messages[-1]["content"][1]["text"] == ASKED


def test_texts_of_the_yaml_stand_around_every_question(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVER_BUNDLE", str(folder))
    found = doc_to_messages(
        {"text": ASKED}, {"lever_question": "text", "pre_prompt": "Look. ", "post_prompt": " One word."}
    )
    assert [turn["content"][-1]["text"] for turn in found if turn["role"] == "user"][-1] == f"Look. {ASKED} One word."
    assert found[0]["content"][-1]["text"].startswith("Look. what colour")


def test_a_document_that_the_bundle_holds_is_not_shown_itself(folder: Path) -> None:
    found = doc_to_messages({"question": ASKED, "image": png("red")}, {"lever_bundle": str(folder), "lever_shots": 3})
    assert "red" not in [turn["content"][0].get("text") for turn in found if turn["role"] == "assistant"]


def test_what_is_missing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVER_BUNDLE", raising=False)
    with pytest.raises(LeverError, match="set LEVER_BUNDLE, or lever_bundle"):
        doc_to_messages(DOC)
    with pytest.raises(LeverError, match="has no column 'text'"):
        doc_to_messages(DOC, {"lever_bundle": str(folder), "lever_question": "text"})


@pytest.mark.filterwarnings("default")
def test_the_protocol_of_lmms_eval_keeps_roles_and_order(messages: list[dict[str, Any]]) -> None:
    if importlib.util.find_spec("lmms_eval") is None:
        pytest.skip("lmms-eval is not installed; type `make test-adapters`")
    from lmms_eval.protocol import ChatMessages

    chat = ChatMessages(messages=messages)
    pictures, _, _ = chat.extract_media()
    assert [colour_at(picture) for picture in pictures] == [
        *(rgb(answer_of(name)) for name in by_hand(ASKED, 2)), rgb("yellow"),
    ]  # fmt: skip
    assert [turn["role"] for turn in chat.to_hf_messages()] == [turn["role"] for turn in messages]
    openai = chat.to_openai_messages()
    assert [turn["role"] for turn in openai] == [turn["role"] for turn in messages]
    assert openai[0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


def test_the_page_runs(reader: Path) -> None:
    assert len(run_page("lmms_eval")["messages"]) == 5
