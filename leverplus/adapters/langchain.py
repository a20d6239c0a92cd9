"""LangChain: demonstrations for `FewShotChatMessagePromptTemplate` and `FewShotPromptTemplate`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import Columns, open_selector
from leverplus.bundle.demo import Demo
from leverplus.bundle.selector import Allowed, Selector
from leverplus.errors import LeverError, needs_extra

with needs_extra("the adapter for LangChain"):
    from langchain_core.example_selectors import BaseExampleSelector
    from langchain_core.messages import convert_to_messages


class LeverExampleSelector(BaseExampleSelector):
    """Chooses the examples of a few-shot prompt.

    `question`, `image` and `answer` name the prompt's variables; where the bundle's demonstrations have several named
    inputs, variables of these names are the query, and an example has them too. `{image}` is base64 of the picture,
    `{image_type}` its media type. `shots` is how many (None: what the bundle recommends). `order` may be
    nearest_first, as LangChain's own selectors have it.

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
        order: str = "nearest_last",
        text_template: bool = False,
        allowed: Allowed | None = None,
    ) -> None:
        self.selector = open_selector(selector)
        self.columns = Columns(self.selector, question, image, answer, order)
        self.shots = shots
        self.allowed = allowed
        self.text_template = text_template

    def select_examples(
        self, input_variables: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The examples for a prompt's variables; none is a zero-shot prompt."""
        image = self.columns.image
        demos = self.columns.choose(input_variables, self.shots, allowed=self.allowed)
        seeing = [demo.image is not None for demo in demos]
        if any(seeing) and not all(seeing):
            raise LeverError(
                "some of the chosen demonstrations have a picture and some have none; one example prompt cannot show "
                "both: use LeverExampleSelector.messages, or limit the choice with allowed="
            )
        if demos and not any(seeing) and input_variables.get(image):
            warnings.warn(
                f"the prompt has a picture and the chosen demonstrations have none, so an example prompt with "
                f"{{{image}}} fails; leave it out there, or use LeverExampleSelector.messages",
                stacklevel=2,
            )
        return [self._example(demo) for demo in demos]

    def add_example(self, example: Mapping[str, Any]) -> str:
        """Add a demonstration, usable at once; its id."""
        answer = example.get(self.columns.answer)
        demo = {**self.columns.asked(example), "answer": answer}
        return self.selector.add([demo])[0]

    def messages(self, input_variables: Mapping[str, Any]) -> list[Any]:
        """The whole chat as LangChain messages: instruction, demonstrations with and without pictures, the query.

        `RunnableLambda(examples.messages, afunc=examples.amessages)` begins a chain with it.
        """
        asked = self.columns.asked(input_variables)
        chat = self.selector.messages(**asked, shots=self.shots, allowed=self.allowed)
        return list(convert_to_messages(chat))

    async def amessages(self, input_variables: Mapping[str, Any]) -> list[Any]:
        """The same without stopping the event loop."""
        return await asyncio.to_thread(self.messages, input_variables)

    def _example(self, demo: Demo) -> dict[str, Any]:
        example = self.columns.example(demo)
        if self.text_template:
            for name, text in example.items():
                example[name] = text.replace("{", "{{").replace("}", "}}")
        if url := demo.data_url():
            head, _, content = url.partition(",")
            example[self.columns.image] = content
            kind = head.removeprefix("data:").removesuffix(";base64")
            example[f"{self.columns.image}_type"] = kind
        return example
