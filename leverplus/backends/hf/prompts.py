"""Writes prompts as text and as tokens: demonstrations in order, the query last, and the tokens of an answer.

An answer's tokens are built by construction: the prompt ends where the model begins to write, and what is weighed are
the tokens of the answer as they would stand there, with the marker that ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from leverplus.backends.base import Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ANSWER, QUESTION, ModelSection
from leverplus.types import Item

MARK = "xyzzy"  # a word that no chat template contains, to find where a template puts a text
Turn = dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """What surrounds an answer in a prompt: the blanks before it (`lead`), the text and the tokens that end it."""

    lead: str
    text: str
    tokens: tuple[int, ...]


class ModelPrompts:
    """Writes prompts for one tokenizer; `picture` is the text that stands for a picture ("" for text-only models)."""

    def __init__(self, tokenizer: Any, section: ModelSection, renderer: Any = None, picture: str = "") -> None:
        self.tokenizer = tokenizer
        self.section = section
        self.renderer = renderer if renderer is not None else tokenizer
        self.picture = picture
        self.chat = section.prompt == "chat"
        before, _, after = section.template.partition(ANSWER)
        # The prompt ends before the blank, which most tokenizers join with the first word of the answer.
        self.before, self.after = before.rstrip(" "), after
        self.system_turn = True
        if self.chat:
            self._require_template()
            self.ending = self._chat_ending()
        else:
            self.ending = self._plain_ending(before)
        # Prompts that share their last line share the tokens of their answers.
        self.answer_tokens = lru_cache(maxsize=1 << 14)(self._answer_tokens)

    # -- the text of a prompt

    def text(self, request: Request) -> str:
        """The whole prompt up to where the answer begins."""
        if self.chat:
            return self._render(self._turns(request.demos, request.query), generate=True)
        parts = []
        if self.section.instruction:
            parts.append(self.section.instruction + "\n")
        for demo in request.demos:
            parts.append(self._ask(demo) + self.ending.lead + demo.answer + self.after)
        parts.append(self._ask(request.query))
        return "".join(parts)

    def _ask(self, item: Item) -> str:
        marker = self.picture if item.image is not None else ""
        return marker + self.before.replace(QUESTION, item.question)

    def _turns(self, demos: Sequence[Item], query: Item) -> list[Turn]:
        """The turns of a chat; without a system turn the instruction stands before the first question."""
        turns: list[Turn] = []
        instruction = self.section.instruction
        if instruction and self.system_turn:
            turns.append(self._turn("system", instruction))
        for number, item in enumerate((*demos, query)):
            question = item.question
            if number == 0 and instruction and not self.system_turn:
                question = f"{instruction}\n{question}"
            turns.append(self._turn("user", question, picture=item.image is not None))
            if number < len(demos):
                turns.append(self._turn("assistant", item.answer))
        return turns

    def _turn(self, role: str, text: str, *, picture: bool = False) -> Turn:
        if not self.picture:
            return {"role": role, "content": text}
        content = [{"type": "image"}] if picture else []
        return {"role": role, "content": [*content, {"type": "text", "text": text}]}

    def _render(self, turns: Sequence[Turn], *, generate: bool) -> str:
        text: str = self.renderer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=generate)
        return text

    def _require_template(self) -> None:
        """Refuse a model without a chat template, and find out whether its template takes a system turn."""
        from jinja2 import TemplateError

        if not getattr(self.renderer, "chat_template", None):
            raise ScoringError('this model has no chat template of its own; set model.prompt = "plain"')
        try:
            self._render([self._turn("system", MARK), self._turn("user", MARK)], generate=True)
        except TemplateError:
            self.system_turn = False

    # -- tokens

    def tokens(self, text: str) -> list[int]:
        """The tokens of a whole prompt."""
        return self.tokens_of([text])[0]

    def tokens_of(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of whole prompts, found together; a chat template writes special tokens itself."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=not self.chat)["input_ids"]
        return ids

    def _bare(self, text: str) -> list[int]:
        """The tokens of a piece of text, without the start marker that a whole prompt begins with."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answer(self, text: str, reference: str) -> tuple[int, ...]:
        """The tokens of an answer after a prompt's text, its end marker included."""
        found: tuple[int, ...] = self.answer_tokens(last_line(text), reference)
        return found

    def _answer_tokens(self, tail: str, reference: str) -> tuple[int, ...]:
        """The tokens of an answer and its end after the last line of a prompt."""
        words = self._after(tail, self.ending.lead + reference)
        if not words:
            raise ScoringError(f"the answer '{reference}' has no tokens")
        if self.chat:
            return (*words, *self.ending.tokens)
        whole = self._after(tail, self.ending.lead + reference + self.ending.text)
        # A tokenizer may join the end with the answer's last word; then the end is added as tokens of its own.
        if whole[: len(words)] == words and len(whole) > len(words):
            return whole
        return (*words, *self.ending.tokens)

    def _after(self, tail: str, words: str) -> tuple[int, ...]:
        """The tokens that words add to a line; their tokens alone where they change those of the line."""
        alone, joint = self._bare(tail), self._bare(tail + words)
        if joint[: len(alone)] == alone:
            return tuple(joint[len(alone) :])
        return tuple(self._bare(words))

    def span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference, without the end marker."""
        tail = last_line(self.text(request))
        ids = self.answer_tokens(tail, reference)
        words = self._after(tail, self.ending.lead + reference)
        return self.decode(ids[: len(words)])

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def written(self, ids: Sequence[int]) -> str:
        """What the model wrote, up to the end of its answer."""
        text = self.decode(ids)
        has_ending = not self.chat and bool(self.ending.text.strip(" "))
        if not has_ending or not text.strip():
            return text
        return text.split(self.ending.text, 1)[0]

    # -- how an answer ends

    def _plain_ending(self, before: str) -> Ending:
        """The end of an answer by the recipe's template: what stands after {answer}, as tokens after a word."""
        lead = before[len(self.before) :]
        tail = last_line(self.before.replace(QUESTION, MARK))
        words = self._after(tail, lead + MARK)
        whole = self._after(tail, lead + MARK + self.after)
        end = whole[len(words) :]
        if whole[: len(words)] != words:  # the tokenizer joins the end with the word before it
            end = tuple(self._bare(self.after))
        return Ending(lead, self.after, end)

    def _chat_ending(self) -> Ending:
        """The end of an answer by the model's chat template: the first special token after it, else end of text.

        It is found by rendering a chat with a made-up answer and looking at what stands around that.
        """
        asked = self._turn("user", MARK)
        prompt = self._render([asked], generate=True)
        whole = self._render([asked, self._turn("assistant", MARK)], generate=False)
        lead, end = "", self.tokenizer.eos_token_id
        if whole.startswith(prompt):
            lead, found, rest = whole[len(prompt) :].partition(MARK)
            after = self._bare(rest)[:3] if found else []  # a line end may stand before the marker
            special = [token for token in after if token in self.tokenizer.all_special_ids]
            if special:
                end = special[0]
        if end is None:
            raise ScoringError(
                'neither the chat template nor the tokenizer says how an answer ends; set model.prompt = "plain"'
            )
        if lead.strip():  # more than blanks is not before every answer: some templates write an empty thought there
            lead = ""
        return Ending(lead, "", (int(end),))

    def stops(self, model: Any) -> frozenset[int]:
        """The tokens after which the model writes nothing more."""
        known = {self.ending.tokens[0], self.tokenizer.eos_token_id}
        own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)  # one, several or None
        known.update(own if isinstance(own, (list, tuple)) else [own])
        return frozenset(token for token in known if token is not None)


def last_line(text: str) -> str:
    """The end of a text from its last line on; a line end that closes the text belongs to that line."""
    return text[text.rfind("\n", 0, max(0, len(text) - 1)) + 1 :]
