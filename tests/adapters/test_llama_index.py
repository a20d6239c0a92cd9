"""LlamaIndex: demonstrations as a variable of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    answer_of,
    by_hand,
    colour_at,
    page_of,
    png,
    rgb,
    run_page,
)

from leverplus.bundle.selector import Selector
from leverplus.errors import LeverError

pytest.importorskip(
    "llama_index.core",
    reason="llama-index-core is not installed; type `make test-adapters`",
)

from llama_index.core.prompts import RichPromptTemplate

from leverplus.adapters.llama_index import lever_demos

# the package's own warnings are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")


def colours_of(messages: list[Any]) -> list[tuple[int, int, int]]:
    found = []
    for message in messages:
        for block in message.blocks:
            if block.block_type == "image":
                found.append(colour_at(block.resolve_image().read()))
    return found


def test_the_page_has_the_chosen_turns_with_their_pictures(reader: Path) -> None:
    messages = run_page("llama_index")["messages"]
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [message.role.value for message in messages] == TURN_ROLES
    assert [message.content for message in messages[1::2]] == chosen
    assert colours_of(messages) == [*map(rgb, chosen), rgb("yellow")]


def test_demonstrations_with_and_without_pictures_share_a_template(
    mixed_selector: Selector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # templates refuse to read pictures elsewhere
    Path("photo.png").write_bytes(png("yellow"))
    template = page_of("llama_index").split('"""')[1]
    mapping = {"demos": lever_demos(mixed_selector, 6)}
    prompt = RichPromptTemplate(template, function_mappings=mapping)
    messages = prompt.format_messages(question=ASKED, image="photo.png")
    assert (len(messages), len(colours_of(messages))) == (13, 4)


def test_order_and_variables_are_checked(selector: Selector) -> None:
    first = lever_demos(selector, 3, order="nearest_first")(question=ASKED)
    expected = [answer_of(name) for name in by_hand(ASKED, 3)]
    assert [demo["answer"] for demo in first] == expected[::-1]
    with pytest.raises(LeverError, match="there is no 'question'"):
        lever_demos(selector)(query=ASKED)
