"""The room of a server: what it states is believed, lists that do not fit cost nothing, a refusal says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from leverplus.backends.base import Request
from leverplus.errors import DataError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.selftest import sample_requests
from leverplus.tasks.files import FileTask
from leverplus.tasks.jsonl import jsonl

pytest.importorskip("httpcore", reason="the extra `api` is not installed")
from speaking_server import CAPITALS, MODEL, Handler, Served, chat_text, serving, tokens_of

from leverplus.backends.api.backend import OpenAIBackend
from leverplus.backends.api.room import LETTERS, is_too_long, stated_room
from leverplus.fitting.fit import fit

VLLM = "This model's maximum context length is {room} tokens. However, you requested {asked} tokens. Please reduce it."
LLAMA = "request ({asked} tokens) exceeds the available context size ({room} tokens), try increasing it"


class Roomy(Handler):
    """A server with `room` tokens; `states` is what it says of itself, `counts` whether it counts tokens for others."""

    room = 60
    states: Mapping[str, Any] = {"max_model_len": 60}
    counts = True
    says, status = VLLM, 400

    def do_GET(self) -> None:
        if self.path == "/props" and self.states.get("owned_by") == "llamacpp":
            self._send(200, {"default_generation_settings": {"n_ctx": self.room}})
        else:
            self._send(200, {"data": [{"id": MODEL, "owned_by": "tests", **self.states}]})

    def _answer(self, body: Mapping[str, Any]) -> None:
        text = chat_text(body["messages"], True)[0] if "messages" in body else body["prompt"]
        count = len(tokens_of(text)) if isinstance(text, str) else 0
        if self.path == "/tokenize":
            self._send(*((200, {"count": count, "tokens": [0] * count}) if self.counts else (404, {})))
        elif count > self.room:
            self._send(self.status, {"error": {"message": self.says.format(room=self.room, asked=count)}})
        else:
            super()._answer(body)


@pytest.fixture
def served() -> Served:
    return Served(weighs=False)


def asked(served: Served) -> set[str]:
    return {path for path, _ in served.asked}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> FileTask:
    """Questions of nine tokens each."""
    path = tmp_path_factory.mktemp("room") / "capitals.jsonl"
    rows = []
    for number, (country, city) in enumerate(list(CAPITALS.items()) * 3):
        split = ("train", "dev", "test")[number // len(CAPITALS)]
        words = ("which city is the", "name to me the", "do tell me the")[number // len(CAPITALS)]
        question = f"{words} capital of {country}"
        rows.append({"id": str(number), "question": question, "answers": [city], "split": split})
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return jsonl(TaskSection(name="jsonl", file=str(path), folder=str(path.parent), images="none"))


def backend_of(served: Served, task: FileTask, **settings: Any) -> OpenAIBackend:
    plain = {"name": MODEL, "url": served.url, "retries": 2, "timeout": 5.0, "logprobs": "never", "max_new_tokens": 2}
    return OpenAIBackend(task, ModelSection(**{**plain, **settings}))


@pytest.mark.parametrize(
    ("row", "room"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),
        ({"context_window": 131072}, 131072),
        ({"meta": {"n_ctx_train": 8192}}, None),
        ({"max_model_len": "many"}, None),
        ({"max_model_len": True}, None),
        ({"max_model_len": -1, "context_length": 512}, 512),
        ({}, None),
    ],
)
def test_what_servers_state_is_read(row: dict[str, Any], room: int | None) -> None:
    assert stated_room(row) == room


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_lists_that_do_not_fit_are_refused_with_the_number_that_fits_and_no_prompt_is_sent(
    served, task, prompt
) -> None:
    with serving(Roomy, served):
        backend = backend_of(served, task, prompt=prompt)
        assert backend.require_room(1) == ""
        with pytest.raises(
            DataError, match=r"8 demonstrations .* has room for 60, which is enough for \d; show"
        ) as said:
            backend.require_room(8)
        fit = int(str(said.value).split("enough for ")[1][0])
        assert 1 <= fit < 8
        assert backend.require_room(fit) == ""
        with pytest.raises(DataError):
            backend.require_room(fit + 1)
    assert asked(served) == {"/tokenize"}


def test_a_server_that_counts_no_tokens_is_judged_by_letters_and_one_that_states_nothing_not_at_all(
    served, task
) -> None:
    class Silent(Roomy):
        counts = False

    class Mute(Silent):
        states: Mapping[str, Any] = {}

    with serving(Silent, served):
        backend = backend_of(served, task)
        request = Request(task.items("dev")[0], tuple(task.items("train")[:2]), ())
        assert backend.room.count(request) == len(backend.prompts.text(request)) // LETTERS
        with pytest.raises(DataError, match="has room for 60"):
            backend.require_room(8)
    with serving(Mute, served):
        assert backend_of(served, task).require_room(8) == ""


def test_older_llama_servers_state_their_room_elsewhere(served, task) -> None:
    class Older(Roomy):
        states: Mapping[str, Any] = {"owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}}

    with serving(Older, served):
        assert backend_of(served, task).room.tokens == 60


def test_a_text_that_is_too_long_alone_is_named(served, tmp_path: Path) -> None:
    rows = [
        {
            "id": f"n{number}",
            "question": f"the capital of peru {number} " * (20 if number == 7 else 1),
            "answers": ["lima"],
        }
        | {"split": ("train", "dev", "test")[number % 3]}
        for number in range(12)
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    long = jsonl(TaskSection(name="jsonl", file=str(tmp_path / "d.jsonl"), images="none"))
    with serving(Roomy, served), pytest.raises(DataError, match=r"longest text, d.jsonl, line 8, takes \d+ tokens"):
        backend_of(served, long).require_room(2)


@pytest.mark.parametrize(("status", "words"), [(400, VLLM), (400, LLAMA), (500, LLAMA)])
def test_a_refusal_is_one_sentence_with_what_fits_and_is_not_asked_again(served, task, status, words) -> None:
    class Unstated(Roomy):
        states: Mapping[str, Any] = {}

    Unstated.status, Unstated.says = status, words
    with serving(Unstated, served):
        backend = backend_of(served, task)
        request = Request(task.items("dev")[0], tuple(task.items("train")[:6]), ("paris",))
        with pytest.raises(
            ScoringError, match=r"query 12 with 6 demonstrations is too long .*; about \d of these"
        ) as said:
            backend.answer([request])
        fit = int(str(said.value).split("; about ")[1][0])
        assert 0 < fit < 6
        fewer = Request(request.query, request.demos[-fit:], request.references)
        assert len(backend.answer([fewer])) == 1
    assert len(served.asked) == 2


def test_other_refusals_stay_as_they_are() -> None:
    assert not is_too_long("status 400, model not found")
    assert not is_too_long("status 429, too many requests")
    assert not is_too_long("status 504, the upstream took too long, longer than the timeout of 60 s")
    assert is_too_long("status 400, The decoder prompt (length 900) is longer than the maximum model length of 512")
    assert is_too_long("status 400, prompt is too long: 250000 tokens > 200000 maximum")


def test_a_larger_context_of_the_same_model_keeps_what_was_asked(served, task) -> None:
    found = []
    for room in (2048, 4096):

        class Sized(Roomy):
            states: Mapping[str, Any] = {"meta": {"n_ctx": room, "n_params": 7}}

        with serving(Sized, served):
            found.append(backend_of(served, task).fingerprint())
    assert found[0] == found[1]


def test_a_self_test_shows_no_more_than_the_run(task) -> None:
    assert max(len(request.demos) for request in sample_requests(task, 9, 0)) == 3
    assert max(len(request.demos) for request in sample_requests(task, 9, 0, most=1)) == 1


def test_a_fit_refuses_before_it_writes_a_recipe(served, tmp_path: Path) -> None:
    rows = [
        {"question": f"name the capital of {country} number {n}", "answer": city}
        for n in range(6)
        for country, city in CAPITALS.items()
    ]
    data = tmp_path / "d.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))

    class Labelled(Roomy):  # the instruction names twelve labels
        room, states = 80, {"max_model_len": 80}

    with serving(Labelled, served), pytest.raises(DataError, match=r"has room for 80, which is enough for 2; show"):
        fit(data, model=served.url, out=tmp_path / "o", calls=2000, dry_run=True, store=tmp_path / "s.db")
    assert not (tmp_path / "o.toml").exists()
    assert not {
        path for path, body in served.asked if "completions" in path and not {"echo", "prompt_logprobs"} & set(body)
    }
