"""LlamaIndex: demonstrations as a variable of a prompt and as a retriever."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, answer_of, by_hand, colour_at, png, rgb, run_page

from leverplus.errors import LeverError
from leverplus.selector.selector import Selector

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed; type `make test-adapters`")

from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.schema import QueryBundle

from leverplus.adapters.llama_index import LeverRetriever, lever_demos

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend

TURNS = """{% for d in demos %}
{% chat role="user" %}{% if d.image %}{{ d.image | image }}{% endif %}{{ d.question }}{% endchat %}
{% chat role="assistant" %}{{ d.answer }}{% endchat %}{% endfor %}
{% chat role="user" %}{{ image | image }}{{ question }}{% endchat %}"""


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A photograph below the current folder: templates refuse to read pictures elsewhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_bytes(png("yellow"))
    return str(tmp_path / "photo.png")


def colours_of(messages: list[Any]) -> list[tuple[int, int, int]]:
    blocks = [block for message in messages for block in message.blocks if block.block_type == "image"]
    return [colour_at(block.resolve_image().read()) for block in blocks]


def test_a_prompt_has_the_chosen_turns_with_their_pictures(selector: Selector, photo: str) -> None:
    prompt = RichPromptTemplate(TURNS, function_mappings={"demos": lever_demos(selector, 2)})
    messages = prompt.format_messages(question=ASKED, image=photo)
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [message.role.value for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message.content for message in messages if message.role.value == "assistant"] == chosen
    assert colours_of(messages) == [*map(rgb, chosen), rgb("yellow")]


def test_demonstrations_with_and_without_pictures_share_a_template(mixed_selector: Selector, photo: str) -> None:
    prompt = RichPromptTemplate(TURNS, function_mappings={"demos": lever_demos(mixed_selector, 6)})
    messages = prompt.format_messages(question=ASKED, image=photo)
    assert len(messages) == 13
    assert len(colours_of(messages)) == 4


def test_order_and_variables_are_checked(selector: Selector) -> None:
    first = lever_demos(selector, 3, order="nearest_first")(question=ASKED)
    assert [demo.answer for demo in first] == [answer_of(name) for name in by_hand(ASKED, 3)][::-1]
    with pytest.raises(LeverError, match="no variable 'question'"):
        lever_demos(selector)(query=ASKED)
    with pytest.raises(LeverError, match="nearest_last, nearest_first"):
        lever_demos(selector, order="best")


def test_the_retriever_gives_nodes_nearest_first_sync_and_async(selector: Selector, photo: str) -> None:
    retriever = LeverRetriever(selector, 2)
    query = QueryBundle(ASKED, image_path=photo)
    nodes = retriever.retrieve(query)
    assert [node.node.node_id for node in nodes] == by_hand(ASKED, 2)[::-1]
    assert [node.node.metadata["answer"] for node in nodes] == [answer_of(name) for name in by_hand(ASKED, 2)][::-1]
    assert nodes[0].score > nodes[1].score
    assert colour_at(Path(nodes[0].node.image_path).read_bytes()) == rgb("red")
    found = asyncio.run(retriever.aretrieve(query))
    assert [node.node.node_id for node in found] == [node.node.node_id for node in nodes]


def test_the_page_runs(reader: Path) -> None:
    messages = run_page("llama_index")["messages"]
    assert colours_of(messages) == [*(rgb(answer_of(name)) for name in by_hand(ASKED, 2)), rgb("yellow")]


def test_pictures_of_a_prompt_are_data_urls(selector: Selector) -> None:
    shown = lever_demos(selector, 1)(question=ASKED)[0].image or ""
    assert colour_at(base64.b64decode(shown.removeprefix("data:image/png;base64,"))) == rgb("red")
