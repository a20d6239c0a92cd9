"""The `callable` backend: a Python function answers, given one text or the turns of a chat.

    def ask(prompt: str) -> str: ...                   model.prompt = "plain"
    def ask(messages: list[dict]) -> str: ...          model.prompt = "chat"
    async def ask(prompt: str) -> str: ...             several at a time, model.concurrency of them

A plain function is called one prompt at a time, because nobody knows whether it may run in several threads.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from leverplus import catalog
from leverplus.data.tasks.base import Task
from leverplus.errors import LeverError, ScoringError
from leverplus.models.base import Answered, Reply, Request, in_order
from leverplus.models.prompts import ServerPrompts
from leverplus.models.settings import ModelSection

Function = Callable[[Any], Any]

_given: dict[str, Function] = {}
"""Functions that were handed over as objects in this process, by the name that recipes know them by."""


def name_function(function: Function) -> str:
    """The name `module:attribute` of a function for `model.name`; one that cannot be imported is kept under it.

    >>> name_function(textwrap.dedent)
    'textwrap:dedent'
    """
    own = getattr(function, "__qualname__", type(function).__qualname__)
    attribute = own.replace("<", "").replace(">", "").replace(".", "_")
    name = f"{getattr(function, '__module__', None) or 'given'}:{attribute}"
    _given[name] = function
    return name


def takes_messages(function: Function) -> bool:
    """Whether a function wants the turns of a chat, which its first parameter says by its name."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in functions tell nothing
        return False
    return parameters[:1] in (["messages"], ["chat"], ["turns"])


def load_function(name: str) -> Function:
    """The function called `name`: one handed over in this process, else the attribute of a module."""
    if name in _given:
        return _given[name]
    function: Function = catalog.load({}, name, "model")
    if not callable(function):
        raise LeverError(
            f'model.name = "{name}" is a {type(function).__name__}, not a function of a prompt'
        )
    return function


class CallableBackend:
    """Asks a function; it gives no log-probabilities, so answers are written and judged."""

    weighs = False

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.section = section
        self.function = load_function(section.name)
        self.prompts = ServerPrompts(section, task)
        self.chat = self.prompts.chat

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        written = repr(self.prompts.shape)
        shape = sha256(written.encode()).hexdigest()[:12]
        return {
            "model": section.name,
            "revision": section.revision or source_digest(self.function),
            "template": f"callable-{section.prompt}-{shape}",
            "decoding": "by the function",
        }

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        return in_order(self.stream(requests))

    def stream(
        self, requests: Sequence[Request]
    ) -> Generator[list[Answered], None, None]:
        """Answers as they come: one at a time, or `model.concurrency` together where the function is asynchronous."""
        several = inspect.iscoroutinefunction(self.function)
        size = self.section.concurrency if several else 1
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            began = time.perf_counter()
            if several:
                raws = asyncio.run(self._together(part))
            else:
                try:
                    raws = [self._call(part[0])]
                except Exception as error:  # whatever a user's function does
                    raws = [error]
            seconds = (time.perf_counter() - began) / len(part)  # each took its share
            answered: list[Answered] = []
            failure = None
            for place, raw in enumerate(raws):
                if isinstance(raw, str):
                    reply = Reply(self._own_answer(raw), None, 0)
                    answered.append(Answered(start + place, reply, seconds))
                else:
                    failure = failure or self._failed(part[place], raw)
            if answered:
                yield answered
            if failure is not None:
                raise failure

    def _call(self, request: Request) -> Any:
        prompts = self.prompts
        return self.function(
            prompts.turns(request) if self.chat else prompts.text(request)
        )

    async def _together(self, requests: Sequence[Request]) -> list[Any]:
        return await asyncio.gather(*map(self._call, requests), return_exceptions=True)

    def _own_answer(self, raw: str) -> str:
        """The answer without what a model that completes texts goes on with: the next question."""
        if self.chat:
            return raw
        return raw.lstrip().partition(self.prompts.stop)[0]

    def _failed(self, request: Request, raw: Any) -> ScoringError:
        name = self.section.name
        if not isinstance(raw, BaseException):
            return ScoringError(
                f"the function {name} returned a {type(raw).__name__}; it must return the answer as a text"
            )
        error = ScoringError(
            f"the function {name} failed on query {request.query.id} with {len(request.demos)} demonstrations "
            f"({type(raw).__name__}: {raw}); answers that came before are kept, and the same command goes on after them"
        )
        error.__cause__ = raw
        return error


def source_digest(function: Function) -> str:
    """12 hex digits of what a function does: its source without layout and comments, so that a change is seen.

    Where the source is not at hand, the name alone tells functions apart, and `model.revision` may.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
        text = ast.dump(ast.parse(source))
    except (OSError, TypeError, SyntaxError):
        text = ""
    return sha256(text.encode()).hexdigest()[:12]
