"""Inspect AI: a solver that puts chosen demonstrations in front of the question.

Found by entry point: `inspect eval task.py --solver leverplus/lever_generate -S bundle=bundles/mine -S shots=2`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from leverplus.adapters.opening import Columns, open_selector
from leverplus.errors import needs_extra

with needs_extra("the adapter for Inspect"):
    import anyio  # Inspect brings it
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageUser,
        ContentImage,
        ContentText,
    )
    from inspect_ai.solver import Generate, Solver, TaskState, chain, generate, solver


@solver
def lever_demos(
    bundle: str, shots: int | None = None, leave_out_itself: bool = True
) -> Solver:
    """Put demonstrations as turns before the last user message; their ids go into the sample's metadata.

    `shots` is how many (None: what the bundle recommends). A sample is never shown itself unless `leave_out_itself` is
    False.
    """
    columns = Columns(open_selector(bundle))

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 Inspect's signature
        query = state.user_prompt
        asked: dict[str, Any] = {"question": query.text}
        if not isinstance(query.content, str):
            seen = [part.image for part in query.content if part.type == "image"]
            asked["image"] = next(iter(seen), None)
        choose = partial(columns.choose, asked, shots, apart=leave_out_itself)
        # Inspect may run under asyncio or trio
        demos = await anyio.to_thread.run_sync(choose)
        turns: list[Any] = []
        for demo in demos:
            content: list[Any] = [ContentText(text=demo.question)]
            if url := demo.data_url():  # it refuses paths in messages of solvers
                content.insert(0, ContentImage(image=url))
            turns.append(ChatMessageUser(content=content))
            turns.append(ChatMessageAssistant(content=demo.answer))
        at = state.messages.index(query)
        state.messages[at:at] = turns
        state.metadata["demonstrations"] = [str(demo.id) for demo in demos]
        return state

    return solve


@solver
def lever_generate(
    bundle: str, shots: int | None = None, leave_out_itself: bool = True
) -> Solver:
    """`lever_demos`, then the model's answer: what `--solver` needs, which takes the place of a task's own solver."""
    return chain(lever_demos(bundle, shots, leave_out_itself), generate())
