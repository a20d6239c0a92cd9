"""LangChain: examples for its prompts, with pictures, in both kinds of call."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, animals, answer_of, by_hand, colour_at, make_bundle, png, rgb, run_page
from tiny_world import TinyRun

from leverplus.errors import LeverError
from leverplus.selector.pack import pack_run
from leverplus.selector.selector import Selector

pytest.importorskip("langchain_core", reason="langchain-core is not installed; type `make test`")

from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda

from leverplus.adapters.langchain import LeverExampleSelector

BLOCK = {"type": "image", "base64": "{image}", "mime_type": "image/png"}
TURN = [BLOCK, {"type": "text", "text": "{question}"}]


def chat_prompt(examples: LeverExampleSelector, content: Any) -> ChatPromptTemplate:
    turn = ChatPromptTemplate.from_messages([("human", content), ("ai", "{answer}")])
    shots = FewShotChatMessagePromptTemplate(
        example_selector=examples, example_prompt=turn, input_variables=["question", "image"]
    )
    return ChatPromptTemplate.from_messages([("system", "Answer in one word."), shots, ("human", content)])


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def colours_of(messages: list[Any]) -> list[tuple[int, int, int]]:
    """The colours of the pictures of a chat, in order."""
    blocks = [block for message in messages if isinstance(message.content, list) for block in message.content]
    urls = [block.get("base64") or block.get("image_url", {}).get("url", "") for block in blocks]
    return [colour_at(base64.b64decode(url.rpartition(",")[2])) for url in urls if url]


def test_a_chat_prompt_holds_the_chosen_turns_with_their_pictures(selector: Selector) -> None:
    prompt = chat_prompt(LeverExampleSelector(selector, 2), TURN)
    messages = prompt.invoke({"question": ASKED, "image": encoded(png("yellow"))}).to_messages()
    assert [message.type for message in messages] == ["system", "human", "ai", "human", "ai", "human"]
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [message.content for message in messages if message.type == "ai"] == chosen
    assert colours_of(messages) == [*map(rgb, chosen), rgb("yellow")], "pictures in place, the query's last"


def test_ainvoke_gives_what_invoke_gives(selector: Selector) -> None:
    prompt = chat_prompt(LeverExampleSelector(selector, 2), TURN)
    asked = {"question": ASKED, "image": encoded(png("yellow"))}
    many = [{**asked, "question": f"what is the {word}"} for word in ("dog", "fish", "bird")]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(prompt.ainvoke(one) for one in many)))

    assert asyncio.run(together()) == [prompt.invoke(one) for one in many]


def test_a_prompt_without_demonstrations_is_a_zero_shot_prompt(selector: Selector) -> None:
    prompt = chat_prompt(LeverExampleSelector(selector, 0), TURN)
    messages = prompt.invoke({"question": ASKED, "image": encoded(png("yellow"))}).to_messages()
    assert [message.type for message in messages] == ["system", "human"]


def test_a_demonstration_with_braces_is_shown_as_it_is_in_both_kinds_of_prompt(tmp_path: Path) -> None:
    """FewShotPromptTemplate formats the examples twice, the chat template once."""
    rows = [{"id": "json", "question": "what is {this}", "answer": '{"a": {b}}'}]
    folder = make_bundle(tmp_path / "braces", rows)
    line = PromptTemplate.from_template("Q: {question}\nA: {answer}")

    def text_prompt(**options: Any) -> FewShotPromptTemplate:
        return FewShotPromptTemplate(
            example_selector=LeverExampleSelector(folder, 1, **options),
            example_prompt=line,
            suffix="Q: {question}\nA:",
            input_variables=["question"],
        )

    with pytest.raises(KeyError, match="this"):
        text_prompt().format(question="what is that")
    said = text_prompt(text_template=True).format(question="what is that")
    assert said == 'Q: what is {this}\nA: {"a": {b}}\n\nQ: what is that\nA:'
    messages = chat_prompt(LeverExampleSelector(folder, 1), "{question}").format_messages(question="what is that")
    assert [message.content for message in messages[1:3]] == ["what is {this}", '{"a": {b}}']


def test_nearest_is_last_unless_nearest_first_is_asked_for(selector: Selector) -> None:
    asked = {"question": ASKED}
    last = [example["answer"] for example in LeverExampleSelector(selector, 3).select_examples(asked)]
    first = LeverExampleSelector(selector, 3, order="nearest_first").select_examples(asked)
    assert last == [answer_of(name) for name in by_hand(ASKED, 3)]
    assert [example["answer"] for example in first] == last[::-1]
    with pytest.raises(LeverError, match="nearest_last, nearest_first"):
        LeverExampleSelector(selector, order="random")


def test_a_mixture_of_pictures_and_none_is_refused_for_one_example_prompt_and_told_as_messages(
    mixed_selector: Selector,
) -> None:
    examples = LeverExampleSelector(mixed_selector, 2)
    with pytest.raises(LeverError, match="one example prompt cannot show both"):
        examples.select_examples({"question": "what colour is the dog cat"})
    chain = RunnableLambda(examples.messages, afunc=examples.amessages)
    messages = chain.invoke({"question": "what colour is the dog cat", "image": png("yellow")})
    assert [message.type for message in messages] == ["human", "ai", "human", "ai", "human"]
    assert len(colours_of(messages)) == 2, "one demonstration and the query have a picture"
    assert asyncio.run(chain.ainvoke({"question": "what colour is the dog cat", "image": png("yellow")})) == messages


def test_an_added_example_is_chosen_at_once_sync_and_async(folder: Path) -> None:
    examples = LeverExampleSelector(Selector.load(folder), 1)
    name = examples.add_example(
        {"question": "what colour is the zebra", "answer": "striped", "image": encoded(png("pink"))}
    )
    found = examples.select_examples({"question": "what colour is the zebra"})[0]
    assert (found["answer"], found["image_type"]) == ("striped", "image/png")
    assert colour_at(base64.b64decode(found["image"])) == rgb("pink")
    assert name in Selector.load(folder).source.store.rows_of([name])  # type: ignore[attr-defined]
    added = {"question": "what colour is the wolf", "answer": "silver", "image": encoded(png("silver"))}
    asyncio.run(examples.aadd_example(added))
    found = asyncio.run(examples.aselect_examples({"question": "what colour is the wolf"}))[0]
    assert found["answer"] == "silver"
    with pytest.raises(LeverError, match="the example has no 'answer'; it has question"):
        examples.add_example({"question": "why"})


@pytest.mark.parametrize("form", ["path", "data_url"])
def test_a_picture_is_given_in_the_form_that_a_template_wants(selector: Selector, form: str) -> None:
    found = LeverExampleSelector(selector, 1, picture=form).select_examples({"question": ASKED})[0]["image"]
    content = (
        Path(found).read_bytes() if form == "path" else base64.b64decode(found.removeprefix("data:image/png;base64,"))
    )
    assert colour_at(content) == rgb("red")


def test_a_prompt_that_lacks_the_question_is_told_so(selector: Selector) -> None:
    with pytest.raises(LeverError, match=r"no variable 'question' \(it has: text\)"):
        LeverExampleSelector(selector).select_examples({"text": "a"})


def test_a_trained_selector_that_sees_pictures_chooses_as_by_itself(tiny_run: TinyRun, tmp_path: Path) -> None:
    from leverplus.experiment.opening import load_run

    run = load_run(tiny_run.folder, at_work=False)
    trained = Selector.load(pack_run(run, tmp_path / "world", arm="learned"))
    item = run.task.items("test")[0]
    picture = run.task.image(item)
    expected = [demo.answer for demo in trained.select(question=item.question, image=picture, shots=2)]
    found = LeverExampleSelector(trained, 2).select_examples({"question": item.question, "image": picture})
    assert [example["answer"] for example in found] == expected
    assert all(example["image"] for example in found)


def test_the_example_with_texts_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bundle(tmp_path / "bundles" / "mine", animals(pictures=False))
    monkeypatch.chdir(tmp_path)
    messages = run_page("langchain")["messages"]
    chosen = by_hand(ASKED, 2)
    turns = [text for name in chosen for text in (f"what colour is the {name}", answer_of(name))]
    assert [message.content for message in messages] == ["Answer in one word.", *turns, ASKED]


def test_the_example_with_pictures_on_the_page_runs(reader: Path) -> None:
    messages = run_page("langchain", 1)["messages"]
    assert [message.type for message in messages] == ["system", "human", "ai", "human", "ai", "human"]
    assert colours_of(messages) == [rgb(answer_of(name)) for name in by_hand(ASKED, 2)] + [rgb("yellow")]
