"""The openai backend against a server that speaks the protocol: prompts, log-probabilities, self-test, whole runs."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from leverplus.backends.api.backend import OpenAIBackend
from leverplus.backends.api.prompts import data_url
from leverplus.backends.base import Request
from leverplus.backends.prompts import render_prompt
from leverplus.engine.local import LocalEngine
from leverplus.errors import LeverError, NotMeasured, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.scorer import Scorer
from leverplus.scoring.search import oracle_objective, truth_objective
from leverplus.scoring.selftest import self_test
from leverplus.store.db import ScoreStore
from leverplus.tasks.files import FileTask
from leverplus.tasks.jsonl import jsonl
from leverplus.types import Item, ItemId, Reference, Score

pytest.importorskip("httpcore", reason="the extra `api` is not installed")
from speaking_server import CAPITALS, COLOURS, MODEL, Served, speaking, weight

KEY = "sk-test-9f8e7d6c5b4a"
VARIABLE = "LEVER_TEST_KEY"


@pytest.fixture
def served() -> Iterator[Served]:
    with speaking() as server:
        yield server


def section_of(served: Served, **settings: Any) -> ModelSection:
    return replace(ModelSection(name=MODEL, url=served.url, retries=2, timeout=5.0), **settings)


@pytest.fixture(scope="module")
def capitals(tmp_path_factory) -> FileTask:
    path = tmp_path_factory.mktemp("capitals") / "capitals.jsonl"
    rows = []
    for number, (country, city) in enumerate(list(CAPITALS.items()) * 3):
        split = ("train", "dev", "test")[number // len(CAPITALS)]
        words = ("which city is the", "name the", "tell me the")[number // len(CAPITALS)]
        rows.append(
            {
                "id": f"{split}-{country}",
                "question": f"{words} capital of {country}?",
                "answers": [city],
                "split": split,
            }
        )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return jsonl(TaskSection(name="jsonl", file=str(path), folder=str(path.parent), images="none"))


@pytest.fixture(scope="module")
def paintings(tmp_path_factory) -> FileTask:
    folder = tmp_path_factory.mktemp("paintings")
    items = []
    for number, (name, colour) in enumerate(list(COLOURS.items()) * 6):
        path = folder / f"{number}.png"
        Image.new("RGB", (20 + number, 16), tuple(min(255, part + number) for part in colour)).save(path)
        split = ("train", "dev", "test")[number % 3]
        items.append(Item(ItemId(f"p{number:02d}"), "what color is it?", (name,), split, str(path), f"p{number}"))
    return FileTask("paintings", items, metric="vqa_accuracy", postprocess="vqa")


def asked_of(task: FileTask, shots: int, references: tuple[str, ...] | None = None, **options: Any) -> Request:
    query = task.items("dev")[1]
    return Request(query, tuple(task.items("train")[:shots]), references or (query.answer,), **options)


def test_a_plain_prompt_shows_demonstrations_in_order_and_stops_where_an_answer_ends(served, capitals) -> None:
    backend = OpenAIBackend(capitals, section_of(served, instruction="Answer with a city."))
    (reply,) = backend.answer([asked_of(capitals, 2)])
    path, body = served.asked[-1]
    assert path == "/v1/completions"
    assert body["prompt"] == (
        "Answer with a city.\n"
        "Question: which city is the capital of france?\nAnswer: paris\n"
        "Question: which city is the capital of italy?\nAnswer: rome\n"
        "Question: name the capital of italy?\nAnswer:"
    )
    assert (body["stop"], body["temperature"], body["max_tokens"], body["model"]) == (["\n"], 0, 8, MODEL)
    assert reply.raw == " rome"


def test_a_chat_has_turns_and_pictures_without_loss(served, paintings) -> None:
    backend = OpenAIBackend(paintings, section_of(served, prompt="chat", instruction="One word."))
    (reply,) = backend.answer([asked_of(paintings, 1)])
    turns = served.asked[-1][1]["messages"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert turns[2]["content"] == paintings.items("train")[0].answer
    lines = ["One word.", *(turn["content"][1]["text"] for turn in turns[1::2])]
    lines.insert(2, turns[2]["content"])
    assert backend.prompt_text(asked_of(paintings, 1)) == "\n".join(lines)
    picture, text = turns[3]["content"]
    assert text == {"type": "text", "text": "what color is it?"}
    data = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as sent, Image.open(paintings.items("dev")[1].image) as own:
        assert sent.tobytes() == own.convert("RGB").tobytes()
    assert reply.raw == paintings.items("dev")[1].answer


def test_a_large_picture_is_shrunk_in_proportion_and_a_small_one_left_alone() -> None:
    def size_of(url: str) -> tuple[int, int]:
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as picture:
            return picture.size

    picture = Image.new("RGB", (400, 100))
    assert size_of(data_url(picture, 0)) == (400, 100)
    assert size_of(data_url(picture, 40_000)) == (400, 100)
    assert size_of(data_url(picture, 10_000)) == (200, 50)


@pytest.mark.parametrize("shots", [0, 3])
def test_plain_log_probabilities_are_those_of_the_answer_and_its_line_end(served, capitals, shots) -> None:
    backend = OpenAIBackend(capitals, section_of(served))
    request = asked_of(capitals, shots, ("rome", "new york city", "lima"))
    (reply,) = backend.answer([request])
    end = weight("\n", "rome")
    wrong = [weight(" new", "rome") + weight(" york", "rome") + weight(" city", "rome"), weight(" lima", "rome")]
    assert reply.logprobs == pytest.approx((2 * end, wrong[0] + end, wrong[1] + end))
    assert reply.tokens == sum(reply_tokens(served))


def reply_tokens(served: Served) -> list[int]:
    """Tokens of the last generation and weighing, counted from what was sent."""
    from speaking_server import tokens_of

    counts = []
    for _, body in served.asked[-2:]:
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        counts.append(sum(1 + len(tokens_of(prompt)) for prompt in prompts) + (0 if body.get("echo") else 1))
    return counts


@pytest.mark.parametrize("shots", [0, 2])
def test_chat_log_probabilities_are_those_of_the_answer_and_the_end_of_its_turn(served, paintings, shots) -> None:
    backend = OpenAIBackend(paintings, section_of(served, prompt="chat"))
    request = asked_of(paintings, shots, ("red", "green", "dark blue"))
    (reply,) = backend.answer([request])
    truth = request.query.answer
    single = [weight(word, truth) + weight("<|end|>", truth) for word in ("red", "green")]
    double = weight("dark", truth) + weight(" blue", truth) + weight("<|end|>", truth)
    assert reply.logprobs == pytest.approx((*single, double))
    assert backend.answer_span(request, "dark blue") == "dark blue"


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_an_answer_that_is_not_ascii_is_found_by_counting_tokens(served, capitals, prompt) -> None:
    backend = OpenAIBackend(capitals, section_of(served, prompt=prompt))
    request = asked_of(capitals, 1, ("são paulo", "rome"))
    (reply,) = backend.answer([request])
    end = weight("\n", "rome")
    first = " s" if prompt == "plain" else "s"
    parts = [weight(part, "rome") for part in (first, "ã", "o", " paulo")]
    assert reply.logprobs == pytest.approx((sum(parts) + end, 2 * end))
    assert backend.answer_span(request, "são paulo").strip() == "são paulo"


def test_of_labels_the_likeliest_is_the_answer_and_nothing_is_generated(served, capitals) -> None:
    backend = OpenAIBackend(capitals, section_of(served))
    before = len(served.asked)
    (reply,) = backend.answer([asked_of(capitals, 0, ("lima", "rome", "oslo"), choose=True)])
    assert reply.raw == "rome"
    assert len(reply.logprobs) == 3
    assert [body.get("echo") for _, body in served.asked[before:]] == [True]


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_the_backend_passes_the_self_test(served, capitals, paintings, prompt) -> None:
    task = capitals if prompt == "plain" else paintings
    found = self_test(task, OpenAIBackend(task, section_of(served, prompt=prompt)), queries=8)
    assert found.prompts == 8
    assert found.spans_checked == 16
    assert found.batch_gap == 0.0
    assert found.right_over_wrong > 1.0
    assert (found.picture_effect is None) == (prompt == "plain")


@pytest.mark.slow
def test_a_model_that_does_not_get_the_pictures_fails_the_self_test(served, paintings, monkeypatch) -> None:
    backend = OpenAIBackend(paintings, section_of(served, prompt="chat"))
    grey = data_url(Image.new("RGB", (8, 8), "grey"), 0)
    monkeypatch.setattr(backend.prompts, "url", lambda item: grey)
    with pytest.raises(ScoringError, match="does not see them"):
        self_test(paintings, backend, queries=8)


@pytest.mark.parametrize(("prompt", "silent"), [("plain", False), ("plain", True), ("chat", False), ("chat", True)])
def test_a_server_without_log_probabilities_is_told_apart_and_nothing_becomes_a_number(
    capitals, tmp_path, prompt, silent
) -> None:
    """Whether it refuses the question or ignores it."""
    with speaking(weighs=False, silent=silent) as served:
        backend = OpenAIBackend(capitals, section_of(served, prompt=prompt))
        assert "offers no log-probabilities of given answers, so gt_prob is not measured" in backend.notice
        found = self_test(capitals, backend, queries=6)
        assert (found.right_over_wrong, found.spans_checked) == (None, None)
        scorer = Scorer(capitals, backend, ScoreStore(tmp_path / "scores.db"), LocalEngine(backend))
        (score,) = scorer.score([(ItemId("dev-italy"), (ItemId("train-peru"),))])
        assert score.accuracy == 1.0
        assert not score.weighed
        with pytest.raises(NotMeasured, match="no reference log-probability was measured"):
            _ = score.gt_prob
        assert (
            backend.fingerprint()
            != OpenAIBackend(capitals, section_of(served, prompt=prompt, logprobs="always")).fingerprint()
        )


def test_search_without_log_probabilities_goes_by_accuracy_then_nearness() -> None:
    def score(accuracy: float, near: float, logprob: float | None) -> Score:
        reference = (Reference("a", 3, logprob),)
        return Score(ItemId("q"), (), "", "", accuracy, accuracy > 0, reference, near, 0.0, 1, 0.0)

    ranked = sorted([score(1.0, 0.0, None), score(0.0, 0.9, None), score(0.0, 0.2, None)], key=truth_objective)
    assert [(s.accuracy, s.token_f1) for s in ranked] == [(0.0, 0.2), (0.0, 0.9), (1.0, 0.0)]
    assert truth_objective(score(0.0, 0.9, -1.0)) == pytest.approx(2.718281828**-1)
    assert oracle_objective(score(0.5, 0.0, 0.0)) == pytest.approx(0.501)


def test_log_probabilities_that_were_promised_and_do_not_come_are_an_error(capitals) -> None:
    with speaking(weighs=False, silent=True) as served:
        backend = OpenAIBackend(capitals, section_of(served, logprobs="always"))
        with pytest.raises(ScoringError, match=r'set model\.logprobs = "never"'):
            backend.answer([asked_of(capitals, 0)])
        quiet = OpenAIBackend(capitals, section_of(served, logprobs="never"))
        before = len(served.asked)
        assert quiet.answer([asked_of(capitals, 0)])[0].logprobs is None
        assert len(served.asked) == before + 1


def test_what_could_change_an_answer_changes_the_fingerprint_and_the_rest_does_not(
    served, capitals, monkeypatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    own = dict(OpenAIBackend(capitals, section_of(served)).fingerprint())
    assert own == OpenAIBackend(capitals, section_of(served, concurrency=1, rate=600.0, key_env=VARIABLE)).fingerprint()
    for change in (
        {"template": "Q: {question}\nA: {answer}\n"},
        {"instruction": "Be brief."},
        {"max_new_tokens": 4},
        {"prompt": "chat"},
        {"revision": "2"},
        {"logprobs": "never"},
        {"image_pixels": 100},
    ):
        assert own != OpenAIBackend(capitals, section_of(served, **change)).fingerprint(), change


def test_a_name_the_server_does_not_serve_is_refused_before_anything_is_asked(served, capitals) -> None:
    with pytest.raises(ScoringError, match="serves speaker-1"):
        OpenAIBackend(capitals, section_of(served, name="speaker-2"))
    assert served.asked == []


class NothingThere(BaseHTTPRequestHandler):
    """A server that has nothing at any address, as one whose address lacks its /v1."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_an_address_with_nothing_behind_it_is_not_a_server_without_log_probabilities(capitals, prompt) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), NothingThere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            with pytest.raises(ScoringError, match=r"model\.url = .* finds nothing .* most addresses end in /v1"):
                OpenAIBackend(capitals, ModelSection(name="any", url=url, prompt=prompt, retries=0))
        finally:
            server.shutdown()


def test_pictures_cannot_go_into_a_plain_prompt(served, paintings) -> None:
    backend = OpenAIBackend(paintings, section_of(served))
    with pytest.raises(ScoringError, match=r'only a chat can show; set model\.prompt = "chat"'):
        backend.answer([asked_of(paintings, 0)])


def test_requests_run_at_the_same_time_but_no_more_than_allowed_and_come_back_in_order(capitals) -> None:
    with speaking(delay=0.03) as served:
        backend = OpenAIBackend(capitals, section_of(served, concurrency=3, logprobs="never"))
        requests = [Request(item, (), (item.answer,)) for item in capitals.items("dev")[:8]]
        replies = backend.answer(requests)
        assert [reply.raw.strip() for reply in replies] == [request.query.answer for request in requests]
        assert served.most_at_once == 3


def test_the_first_failure_ends_a_batch_and_what_was_not_asked_is_not_paid_for(capitals) -> None:
    with speaking() as served:
        backend = OpenAIBackend(capitals, section_of(served, concurrency=1, logprobs="never"))
        served.faults = [("400", {})]
        with pytest.raises(ScoringError, match="refuses: status 400, fault 400"):
            backend.answer([Request(item, (), (item.answer,)) for item in capitals.items("dev")])
        assert len(served.asked) < 4


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
def test_a_whole_run_counts_its_cost_and_the_key_is_nowhere(tmp_path, capitals, monkeypatch, caplog, capfd) -> None:
    pytest.importorskip("transformers", reason="the extra `embed` is not installed")
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "embedders"))
    from tiny_networks import save_sentence_model

    from leverplus.cli.main import main

    monkeypatch.setenv(VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)
    rows = [
        {"id": item.id, "question": item.question, "answers": list(item.answers), "split": split}
        for split in ("train", "dev", "test")
        for item in capitals.items(split)
    ]
    (tmp_path / "capitals.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    weights = save_sentence_model(tmp_path / "weights")
    with speaking(key=KEY) as served:
        text = RECIPE.format(folder=tmp_path, weights=weights, url=served.url)
        (tmp_path / "served.toml").write_text(text)
        run = ["run", str(tmp_path / "served.toml"), "--out", str(tmp_path / "run"), "--store", str(tmp_path / "s.db")]
        assert main(run) == 0
        spent = json.loads((tmp_path / "run" / "run.json").read_text())["spent"]
        assert {header["authorization"] for header in map(lower, served.headers)} == {f"Bearer {KEY}"}
        assert spent["requests"] >= len(served.asked)
        expected = (spent["prompt_tokens"] * 2.0 + spent["completion_tokens"] * 8.0) / 1e6
        assert spent["cost"] == pytest.approx(expected)
        assert spent["cost"] > 0
        asked = len(served.asked)
        assert main(run) == 0
        assert len(served.asked) - asked <= 1, "only whether log-probabilities are offered is asked again"
        assert main([*run[:3], str(tmp_path / "wrong"), "--set", "model.key_env=NOT_SET_ANYWHERE"]) == 1
        monkeypatch.setenv(VARIABLE, "sk-wrong-key-123456")
        assert main([*run[:3], str(tmp_path / "refused"), "--store", str(tmp_path / "other.db")]) == 1
    out = "".join(capfd.readouterr()) + caplog.text
    assert "NOT_SET_ANYWHERE: this environment variable is not set" in out
    assert "refuses the key in the environment variable LEVER_TEST_KEY" in out
    for key in (KEY, "sk-wrong-key-123456"):
        assert key not in out
        holders = [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
        assert holders == []


def lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("key", ["sk-secret", "hf_secretABC123", "gsk_secret0A1b2C3d4"])
def test_a_key_that_was_written_into_a_recipe_is_refused_and_not_shown(key) -> None:
    section = ModelSection(name="m", url="https://user:pw-secret@api.example/v1?key=abc-secret", key_env=key)
    problems = section.problems("openai")
    assert len(problems) == 2
    assert "secret" not in " ".join(problems)


def test_settings_of_the_other_kind_of_backend_are_refused() -> None:
    url = "http://127.0.0.1:1/v1"
    assert ModelSection(name="m", url=url).problems("openai") == []
    assert ModelSection(name="m", url=url, dtype="float16").problems("openai") == [
        'model.dtype: score.backend = "openai" does not use it'
    ]
    assert ModelSection(name="m", url=url).problems("hf") == ['model.url: score.backend = "hf" does not use it']
    assert len(ModelSection(name="m").problems("openai")) == 1
    assert ModelSection(name="m", url=url, max_cost=1.0).problems("openai") != []


def test_without_its_package_the_backend_says_what_to_type(monkeypatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "httpcore", None)
    monkeypatch.delitem(sys.modules, "leverplus.backends.api.wire")
    with pytest.raises(LeverError, match=r"pip install 'leverplus\[api\]'"):
        importlib.import_module("leverplus.backends.api.wire")


@pytest.mark.parametrize("prompt", ["plain", "chat"])
def test_the_public_function_renders_what_is_sent(served, capitals, paintings, prompt) -> None:
    task = capitals if prompt == "plain" else paintings
    section = section_of(served, prompt=prompt, instruction="Answer with one word.", logprobs="never")
    query, demos = task.items("dev")[0], tuple(task.items("train")[:2])
    OpenAIBackend(task, section).answer([Request(query, demos, (query.answer,))])
    body = served.asked[-1][1]
    assert body["prompt" if prompt == "plain" else "messages"] == render_prompt("openai", section, task, query, demos)
