"""Writes prompts as text and as tokens: demonstrations in order, the query last, and the tokens of an answer.

An answer's tokens are built by construction: the prompt ends where the model begins to write, and what is weighed are
the tokens of the answer as they would stand there, with the marker that ends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from leverplus.data.types import Item
from leverplus.errors import ScoringError
from leverplus.models.base import Request
from leverplus.models.prompts import PromptWriter, Turn
from leverplus.models.settings import QUESTION, ModelSection

MARK = "xyzzy"  # a word that no chat template contains, to find where a template puts a text


@dataclass(frozen=True)
class AnswerEnd:
    """What surrounds the tokens of an answer: the blanks before it, and the tokens that end it."""

    lead: str
    tokens: tuple[int, ...]


class ModelPrompts(PromptWriter):
    """Writes prompts for one tokenizer, and for one processor if the model sees pictures.

    `picture` is the text that stands for a picture ("" for text-only models).
    """

    def __init__(
        self, tokenizer: Any, section: ModelSection, processor: Any = None
    ) -> None:
        super().__init__(section)
        self.tokenizer = tokenizer
        self.renderer = tokenizer
        self.picture = ""
        if processor is not None:
            self.renderer, self.picture = processor, picture_marker(processor)
        if self.chat:
            self._require_template()
            self.end = self._chat_end()
        else:
            self.end = self._plain_end()
        # Prompts that share their last line share the tokens of their answers.
        self.answer_tokens = lru_cache(maxsize=1 << 14)(self._answer_tokens)

    def digest(self) -> str:
        """How prompts are written, for a fingerprint: the recipe's template, or the chat template of the model."""
        section = self.section
        template = str(self.renderer.chat_template) if self.chat else section.template
        shape = repr([section.prompt, section.instruction, template])
        return f"{section.prompt}-{hashlib.sha256(shape.encode()).hexdigest()[:16]}"

    # -- the text of a prompt

    def text(self, request: Request) -> str:
        """The whole prompt up to where the answer begins."""
        if self.chat:
            return self._render(self.turns(request), generate=True)
        return super().text(request)

    def marker(self, item: Item) -> str:
        if item.image is not None:
            return self.picture
        return ""

    def turn(self, role: str, item: Item, question: str | None = None) -> Turn:
        turn = self.text_turn(role, item.question if question is None else question)
        if self.picture and item.image is not None:
            turn["content"].insert(0, {"type": "image"})
        return turn

    def text_turn(self, role: str, text: str) -> Turn:
        if not self.picture:
            return {"role": role, "content": text}
        return {"role": role, "content": [{"type": "text", "text": text}]}

    def _render(self, turns: Sequence[Turn], *, generate: bool) -> str:
        text: str = self.renderer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=generate
        )
        return text

    def _require_template(self) -> None:
        """Refuse a model without a chat template, and find out whether its template takes a system turn."""
        from jinja2 import TemplateError

        if not getattr(self.renderer, "chat_template", None):
            raise ScoringError(
                'this model has no chat template of its own; set model.prompt = "plain"'
            )
        try:
            turns = [self.text_turn("system", MARK), self.text_turn("user", MARK)]
            self._render(turns, generate=True)
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
        ids: list[list[int]] = self.tokenizer(
            list(texts), add_special_tokens=not self.chat
        )["input_ids"]
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
        words = self._after(tail, self.end.lead + reference)
        if not words:
            raise ScoringError(f"the answer '{reference}' has no tokens")
        if not self.chat:
            # A tokenizer may join the end with the answer's last word; then the end is added as tokens of its own.
            whole = self._after(tail, self.end.lead + reference + self.ending)
            if whole[: len(words)] == words and len(whole) > len(words):
                return whole
        return (*words, *self.end.tokens)

    def _after(self, tail: str, words: str) -> tuple[int, ...]:
        """The tokens that words add to a line; their tokens alone where they change those of the line."""
        alone = self._bare(tail)
        joint = self._bare(tail + words)
        if joint[: len(alone)] == alone:
            return tuple(joint[len(alone) :])
        return tuple(self._bare(words))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def written(self, ids: Sequence[int]) -> str:
        """What the model wrote, up to the end of its answer."""
        text = self.decode(ids)
        if self.chat or not self.ending.strip(" ") or not text.strip():
            return text
        return text.split(self.stop, 1)[0]

    # -- how an answer ends

    def _plain_end(self) -> AnswerEnd:
        """The end of an answer by the recipe's template: what stands after {answer}, as tokens after a word."""
        tail = last_line(self.before.replace(QUESTION, MARK))
        words = self._after(tail, self.lead + MARK)
        whole = self._after(tail, self.lead + MARK + self.ending)
        if whole[: len(words)] == words:
            return AnswerEnd(self.lead, whole[len(words) :])
        # the tokenizer joins the end with the word before it
        return AnswerEnd(self.lead, tuple(self._bare(self.ending)))

    def _chat_end(self) -> AnswerEnd:
        """The end of an answer by the model's chat template: the first special token after it, else end of text.

        It is found by rendering a chat with a made-up answer and looking at what stands around that.
        """
        asked = self.text_turn("user", MARK)
        prompt = self._render([asked], generate=True)
        answered = self.text_turn("assistant", MARK)
        whole = self._render([asked, answered], generate=False)
        lead = ""
        end = self.tokenizer.eos_token_id
        if whole.startswith(prompt):
            lead, _, rest = whole[len(prompt) :].partition(MARK)
            # a line end may stand before the marker
            for token in reversed(self._bare(rest)[:3]):
                if token in self.tokenizer.all_special_ids:
                    end = token
        if end is None:
            raise ScoringError(
                'neither the chat template nor the tokenizer says how an answer ends; set model.prompt = "plain"'
            )
        # more than blanks is not before every answer: some templates write an empty thought there
        return AnswerEnd("" if lead.strip() else lead, (int(end),))

    def stops(self, generation_config: Any) -> frozenset[int]:
        """The tokens after which the model writes nothing more."""
        own = getattr(generation_config, "eos_token_id", None)  # one, several or None
        several = own if isinstance(own, (list, tuple)) else [own]
        known = {self.end.tokens[0], self.tokenizer.eos_token_id, *several}
        return frozenset(token for token in known if token is not None)


def last_line(text: str) -> str:
    """The end of a text from its last line on; a line end that closes the text belongs to that line."""
    end = max(0, len(text) - 1)
    return text[text.rfind("\n", 0, end) + 1 :]


def picture_marker(processor: Any) -> str:
    """What the chat template writes for a picture: more than the token itself where a model frames its pictures."""
    token = str(processor.image_token)
    if not getattr(processor, "chat_template", None):
        return token
    words = {"type": "text", "text": MARK}

    def render(*content: dict[str, str]) -> str:
        turn = {"role": "user", "content": list(content)}
        return str(processor.apply_chat_template([turn], tokenize=False))

    # The marker is what a picture adds to a turn: it begins where the two texts first differ.
    bare = render(words)
    shown = render({"type": "image"}, words)
    start = 0
    while bare[start : start + 1] == shown[start : start + 1] != "":
        start += 1
    marker = shown[start : start + len(shown) - len(bare)]
    if token in marker:
        return marker
    return token
