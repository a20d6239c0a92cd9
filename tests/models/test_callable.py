"""A Python function as the frozen model: asked in order, kept reply by reply, its mistakes told in a sentence."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import leverplus
from leverplus.errors import LeverError, ScoringError
from leverplus.models.base import Request
from leverplus.models.callable import CallableBackend, name_function
from leverplus.models.settings import ModelSection
from leverplus.scores.store import ScoreStore

sys.path.append(str(Path(__file__).parents[1] / "scores"))
from tiny_task import TinyTask

from leverplus.models.base import LocalEngine
from leverplus.scores.scorer import Scorer

TASK: Any = TinyTask()
DEMO, QUERY = TASK.items("train")[0], TASK.items("dev")[3]
REQUEST = Request(QUERY, (DEMO,), ())


def backend_of(function: Any, **values: Any) -> CallableBackend:
    return CallableBackend(TASK, ModelSection(name=name_function(function), **values))


def test_a_text_ends_where_the_answer_begins_and_the_reply_where_the_answer_ends() -> (
    None
):
    seen = []

    def ask(prompt: str) -> str:
        seen.append(prompt)
        return " green\nQuestion: what comes next?"

    [reply] = backend_of(ask).answer([REQUEST])
    assert seen == [
        f"Question: what is 0\nAnswer: {DEMO.answer}\nQuestion: what is 3\nAnswer:"
    ]
    assert reply.raw == "green"
    assert reply.logprobs is None


def test_a_chat_has_demonstrations_as_turns_after_the_instruction() -> None:
    def ask(messages: list[dict[str, str]]) -> str:
        return "/".join(f"{turn['role']}={turn['content']}" for turn in messages)

    [reply] = backend_of(ask, prompt="chat", instruction="One word.").answer([REQUEST])
    assert (
        reply.raw
        == f"system=One word./user=what is 0/assistant={DEMO.answer}/user=what is 3"
    )


def test_an_asynchronous_function_is_asked_several_times_at_once_and_answers_keep_their_places() -> (
    None
):
    under_way = most = 0

    async def ask(prompt: str) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return prompt.splitlines()[-2]

    requests = [Request(query, (), ()) for query in TASK.items("dev")[:7]]
    replies = backend_of(ask, concurrency=3).answer(requests)
    assert [reply.raw for reply in replies] == [
        f"Question: what is {number}" for number in range(7)
    ]
    assert most == 3


def test_what_came_before_a_failure_is_kept_and_never_asked_again(
    tmp_path: Path,
) -> None:
    asked = []
    broken = True

    def ask(prompt: str) -> str:
        asked.append(prompt)
        if broken and len(asked) == 3:
            raise TimeoutError("the line is dead")
        return "red"

    backend = backend_of(ask)
    scorer = Scorer(
        TASK, backend, ScoreStore(tmp_path / "scores.db"), LocalEngine(backend)
    )
    prompts: list[Any] = [(query.id, ()) for query in TASK.items("dev")[:5]]
    with pytest.raises(
        ScoringError,
        match=r"failed on query q2 .*TimeoutError: the line is dead.*are kept",
    ):
        scorer.score(prompts)
    broken = False
    scorer.score(prompts)
    assert len(asked) == 3 + 3, (
        "two were kept, the one that failed and two more were asked"
    )


def test_a_change_of_the_function_is_another_model_and_a_change_of_its_layout_is_not(
    tmp_path: Path,
) -> None:
    sources = {
        "first": "def ask(prompt):\n    return 'red'\n",
        "spaced": "def ask(prompt):\n    # a remark\n\n    return 'red'\n",
        "other": "def ask(prompt):\n    return 'blue'\n",
    }
    marks = {}
    for name, source in sources.items():
        (tmp_path / f"models_{name}.py").write_text(source)
    sys.path.append(str(tmp_path))
    try:
        for name in sources:
            section = ModelSection(name=f"models_{name}:ask")
            marks[name] = CallableBackend(TASK, section).fingerprint()["revision"]
    finally:
        sys.path.remove(str(tmp_path))
    assert marks["first"] == marks["spaced"] != marks["other"]


def test_what_is_no_answer_or_no_function_is_refused() -> None:
    with pytest.raises(
        ScoringError, match="returned a NoneType; it must return the answer as a text"
    ):
        backend_of(lambda prompt: None).answer([REQUEST])
    with pytest.raises(LeverError, match="is a _Environ, not a function"):
        CallableBackend(TASK, ModelSection(name="os:environ"))
    with pytest.raises(LeverError, match="module json has no 'nothing'"):
        CallableBackend(TASK, ModelSection(name="json:nothing"))


def test_fit_takes_a_function_and_recommends(tmp_path: Path) -> None:
    rows = []
    for number in range(60):
        word = ("warm sun", "cold snow")[number % 2]
        rows.append({"text": f"{word} {number}", "label": word.split()[0]})
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def ask(messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"].split()[0]

    made = leverplus.fit(
        data,
        model=ask,
        embed="tables:okvqa-vectors.npz",
        calls=1200,
        shots=[1],
        dry_run=True,
        out=tmp_path / "bundle",
    )
    recipe = made.recipe.read_text()
    assert 'backend = "callable"' in recipe
    assert 'prompt = "chat"' in recipe
    assert made.forecast["calls"] <= 1200
