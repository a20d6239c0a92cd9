"""LangChain: examples for its prompts, with pictures, in both kinds of call."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    animals,
    answer_of,
    by_hand,
    colour_at,
    encoded,
    make_bundle,
    png,
    rgb,
    run_page,
)

from leverplus.bundle.selector import Selector
from leverplus.errors import LeverError

pytest.importorskip(
    "langchain_core", reason="langchain-core is not installed; type `make test`"
)

from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda

from leverplus.adapters.langchain import LeverExampleSelector

BLOCK = {"type": "image", "base64": "{image}", "mime_type": "{image_type}"}
TURN = [BLOCK, {"type": "text", "text": "{question}"}]
LAST = [{**BLOCK, "mime_type": "image/png"}, TURN[1]]
QUERY = {"question": ASKED, "image": encoded("yellow")}
KINDS = {"user": "human", "assistant": "ai"}


def chat_prompt(examples: LeverExampleSelector, turn: Any, last: Any) -> Any:
    shown = ChatPromptTemplate.from_messages([("human", turn), ("ai", "{answer}")])
    shots = FewShotChatMessagePromptTemplate(
        example_selector=examples,
        example_prompt=shown,
        input_variables=["question", "image"],
    )
    return ChatPromptTemplate.from_messages([shots, ("human", last)])


def colours_of(messages: list[Any]) -> list[tuple[int, int, int]]:
    """The colours of the pictures of a chat, in order."""
    found = []
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            url = block.get("base64") or block.get("image_url", {}).get("url", "")
            if url:
                found.append(colour_at(base64.b64decode(url.rpartition(",")[2])))
    return found


def test_a_chat_prompt_holds_the_chosen_turns_with_their_pictures(
    selector: Selector,
) -> None:
    prompt = chat_prompt(LeverExampleSelector(selector, 2), TURN, LAST)
    messages = prompt.invoke(QUERY).to_messages()
    assert [message.type for message in messages] == [KINDS[own] for own in TURN_ROLES]
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [message.content for message in messages if message.type == "ai"] == chosen
    assert colours_of(messages) == [*map(rgb, chosen), rgb("yellow")]
    many = [{**QUERY, "question": f"is it a {word}"} for word in ("dog", "fish")]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(prompt.ainvoke(one) for one in many)))

    assert asyncio.run(together()) == [prompt.invoke(one) for one in many]
    none = chat_prompt(LeverExampleSelector(selector, 0), TURN, LAST).invoke(QUERY)
    assert [message.type for message in none.to_messages()] == ["human"]


def test_a_demonstration_with_braces_is_shown_as_it_is_in_both_kinds_of_prompt(
    tmp_path: Path,
) -> None:
    """FewShotPromptTemplate formats the examples twice, the chat template once."""
    rows = [{"id": "json", "question": "what is {this}", "answer": '{"a": {b}}'}]
    folder = make_bundle(tmp_path / "braces", rows)
    line = PromptTemplate.from_template("Q: {question}\nA: {answer}")

    def text_prompt(**options: Any) -> str:
        prompt = FewShotPromptTemplate(
            example_selector=LeverExampleSelector(folder, 1, **options),
            example_prompt=line,
            suffix="Q: {question}\nA:",
            input_variables=["question"],
        )
        return prompt.format(question="what is that")

    with pytest.raises(KeyError, match="this"):
        text_prompt()
    shown = 'Q: what is {this}\nA: {"a": {b}}\n\nQ: what is that\nA:'
    assert text_prompt(text_template=True) == shown
    prompt = chat_prompt(LeverExampleSelector(folder, 1), "{question}", "{question}")
    found = [message.content for message in prompt.format_messages(question="what")]
    assert found == ["what is {this}", '{"a": {b}}', "what"]


def test_a_mixture_of_pictures_and_none_is_refused_for_one_prompt_and_told_as_messages(
    mixed_selector: Selector, text_folder: Path
) -> None:
    examples, words = LeverExampleSelector(mixed_selector, 2), "what is the dog cat"
    with pytest.raises(LeverError, match="one example prompt cannot show both"):
        examples.select_examples({"question": words})
    chain = RunnableLambda(examples.messages, afunc=examples.amessages)
    asked = {"question": words, "image": png("yellow")}
    messages = chain.invoke(asked)
    assert [message.type for message in messages] == [KINDS[own] for own in TURN_ROLES]
    assert len(colours_of(messages)) == 2, "one demonstration's and the query's"
    assert asyncio.run(chain.ainvoke(asked)) == messages
    with pytest.warns(UserWarning, match=r"an example prompt with \{image\} fails"):
        LeverExampleSelector(text_folder, 1).select_examples(QUERY)


def test_an_added_example_is_chosen_at_once_sync_and_async(folder: Path) -> None:
    examples = LeverExampleSelector(Selector.load(folder), 1)
    added = {"question": "is the zebra pink", "answer": "no", "image": encoded("pink")}
    name = examples.add_example(added)
    (found,) = examples.select_examples({"question": "is the zebra pink"})
    assert found == {**added, "image": found["image"], "image_type": "image/png"}
    assert colour_at(base64.b64decode(found["image"])) == rgb("pink")
    assert Selector.load(folder).source.rows_of([name])
    wolf = {"question": "is the wolf here", "answer": "yes", "image": encoded("silver")}
    asyncio.run(examples.aadd_example(wolf))
    (found,) = asyncio.run(examples.aselect_examples(wolf))
    assert found["answer"] == "yes"
    with pytest.raises(LeverError, match="needs an answer"):
        examples.add_example({"question": "why"})


def test_named_inputs_of_a_bundle_are_the_query_and_stand_in_the_examples(
    tmp_path: Path,
) -> None:
    rows = []
    for name in ("dog", "cat", "horse"):
        fields = {"context": f"the {name} is here", "task": "where is it"}
        rows.append({"id": name, "fields": fields, "answer": name})
    examples = LeverExampleSelector(make_bundle(tmp_path / "notes", rows), 1)
    asked = {"context": "the cat is here", "task": "where is it"}
    (found,) = examples.select_examples(asked)
    assert (found["context"], found["answer"]) == ("the cat is here", "cat")
    assert examples.add_example({**asked, "context": "a bird", "answer": "bird"})
    with pytest.raises(LeverError, match=r"no 'question' \(there are: story\)"):
        examples.select_examples({"story": "a bird"})


def test_the_page_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    messages = run_page("langchain", 1)["messages"]
    assert colours_of(messages) == [*map(rgb, chosen), rgb("yellow")]
    make_bundle(reader / "texts" / "bundles" / "mine", animals(pictures=False))
    monkeypatch.chdir(reader / "texts")
    messages = run_page("langchain")["messages"]
    assert [messages[0].content, messages[-1].content] == ["Answer in one word.", ASKED]
    assert [message.content for message in messages if message.type == "ai"] == chosen
