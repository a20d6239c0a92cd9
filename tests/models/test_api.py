"""The openai backend against a server that speaks the protocol: prompts, log-probabilities, room, whole runs."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from speaking_server import (
    CAPITALS,
    COLOURS,
    MODEL,
    Handler,
    Served,
    chat_text,
    serving,
    speaking,
    tokens_of,
    weight,
)

from leverplus.cli.main import main
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, NotMeasured, ScoringError
from leverplus.models.api.backend import OpenAIBackend
from leverplus.models.base import LocalEngine, Request
from leverplus.models.prompts import data_url, render_prompt, shrink
from leverplus.models.room import is_too_long, stated_room
from leverplus.models.settings import ModelSection
from leverplus.run.fit import fit
from leverplus.scores.scorer import Scorer
from leverplus.scores.selftest import self_test
from leverplus.scores.store import ScoreStore

KEY, VARIABLE = "sk-test-9f8e7d6c5b4a", "LEVER_TEST_KEY"
SPLITS = ("train", "dev", "test")
RULES = AnswerRules("vqa_accuracy", "vqa")


@pytest.fixture
def served() -> Iterator[Served]:
    with speaking() as server:
        yield server


@pytest.fixture(scope="module")
def capitals() -> FileTask:
    """Questions of nine tokens each."""
    items = []
    words = {"train": "which is the", "dev": "name me the", "test": "tell me the"}
    for split, asks in words.items():
        for country, city in CAPITALS.items():
            name = ItemId(f"{split}-{country}")
            items.append(
                Item(name, f"{asks} capital of {country}?", (city,) * 4, split)
            )
    places = {item.id: f"line {number}" for number, item in enumerate(items, 1)}
    return FileTask("capitals", items, answers=RULES, places=places)


@pytest.fixture(scope="module")
def paintings(tmp_path_factory) -> FileTask:
    folder, items = tmp_path_factory.mktemp("paintings"), []
    for number, (name, colour) in enumerate(list(COLOURS.items()) * 6):
        path = str(folder / f"{number}.png")
        shade = tuple(min(255, part + number) for part in colour)
        Image.new("RGB", (20 + number, 16), shade).save(path)
        own = ItemId(f"p{number:02d}")
        question = "what color is it?"
        items.append(Item(own, question, (name,), SPLITS[number % 3], path, str(own)))
    return FileTask("paintings", items, answers=RULES)


def backend_of(served: Served, task: FileTask, **settings: Any) -> OpenAIBackend:
    own = {"name": MODEL, "url": served.url, "retries": 2, "timeout": 5.0}
    return OpenAIBackend(task, ModelSection(**{**own, **settings}))


def asked_of(task: FileTask, shots: int, *references: str, **more: Any) -> Request:
    query = task.items("dev")[1]
    demos = tuple(task.items("train")[:shots])
    return Request(query, demos, references or (query.answer,), **more)


# -- prompts


def test_a_plain_prompt_shows_demonstrations_in_order_and_stops_where_an_answer_ends(
    served, capitals
) -> None:
    backend = backend_of(served, capitals, instruction="Answer with a city.")
    (reply,) = backend.answer([asked_of(capitals, 2)])
    path, body = served.asked[-1]
    assert path == "/v1/completions"
    assert body["prompt"] == (
        "Answer with a city.\n"
        "Question: which is the capital of france?\nAnswer: paris\n"
        "Question: which is the capital of italy?\nAnswer: rome\n"
        "Question: name me the capital of italy?\nAnswer:"
    )
    sent = [body[key] for key in ("stop", "temperature", "max_tokens", "model")]
    assert sent == [["\n"], 0, 8, MODEL]
    assert reply.raw == " rome"


def test_a_chat_has_turns_and_pictures_without_loss(served, paintings) -> None:
    backend = backend_of(served, paintings, prompt="chat", instruction="One word.")
    (reply,) = backend.answer([asked_of(paintings, 1)])
    turns = served.asked[-1][1]["messages"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    shown, question = paintings.items("train")[0].answer, "what color is it?"
    assert turns[2]["content"] == shown
    assert turns[0]["content"] == "One word."
    assert turns[1]["content"][-1] == {"type": "text", "text": question}
    picture, text = turns[3]["content"]
    assert text == {"type": "text", "text": question}
    query = paintings.items("dev")[1]
    with Image.open(query.image) as own:
        assert picture_of(picture["image_url"]["url"]).tobytes() == own.tobytes()
    assert reply.raw == query.answer
    with pytest.raises(ScoringError, match=r"only a chat can show; set model\.prompt"):
        backend_of(served, paintings).answer([asked_of(paintings, 0)])


def picture_of(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_a_large_picture_is_shrunk_in_proportion_and_a_small_one_left_alone() -> None:
    picture = Image.new("RGB", (400, 100))
    for pixels, size in ((0, (400, 100)), (40_000, (400, 100)), (10_000, (200, 50))):
        assert shrink(picture, pixels).size == size


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_the_public_function_renders_what_is_sent(
    served, capitals, paintings, prompt
) -> None:
    task = capitals if prompt == "plain" else paintings
    backend = backend_of(served, task, prompt=prompt, instruction="One word.")
    request = asked_of(task, 2)
    backend.answer([request])
    body = served.asked[-1][1]
    rendered = render_prompt(
        "openai", backend.section, task, request.query, request.demos
    )
    assert body["prompt" if prompt == "plain" else "messages"] == rendered


# -- log-probabilities


@pytest.mark.parametrize("shots", [0, 3])
def test_plain_log_probabilities_are_those_of_the_answer_and_its_line_end(
    served, capitals, shots
) -> None:
    request = asked_of(capitals, shots, "rome", "new york city", "lima")
    (reply,) = backend_of(served, capitals).answer([request])
    end = weight("\n", "rome")
    city = sum(weight(word, "rome") for word in (" new", " york", " city"))
    expected = (2 * end, city + end, weight(" lima", "rome") + end)
    assert reply.logprobs == pytest.approx(expected)
    sent = [text for _, body in served.asked[-2:] for text in [body["prompt"]]]
    texts = [*sent[0], sent[1]]
    # a start marker for each text, and the token that was written
    assert reply.tokens == sum(1 + len(tokens_of(text)) for text in texts) + 1


@pytest.mark.parametrize("shots", [0, 2])
def test_chat_log_probabilities_are_those_of_the_answer_and_the_end_of_its_turn(
    served, paintings, shots
) -> None:
    backend = backend_of(served, paintings, prompt="chat")
    request = asked_of(paintings, shots, "red", "green", "dark blue")
    (reply,) = backend.answer([request])
    truth, expected = request.query.answer, []
    for words in (("red",), ("green",), ("dark", " blue")):
        expected.append(sum(weight(word, truth) for word in (*words, "<|end|>")))
    assert reply.logprobs == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("prompt", "first"), [("plain", " s"), ("chat", "s")])
def test_an_answer_that_is_not_ascii_is_found_by_counting_tokens(
    served, capitals, prompt, first
) -> None:
    backend = backend_of(served, capitals, prompt=prompt)
    request = asked_of(capitals, 1, "são paulo", "rome")
    (reply,) = backend.answer([request])
    end = weight("\n", "rome")
    parts = sum(weight(part, "rome") for part in (first, "ã", "o", " paulo"))
    assert reply.logprobs == pytest.approx((parts + end, 2 * end))


def test_of_labels_the_likeliest_is_the_answer_and_nothing_is_generated(
    served, capitals
) -> None:
    backend = backend_of(served, capitals)
    before = len(served.asked)
    request = asked_of(capitals, 0, "lima", "rome", "oslo", choose=True)
    (reply,) = backend.answer([request])
    assert (reply.raw, len(reply.logprobs)) == ("rome", 3)
    assert [body.get("echo") for _, body in served.asked[before:]] == [True]


@pytest.mark.slow
def test_the_self_test_is_passed_unless_pictures_do_not_arrive(
    served, capitals, paintings, monkeypatch
) -> None:
    for task, prompt in ((capitals, "plain"), (paintings, "chat")):
        backend = backend_of(served, task, prompt=prompt)
        found = self_test(task, backend)
        assert (found.batch_gap, found.moved) == (0.0, 1.0)
        assert (found.picture_effect is None) == (prompt == "plain")
    grey = data_url(Image.new("RGB", (8, 8), "grey"))
    monkeypatch.setattr(backend.prompts, "url", lambda item: grey)
    with pytest.raises(ScoringError, match="does not see them"):
        self_test(paintings, backend)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_server_without_log_probabilities_is_told_apart_and_nothing_becomes_a_number(
    capitals, tmp_path, prompt, silent
) -> None:
    """Whether it refuses the question or ignores it."""
    with speaking(weighs=False, silent=silent) as served:
        backend = backend_of(served, capitals, prompt=prompt)
        assert "so gt_prob is not measured" in backend.notice
        assert self_test(capitals, backend).effect is None
        store = ScoreStore(tmp_path / "scores.db")
        scorer = Scorer(capitals, backend, store, LocalEngine(backend))
        (score,) = scorer.score([(ItemId("dev-italy"), (ItemId("train-peru"),))])
        assert (score.accuracy, score.weighed) == (1.0, False)
        with pytest.raises(NotMeasured, match="no reference log-probability"):
            _ = score.gt_prob


def test_log_probabilities_that_were_promised_and_do_not_come_are_an_error(
    capitals,
) -> None:
    with speaking(weighs=False, silent=True) as served:
        with pytest.raises(ScoringError, match=r'set model\.logprobs = "never"'):
            backend_of(served, capitals, logprobs="always").answer(
                [asked_of(capitals, 0)]
            )
        before = len(served.asked)
        quiet = backend_of(served, capitals, logprobs="never")
        assert quiet.answer([asked_of(capitals, 0)])[0].logprobs is None
        assert len(served.asked) == before + 1


# -- what the server is, and asking it


def test_what_could_change_an_answer_changes_the_fingerprint_and_the_rest_does_not(
    served, capitals, monkeypatch
) -> None:
    def mark(**settings: Any) -> dict[str, str]:
        return dict(backend_of(served, capitals, **settings).fingerprint())

    monkeypatch.setenv(VARIABLE, KEY)
    assert mark() == mark(concurrency=1, rate=600.0, key_env=VARIABLE)
    changes: list[dict[str, Any]] = [
        {},
        {"template": "Q: {question}\nA: {answer}\n"},
        {"instruction": "Be brief."},
        {"max_new_tokens": 4},
        {"prompt": "chat"},
        {"revision": "2"},
        {"logprobs": "never"},
        {"image_pixels": 100},
    ]
    assert len({str(mark(**change)) for change in changes}) == len(changes)


def test_a_wrong_name_or_address_is_refused_before_anything_is_asked(
    served, capitals
) -> None:
    with pytest.raises(ScoringError, match="serves speaker-1"):
        backend_of(served, capitals, name="speaker-2")
    assert served.asked == []
    for prompt in ("plain", "chat"):
        served.nothing_there = True
        with pytest.raises(
            ScoringError, match=r"finds nothing .* addresses end in /v1"
        ):
            backend_of(served, capitals, prompt=prompt, retries=0)


def test_requests_run_at_the_same_time_but_no_more_than_allowed_and_come_back_in_order(
    capitals,
) -> None:
    with speaking(delay=0.03) as served:
        backend = backend_of(served, capitals, concurrency=3, logprobs="never")
        items = capitals.items("dev")[:8]
        replies = backend.answer([Request(own, (), own.answers[:1]) for own in items])
        assert [own.raw.strip() for own in replies] == [own.answer for own in items]
        assert served.most_at_once == 3


def test_the_first_failure_ends_a_batch_and_what_was_not_asked_is_not_paid_for(
    served, capitals
) -> None:
    backend = backend_of(served, capitals, concurrency=1, logprobs="never")
    served.faults = [("400", {})]
    requests = [Request(own, (), own.answers[:1]) for own in capitals.items("dev")]
    with pytest.raises(ScoringError, match="refuses: status 400, fault 400"):
        backend.answer(requests)
    assert len(served.asked) < 4


# -- how long a prompt may be

VLLM = "This model's maximum context length is {room} tokens. However, you requested {asked} tokens. Please reduce it."
LLAMA = "request ({asked} tokens) exceeds the available context size ({room} tokens), try increasing it"


class Roomy(Handler):
    """A server with `room` tokens; `states` is what it says of itself, `counts` whether it counts tokens for others."""

    room, counts, status, says = 60, True, 400, VLLM
    states: Mapping[str, Any] = {"max_model_len": 60}

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": MODEL, "owned_by": "tests", **self.states}]})

    def _answer(self, body: Mapping[str, Any]) -> None:
        text = body.get("prompt") or chat_text(body["messages"], True)[0]
        count = len(tokens_of(text)) if isinstance(text, str) else 0
        if self.path == "/tokenize":
            counted = {"count": count, "tokens": [0] * count}
            self._send(*((200, counted) if self.counts else (404, {})))
        elif count > self.room:
            said = self.says.format(room=self.room, asked=count)
            self._send(self.status, {"error": {"message": said}})
        else:
            super()._answer(body)


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
    capitals, prompt
) -> None:
    served = Served(weighs=False)
    with serving(Roomy, served):
        backend = backend_of(served, capitals, prompt=prompt, logprobs="never")
        assert backend.require_room(1) == ""
        said = r"8 demonstrations .* has room for 60, which is enough for \d; show"
        with pytest.raises(DataError, match=said) as caught:
            backend.require_room(8)
        fit = int(str(caught.value).split("enough for ")[1][0])
        assert 1 <= fit < 8
        assert backend.require_room(fit) == ""
        with pytest.raises(DataError):
            backend.require_room(fit + 1)
    assert {path for path, _ in served.asked} == {"/tokenize"}


def test_a_text_that_is_too_long_alone_is_named(served, capitals) -> None:
    first, *others = (item for split in SPLITS for item in capitals.items(split))
    long = replace(first, question=f"{first.question} " * 20)
    task = FileTask("long", [long, *others], answers=RULES, places={long.id: "line 1"})
    with serving(Roomy, served):
        backend = backend_of(served, task, logprobs="never")
        with pytest.raises(DataError, match=r"longest text, line 1, takes \d+ tokens"):
            backend.require_room(2)


@pytest.mark.parametrize(("status", "words"), [(400, VLLM), (400, LLAMA), (500, LLAMA)])
def test_a_refusal_is_one_sentence_and_is_not_asked_again(
    served, capitals, status, words
) -> None:
    unstated = type(
        "Unstated", (Roomy,), {"states": {}, "status": status, "says": words}
    )
    with serving(unstated, served):
        backend = backend_of(served, capitals, logprobs="never")
        said = r"query dev-italy with 6 demonstrations is too long .*; its longest text is item .*: show fewer"
        with pytest.raises(ScoringError, match=said):
            backend.answer([asked_of(capitals, 6)])
        assert len(backend.answer([asked_of(capitals, 2)])) == 1
    assert len(served.asked) == 2


def test_other_refusals_stay_as_they_are() -> None:
    for words in (
        "model not found",
        "too many requests",
        "the upstream took too long, longer than the timeout of 60 s",
    ):
        assert not is_too_long(words)
    for words in (
        "The decoder prompt (length 900) is longer than the maximum model length of 512",
        "prompt is too long: 250000 tokens > 200000 maximum",
    ):
        assert is_too_long(words)


def test_a_fit_refuses_before_it_writes_a_recipe(tmp_path: Path) -> None:
    data, rows = tmp_path / "d.jsonl", []
    for number in range(6):
        for country, city in CAPITALS.items():
            question = f"name the capital of {country} number {number}"
            rows.append(json.dumps({"question": question, "answer": city}))
    data.write_text("\n".join(rows))
    own: dict[str, Any] = {"calls": 2000, "dry_run": True, "store": tmp_path / "s.db"}
    said: list[str] = []
    served = Served(weighs=False)
    # the instruction names twelve labels
    labelled = {"room": 80, "states": {"max_model_len": 80}}
    with serving(type("Labelled", (Roomy,), labelled), served):
        own["model"] = served.url
        refused = r"has room for 80, which is enough for \d; show fewer"
        with pytest.raises(DataError, match=refused):
            fit(data, out=tmp_path / "o", shots=[1, 2, 4], **own)
        made = fit(data, out=tmp_path / "fits", say=said.append, **own)
    assert any(
        "prompts with 4, 8, 16 demonstrations are left out" in line for line in said
    )
    assert "shots = [\n    1,\n]" in made.recipe.read_text()
    assert not (tmp_path / "o.toml").exists()
    for path, body in served.asked:
        asks = "completions" in path and not {"echo", "prompt_logprobs"} & set(body)
        assert not asks, "nothing was asked of the model but what it offers"


# -- whole runs

RECIPE = """
purpose = "p"
expected = "e"
[task]
name = "jsonl"
folder = "{folder}"
file = "{folder}/capitals.jsonl"
images = "none"
[embed]
name = "sentence"
model = "{weights}"
device = "cpu"
[pool]
size = 4
[score]
backend = "openai"
search = "dense"
budget = 400
queries = 4
shots = 1
chunk = 16
dev_queries = 4
dev_shots = [1]
[model]
name = "speaker-1"
url = "{url}"
key_env = "LEVER_TEST_KEY"
price_in = 2.0
price_out = 8.0
[select]
query_fields = ["text"]
demo_fields = ["text", "answer"]
hidden = 16
[sft]
epochs = 1
[eval]
items = 6
shots = [1]
dev_items = 4
random_draws = 1
exhaustive_calls = 0
diagnostics = false
"""


@pytest.mark.slow
def test_a_whole_run_counts_its_cost_and_the_key_is_nowhere(
    tmp_path, capitals, monkeypatch, caplog, capfd
) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    sys.path.insert(0, str(Path(__file__).parents[1] / "encode"))
    from tiny_networks import save_sentence_model

    wrong = "sk-wrong-key-123456"
    monkeypatch.setenv(VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)
    rows = []
    for split in SPLITS:
        for item in capitals.items(split):
            row = {"id": item.id, "question": item.question, "split": split}
            rows.append(json.dumps({**row, "answers": list(item.answers)}))
    (tmp_path / "capitals.jsonl").write_text("\n".join(rows))
    weights = save_sentence_model(tmp_path / "weights")

    def run(out: str, *more: str) -> int:
        recipe = str(tmp_path / "served.toml")
        store = str(tmp_path / f"{out}.db")
        return main(
            ["run", recipe, "--out", str(tmp_path / out), "--store", store, *more]
        )

    with speaking(key=KEY) as served:
        text = RECIPE.format(folder=tmp_path, weights=weights, url=served.url)
        (tmp_path / "served.toml").write_text(text)
        assert run("run") == 0
        spent = json.loads((tmp_path / "run" / "run.json").read_text())["spent"]
        sent = {headers["authorization"] for headers in served.headers}
        assert sent == {f"Bearer {KEY}"}
        assert spent["requests"] >= len(served.asked)
        tokens = spent["prompt_tokens"] * 2.0 + spent["completion_tokens"] * 8.0
        assert 0 < spent["cost"] == pytest.approx(tokens / 1e6)
        asked = len(served.asked)
        assert run("run") == 0
        # only whether log-probabilities are offered is asked again
        assert len(served.asked) - asked <= 1
        assert run("unset", "--set", "model.key_env=NOT_SET_ANYWHERE") == 1
        monkeypatch.setenv(VARIABLE, wrong)
        assert run("refused") == 1
    out = "".join(capfd.readouterr()) + caplog.text
    assert "NOT_SET_ANYWHERE: this environment variable is not set" in out
    assert "refuses the key in the environment variable LEVER_TEST_KEY" in out
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in (KEY, wrong):
        assert key not in out
        assert not any(key.encode() in content for content in written)


@pytest.mark.parametrize("key", ["sk-secret", "hf_secretABC123", "gsk_secret0A1b2C3d4"])
def test_a_key_that_was_written_into_a_recipe_is_refused_and_not_shown(key) -> None:
    url = "https://user:pw-secret@api.example/v1?key=abc-secret"
    problems = ModelSection(name="m", url=url, key_env=key).problems("openai")
    assert len(problems) == 2
    assert "secret" not in " ".join(problems)
