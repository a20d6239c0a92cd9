"""Inspect AI: a solver that puts chosen demonstrations in front of the question.

Found by entry point: `inspect eval task.py --solver leverplus/lever_generate -S bundle=bundles/mine -S shots=2`.
"""

from __future__ import annotations

from typing import Any

from leverplus.adapters.opening import apart_from, as_picture, open_selector, require_framework
from leverplus.selector.demo import Demo

require_framework("inspect_ai", "inspect")
import anyio  # noqa: E402 Inspect brings it
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ContentImage, ContentText  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, chain, generate, solver  # noqa: E402


@solver
def lever_demos(bundle: str, shots: int | None = None, leave_out_itself: bool = True) -> Solver:
    """Put demonstrations as turns before the last user message; their ids go into the sample's metadata.

    `shots` is how many (None: what the bundle recommends). A sample is never shown itself unless `leave_out_itself` is
    False.
    """
    selector = open_selector(bundle)

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 Inspect's signature
        query = state.user_prompt
        question, image = query.text, _picture(query)

        def choose() -> list[Demo]:
            allowed = apart_from(question, image) if leave_out_itself else None
            return selector.select(question=question, image=image, shots=shots, allowed=allowed)

        demos = await anyio.to_thread.run_sync(choose)  # Inspect may run under asyncio or trio
        at = state.messages.index(query)
        state.messages[at:at] = [turn for demo in demos for turn in _turns(demo)]
        state.metadata["demonstrations"] = [str(demo.id) for demo in demos]
        return state

    return solve


@solver
def lever_generate(bundle: str, shots: int | None = None, leave_out_itself: bool = True) -> Solver:
    """`lever_demos`, then the model's answer: what `--solver` needs, which takes the place of a task's own solver."""
    return chain(lever_demos(bundle, shots, leave_out_itself), generate())


def _picture(query: Any) -> Any:
    """The first picture of a message, as `Selector.select` takes it."""
    if isinstance(query.content, str):
        return None
    for part in query.content:
        if part.type == "image":
            return as_picture(part.image)
    return None


def _turns(demo: Demo) -> list[Any]:
    """A question, with its picture as a data URI (Inspect refuses paths in messages of solvers), and its answer."""
    url = demo.data_url()
    shown = [] if url is None else [ContentImage(image=url)]
    return [
        ChatMessageUser(content=[*shown, ContentText(text=demo.question)]),
        ChatMessageAssistant(content=demo.answer),
    ]
