"""LangChain: demonstrations for `FewShotChatMessagePromptTemplate` and `FewShotPromptTemplate`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import as_picture, base64_of, in_order, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.demo import Demo
from leverplus.selector.selector import Allowed, Selector

require_framework("langchain_core.example_selectors", "langchain")
from langchain_core.example_selectors import BaseExampleSelector  # noqa: E402 after the sentence about what is missing

FORMS = ("base64", "data_url", "path")
"""How `{image}` gives a demonstration's picture to the example prompt."""


class LeverExampleSelector(BaseExampleSelector):
    """Chooses the examples of a few-shot prompt.

    `question`, `image` and `answer` name the prompt's variables; beside `{image}` an example has `{image_type}`, its
    media type. `shots` is how many (None: what the bundle recommends). `picture` is the form of `{image}`: base64,
    data_url or path. `order` may be nearest_first, as LangChain's own selectors have it.

    Set `text_template=True` for `FewShotPromptTemplate`, which formats an example twice: there, braces in a
    demonstration must be doubled. `FewShotChatMessagePromptTemplate` formats once and needs none of that.
    """

    def __init__(
        self,
        selector: Selector | str | Path,
        shots: int | None = None,
        *,
        question: str = "question",
        image: str = "image",
        answer: str = "answer",
        picture: str = "base64",
        order: str = "nearest_last",
        text_template: bool = False,
        allowed: Allowed | None = None,
    ) -> None:
        self.selector = open_selector(selector)
        self.shots = self.selector.check_shots(self.selector.shots if shots is None else shots)
        if picture not in FORMS:
            raise LeverError(f'picture = "{picture}": must be one of {", ".join(FORMS)}')
        self.question, self.image, self.answer = question, image, answer
        self.picture, self.order, self.text_template, self.allowed = picture, order, text_template, allowed
        in_order([], order)  # a wrong order is refused here, not at the first query

    def select_examples(self, input_variables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The examples for a prompt's variables; none is a zero-shot prompt."""
        demos = self._chosen(input_variables)
        seeing = [demo for demo in demos if demo.picture is not None]
        if seeing and len(seeing) < len(demos):
            blind = next(demo for demo in demos if demo.picture is None)
            raise LeverError(
                f"demonstration {seeing[0].id} has a picture and {blind.id} has none; one example prompt cannot show "
                "both: use LeverExampleSelector.messages, or limit the choice with allowed="
            )
        return [self._example(demo) for demo in demos]

    def add_example(self, example: Mapping[str, Any]) -> str:
        """Add a demonstration, usable at once; its id."""
        missing = [name for name in (self.question, self.answer) if name not in example]
        if missing:
            raise LeverError(f"the example has no '{missing[0]}'; it has {', '.join(map(str, example)) or 'nothing'}")
        demo = {"question": example[self.question], "answer": example[self.answer]}
        if example.get(self.image):
            demo["image"] = as_picture(example[self.image])
        return self.selector.add([demo])[0]

    def messages(self, input_variables: Mapping[str, Any]) -> list[Any]:
        """The whole chat as LangChain messages: instruction, demonstrations with and without pictures, the query.

        `RunnableLambda(examples.messages, afunc=examples.amessages)` begins a chain with it.
        """
        from langchain_core.messages import convert_to_messages

        chat = self.selector.messages(
            question=self._asked(input_variables),
            image=as_picture(input_variables.get(self.image)),
            shots=self.shots,
            allowed=self.allowed,
        )
        found: list[Any] = convert_to_messages(chat)
        return found

    async def amessages(self, input_variables: Mapping[str, Any]) -> list[Any]:
        """The same without stopping the event loop."""
        return await asyncio.to_thread(self.messages, input_variables)

    def _asked(self, variables: Mapping[str, Any]) -> str:
        if self.question not in variables:
            known = ", ".join(sorted(map(str, variables))) or "none"
            raise LeverError(
                f"the prompt has no variable '{self.question}' (it has: {known}); list it in input_variables, or name "
                "the right one with question="
            )
        return str(variables[self.question])

    def _chosen(self, variables: Mapping[str, Any]) -> list[Demo]:
        image = as_picture(variables.get(self.image))
        demos = self.selector.select(
            question=self._asked(variables), image=image, shots=self.shots, allowed=self.allowed
        )
        return in_order(demos, self.order)

    def _example(self, demo: Demo) -> dict[str, Any]:
        example = {self.question: self._safe(demo.question), self.answer: self._safe(demo.answer)}
        if demo.picture is None:
            return example
        shown: str | None
        shown, kind = base64_of(demo)
        if self.picture == "data_url":
            shown = f"data:{kind};base64,{shown}"
        elif self.picture == "path":
            shown = demo.image_path
        return example | {self.image: shown, f"{self.image}_type": kind}

    def _safe(self, text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}") if self.text_template else text
