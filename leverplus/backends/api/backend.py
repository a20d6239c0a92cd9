"""The `openai` backend: a model behind an OpenAI-compatible server, asked by several threads.

Answers always; log-probabilities of given answers where the server offers them: vLLM (chat and completions), SGLang and
others that echo a completion's prompt. Where it offers none, replies say so and gt_prob stays unmeasured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from leverplus.backends.api.client import Client, Refused, usage_of
from leverplus.backends.api.prompts import Prompts
from leverplus.backends.api.weighing import Span, chat_span, plain_span, prompt_tokens
from leverplus.backends.base import Reply, Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task

FACTS = ("id", "root", "owned_by", "meta")
"""What of a server's own words about its model goes into the fingerprint; times of start do not."""

UNKNOWN = (400, 404, 405, 415, 422, 501)
"""How servers say that they do not know an option or an address."""


class OpenAIBackend:
    """Asks a server one request a thread; what it cost is in `usage()`.

    `tolerance` is how far a log-probability (nats) may move from batch to batch: servers batch as they like, and most
    compute in bfloat16.
    """

    tolerance = 0.5

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task, self.section = task, section
        self.client = Client(section)
        self.prompts = Prompts(section, task)
        self.chat = section.prompt == "chat"
        self.served = self._served()
        self.weighs = section.logprobs == "always" or (section.logprobs == "auto" and self._offers())
        if self.weighs:  # a backend that shows no spans is not asked for them
            self.answer_span = self._shown_span

    @property
    def notice(self) -> str:
        """What the user must know before anything is scored; "" when there is nothing."""
        if self.weighs:
            return ""
        return (
            f"{self.section.url} offers no log-probabilities of given answers, so gt_prob is not measured: search goes "
            'by accuracy, and rewards must too, such as reward.mode = "soft_only"'
        )

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        shape = [section.prompt, section.instruction, "" if self.chat else section.template, section.image_pixels]
        return {
            "model": section.name,
            "revision": section.revision or _digest(self.served),
            "template": f"api-{section.prompt}-{_digest(shape)}",
            "decoding": f"greedy, at most {section.max_new_tokens} tokens",
            "logprobs": "of prompts" if self.weighs else "none",
        }

    def usage(self) -> Mapping[str, float]:
        """Requests, tokens and money so far, those of the self-test included."""
        return asdict(self.client.spent)

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        with ThreadPoolExecutor(min(self.section.concurrency, max(1, len(requests)))) as pool:
            tasks = [pool.submit(self._reply, request) for request in requests]
            try:
                return [task.result() for task in tasks]
            except BaseException:
                for task in tasks:
                    task.cancel()  # what was not asked yet is not paid for
                raise

    def _reply(self, request: Request) -> Reply:
        if not request.references:
            raise ScoringError(f"query {request.query.id} has no reference answers to weigh")
        if not self.weighs:
            raw, tokens = self._generate(request)
            return Reply(raw, None, tokens)
        spans, weighed = self._weigh(request, request.references)
        logprobs = tuple(span.logprob for span in spans)
        if request.choose:
            best = max(range(len(logprobs)), key=logprobs.__getitem__)
            return Reply(request.references[best], logprobs, weighed)
        raw, tokens = self._generate(request)
        return Reply(raw, logprobs, tokens + weighed)

    # -- what the model writes

    def _generate(self, request: Request) -> tuple[str, int]:
        body = {**self._common(), "max_tokens": self.section.max_new_tokens}
        if self.chat:
            reply = self.client.post("/chat/completions", {**body, "messages": self.prompts.turns(request)})
        else:
            text = self.prompts.text(request)
            reply = self.client.post("/completions", {**body, "prompt": text, "stop": [self.prompts.ending]})
        (choice,) = _choices(reply, 1)
        message = choice.get("message")
        written = message.get("content") if isinstance(message, Mapping) else choice.get("text")
        if written is not None and not isinstance(written, str):
            raise ScoringError(f"{self.section.url} wrote {type(written).__name__} where an answer is a text")
        return written or "", sum(usage_of(reply))

    def _common(self) -> dict[str, Any]:
        return {"model": self.section.name, "temperature": 0}

    # -- what the model thinks of given answers

    def _weigh(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        return self._weigh_chat(request, references) if self.chat else self._weigh_plain(request, references)

    def _weigh_plain(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        prompts = self.prompts
        answers = [prompts.lead + reference for reference in references]
        texts = [prompts.text(request) + answer + prompts.ending for answer in answers]
        reply = self._echo(texts)
        choices = sorted(_choices(reply, len(texts)), key=lambda choice: int(choice.get("index") or 0))
        before = None if all(answer.isascii() for answer in answers) else self._length(request)
        spans = [
            plain_span(self._tokens(choice, reply), answer, prompts.ending, None if answer.isascii() else before)
            for choice, answer in zip(choices, answers, strict=True)
        ]
        return spans, sum(usage_of(reply))

    def _weigh_chat(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        spans, tokens = [], 0
        turns = self.prompts.turns(request)
        before = None if all(reference.isascii() for reference in references) else self._length(request)
        for reference in references:
            reply = self._read([*turns, {"role": "assistant", "content": reference}], generate=False)
            (choice,) = _choices(reply, 1)
            known = None if reference.isascii() else before
            spans.append(chat_span(self._tokens(choice, reply), reference, known))
            tokens += sum(usage_of(reply))
        return spans, tokens

    def _read(self, messages: Sequence[Mapping[str, Any]], *, generate: bool) -> dict[str, Any]:
        """A chat with the log-probabilities of all its tokens; `generate` opens a turn for the model."""
        options = {"add_generation_prompt": generate, "prompt_logprobs": 0, "max_tokens": 1}
        return self.client.post("/chat/completions", {**self._common(), **options, "messages": list(messages)})

    def _echo(self, texts: Sequence[str]) -> dict[str, Any]:
        """Texts with the log-probabilities of all their tokens."""
        options = {"echo": True, "max_tokens": 0, "logprobs": 1}
        return self.client.post("/completions", {**self._common(), **options, "prompt": list(texts)})

    def _length(self, request: Request) -> int:
        """How many tokens a prompt has before its answer."""
        if self.chat:
            reply = self._read(self.prompts.turns(request), generate=True)
        else:
            reply = self._echo([self.prompts.text(request)])
        return len(self._tokens(_choices(reply, 1)[0], reply))

    def _tokens(self, choice: Mapping[str, Any], reply: Mapping[str, Any]) -> list[tuple[str, float | None]]:
        tokens = prompt_tokens(choice, reply)
        if tokens is None:
            raise ScoringError(
                f"{self.section.url} sent no log-probabilities of the prompt, though they were asked for; "
                'set model.logprobs = "never" to go without'
            )
        return tokens

    def _shown_span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference."""
        return self._weigh(request, [reference])[0][0].text

    # -- what the server is

    def _served(self) -> dict[str, Any]:
        """The server's words about the model; a name it does not know is refused before anything is paid for."""
        listed = self.client.models()
        for row in listed:
            if row.get("id") == self.section.name:
                return {fact: row[fact] for fact in FACTS if fact in row}
        if listed:
            known = ", ".join(str(row.get("id")) for row in listed[:8])
            raise ScoringError(f'model.name = "{self.section.name}": {self.section.url} serves {known}')
        return {}

    def _offers(self) -> bool:
        """Whether the server weighs given answers: it is asked once, with one short prompt."""
        try:
            if self.chat:
                question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
                reply = self._read([question, answer], generate=False)
            else:
                reply = self._echo(["1 + 1 = 2"])
        except Refused as error:
            if error.status not in UNKNOWN:
                raise
            return False
        choices = reply.get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        tokens = prompt_tokens(first, reply) or []
        return any("2" in text and value is not None for text, value in tokens)


def _choices(reply: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != count or not all(isinstance(c, Mapping) for c in choices):
        raise ScoringError(
            f"the server's reply has no list of {count} choices; is model.url the address of an /v1 API?"
        )
    return choices


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
