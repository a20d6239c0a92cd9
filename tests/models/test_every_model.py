"""What every backend of the catalog keeps to: one reply a request, in order, the same in any company and for ever."""

from __future__ import annotations

import importlib.machinery
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from leverplus import catalog
from leverplus.data.tasks.base import Task
from leverplus.data.tasks.jsonl import jsonl
from leverplus.data.tasks.settings import TaskSection
from leverplus.models.base import (
    Answered,
    Backend,
    LocalEngine,
    Recorded,
    Reply,
    Request,
    Streams,
)
from leverplus.models.callable import name_function
from leverplus.models.open import BackendFactory, build_backend
from leverplus.models.settings import ModelSection
from leverplus.scores.tables import TableRow, write_table
from leverplus_lab.world.task import WorldTask

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
sys.path.append(str(Path(__file__).parent / "hf"))
import vllm_stand_in
from speaking_server import CAPITALS, MODEL, speaking
from tiny_hf import llama

WORDS = ("paris", "rome", "lima")


def repeat_last(prompt: str) -> str:
    """A model that answers with the last word of the question."""
    return prompt.rstrip().rsplit("?", 1)[0].split()[-1]


@dataclass(frozen=True)
class Known:
    """A model to be asked: how it is named, the task, and prompts that it can answer."""

    name: str
    section: ModelSection
    task: Task
    requests: list[Request]

    def open(self) -> Backend:
        return build_backend(self.name, self.task, self.section)


@pytest.fixture(scope="module")
def capitals(tmp_path_factory) -> tuple[TaskSection, Task]:
    path = tmp_path_factory.mktemp("capitals") / "capitals.jsonl"
    rows = []
    for number, (country, city) in enumerate(CAPITALS.items()):
        row = {"question": f"the capital of {country}?", "answers": [city]}
        rows.append(
            {**row, "id": country, "split": ("train", "dev", "test")[number % 3]}
        )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    section = TaskSection(
        name="jsonl", file=str(path), folder=str(path.parent), images="none"
    )
    return section, jsonl(section)


def some_requests(task: Task, shots: Sequence[int] = (2, 0, 1, 2)) -> list[Request]:
    """Prompts of several lengths, two of them with the same demonstrations, and one with labels to choose from."""
    train, dev = task.items("train"), task.items("dev")
    asked = []
    for place, count in enumerate(shots):
        query = dev[place % 2]
        references = tuple(task.answers.weighed_references(query))
        asked.append(Request(query, tuple(train[:count]), references))
    return asked


@pytest.fixture(scope="module")
def known(capitals, tmp_path_factory) -> Iterator[Callable[[str], Known]]:
    made: dict[str, Known] = {}
    closing = ExitStack()
    module = vllm_stand_in.module()
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    patch = closing.enter_context(pytest.MonkeyPatch.context())
    patch.setitem(sys.modules, "vllm", module)

    def build(name: str) -> Known:
        task = capitals[1]
        requests = some_requests(task)
        labels = replace(requests[0], references=WORDS, choose=True)
        if name == "world":
            world = WorldTask(0)
            return Known(name, ModelSection(), world, some_requests(world))
        if name in ("hf", "vllm"):
            folder = llama(tmp_path_factory.mktemp("llama"))
            section = ModelSection(
                name=str(folder),
                device="cpu",
                dtype="float32",
                max_new_tokens=3,
                untrained=True,
            )
            return Known(name, section, task, [*requests, labels])
        if name == "openai":
            served = closing.enter_context(speaking())
            section = ModelSection(name=MODEL, url=served.url, retries=2, timeout=5.0)
            return Known(name, section, task, [*requests, labels])
        if name == "table":
            path = record(tmp_path_factory.mktemp("table"), task, requests)
            return Known(name, ModelSection(name=str(path)), task, requests)
        section = ModelSection(name=name_function(repeat_last))
        return Known(name, section, task, requests)

    def one(name: str) -> Known:
        if name not in made:
            made[name] = build(name)
        return made[name]

    yield one
    closing.close()


def record(folder: Path, task: Task, requests: Sequence[Request]) -> Path:
    rows, path = [], folder / "scores.parquet"
    for number, request in enumerate(requests):
        demos = tuple(demo.id for demo in request.demos)
        rows.append(TableRow(request.query.id, demos, 0.5, 0.25, WORDS[number % 3]))
    write_table(path, rows, task, {"model": "tiny"})
    return path


def alike(one: Reply, other: Reply) -> bool:
    if one.raw != other.raw or (one.logprobs is None) != (other.logprobs is None):
        return False
    return one.logprobs is None or one.logprobs == pytest.approx(
        other.logprobs, abs=1e-4
    )


def check_model(opened: Callable[[], Backend], requests: Sequence[Request]) -> None:
    """The contract of `Backend`; where replies come one by one, also that of `Streams`."""
    backend = opened()
    marks = dict(backend.fingerprint())
    assert marks
    assert all(isinstance(value, str) and value for value in marks.values())
    assert backend.answer([]) == []
    replies = backend.answer(requests)
    assert len(replies) == len(requests)
    for request, reply in zip(requests, replies, strict=True):
        assert isinstance(reply.raw, str)
        assert reply.tokens >= 0
        if reply.logprobs is not None:
            assert len(reply.logprobs) == len(request.references)
            assert all(value <= 0.0 for value in reply.logprobs)
        if request.choose and reply.logprobs is not None:
            best = reply.logprobs.index(max(reply.logprobs))
            assert reply.raw == request.references[best]
        assert alike(opened().answer([request])[0], reply), "a batch is one by one"
    turned = backend.answer(requests[::-1])[::-1]
    assert all(map(alike, turned, replies)), "order changes nothing"
    assert dict(backend.fingerprint()) == marks == dict(opened().fingerprint())
    answered: list[Answered] = []
    for part in LocalEngine(opened()).run(requests, 2):
        answered += part
    assert sorted(one.place for one in answered) == list(range(len(requests)))
    for place, reply, seconds in answered:
        assert alike(reply, replies[place])
        assert seconds >= 0.0


@pytest.mark.parametrize("name", sorted(catalog.BACKENDS))
def test_every_model_keeps_the_contract(name: str, known) -> None:
    one = known(name)
    check_model(one.open, one.requests)
    backend = one.open()
    assert isinstance(backend, Streams) == (name in ("openai", "callable"))
    assert isinstance(backend, Recorded) == (name == "table")


def test_a_model_is_built_anywhere_from_three_values(known, capitals) -> None:
    one = known("hf")
    factory = pickle.loads(pickle.dumps(BackendFactory(capitals[0], "hf", one.section)))
    theirs = factory().answer(one.requests)
    assert all(map(alike, theirs, one.open().answer(one.requests)))
