"""The `openai` backend: a model behind an OpenAI-compatible server, asked by several threads.

Answers always; log-probabilities of given answers where the server offers them: vLLM (chat and completions), SGLang and
others that echo a completion's prompt. Where it offers none, replies say so and gt_prob stays unmeasured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from leverplus.backends.api.account import Account, ReplyPart
from leverplus.backends.api.client import Client, Reader, Refused
from leverplus.backends.api.prompts import ServerPrompts
from leverplus.backends.api.room import ServerRoom, is_too_long
from leverplus.backends.api.threads import in_threads
from leverplus.backends.api.weighing import Span, chat_span, plain_span, prompt_tokens, whole_text
from leverplus.backends.base import Answered, Reply, Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task

MODEL_FACTS = ("id", "root", "owned_by", "meta")
"""Fields of a server's /models entry that go into the fingerprint; its time of start does not."""

NOT_FOUND = 404
NOT_KNOWN_STATUSES = (400, 404, 405, 415, 422, 501)
"""HTTP statuses by which servers say that they do not know an option or an address."""


class OpenAIBackend:
    """Asks a server from several threads; what it cost is in `usage()`.

    `tolerance` is how far a log-probability (nats) may move from batch to batch: servers batch as they like, and most
    compute in bfloat16. `unsteady` is what to do where it moves further.
    """

    tolerance = 0.5
    unsteady = (
        "your server answers differently when it answers several requests at once: start it with one slot and no "
        "prompt cache (llama-server --parallel 1 --no-cache-prompt); for other servers set model.concurrency = 1 in "
        "the recipe"
    )

    def __init__(self, task: Task, section: ModelSection, account: Account | None = None) -> None:
        self.task, self.section = task, section
        # Both are replaced by whoever shows progress: a line for the user, and how many replies have come.
        self.say: Callable[[str], None] = lambda _line: None
        self.heard: Callable[[int], None] = lambda _count: None
        self.client = Client(section, account=account)
        self.prompts = ServerPrompts(section, task)
        self.chat = section.prompt == "chat"
        row = self._find_model()
        self.served = _facts_of(row)
        self.room = ServerRoom(self.client, section, self.prompts, row)
        self.weighs = section.logprobs == "always" or (section.logprobs == "auto" and self._offers_logprobs())
        if self.weighs:  # the self-test asks a backend for the text of its spans only where it has this method
            self.answer_span = self._weighed_text

    @property
    def notice(self) -> str:
        """What the user must know before anything is scored; "" when there is nothing."""
        if self.weighs:
            return ""
        return (
            f"{self.section.url} offers no log-probabilities of given answers, so gt_prob is not measured: what is "
            "learnt and searched by is whether the written answer is right"
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

    def require_room(self, shots: int) -> str:
        """Refuse prompts that the server has no room for, before one is paid for; a note where only few may not fit."""
        return self.room.require(self.task, shots)

    def usage(self) -> Mapping[str, float]:
        """Requests, tokens and money so far over all takes of a run, those of the self-test included."""
        return asdict(self.client.account.total)

    def stream(self, requests: Sequence[Request]) -> Generator[list[Answered], None, None]:
        yield from in_threads(self._reply, requests, self.section.concurrency, self.client.halt, self._say_waiting)
        self.client.account.stored()  # the caller came back after the last reply, so it has committed all of them

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """All replies; `heard` is told of them as they come."""
        parts = in_threads(self._reply, requests, self.section.concurrency, self.client.halt, self._say_waiting)
        replies: dict[int, Reply] = {}
        with closing(parts):
            for part in parts:
                for answered in part:
                    replies[answered.place] = answered.reply
                self.heard(len(part))
        return [replies[place] for place in range(len(requests))]

    @property
    def most_by_worker(self) -> int:
        """Prompts per batch of a worker on a cluster: its replies reach the store only after the last of them."""
        return 4 * self.section.concurrency

    def charged_elsewhere(self, values: Mapping[str, float]) -> None:
        """Count what a copy of this backend in another process spent."""
        self.client.account.settled(**{**values, "settled": values["requests"]})

    def lost_elsewhere(self, requests: Sequence[Request]) -> None:
        """Count what a copy of this backend may have spent on prompts before it was lost: at most so many requests."""
        count = 0
        for request in requests:
            weighing = len(request.references) if self.chat else 1
            writing = 0 if self.weighs and request.choose else 1
            # an answer that is not ASCII takes one more, for the length of its prompt
            length = 0 if all(reference.isascii() for reference in request.references) else 1
            count += (weighing + length if self.weighs else 0) + writing
        self.client.account.settled(requests=count, unpriced=count, settled=count)

    def judged(self) -> None:
        """Forget the replies to a self-test, which were judged and are of no further use."""
        self.client.account.stored()

    def _say_waiting(self, count: int) -> None:
        self.say(f"waiting for {count} replies that are under way and paid for; stop again to leave at once")

    def _reply(self, request: Request) -> Reply:
        if not request.references:
            raise ScoringError(
                f"query {request.query.id} has no true answers whose probability could be measured; run "
                "`lever task check`"
            )
        try:
            return self._answered(request)
        except Refused as error:
            if not is_too_long(error.words):
                raise
            raise self.room.refusal(request, error.words) from error

    def _answered(self, request: Request) -> Reply:
        if not self.weighs:
            raw, tokens = self._generate(request)
            return Reply(raw, None, tokens)
        spans, weighed = self._weigh(request, request.references)
        logprobs = tuple(span.logprob for span in spans)
        if request.choose:
            best = logprobs.index(max(logprobs))
            return Reply(request.references[best], logprobs, weighed)
        raw, tokens = self._generate(request)
        return Reply(raw, logprobs, tokens + weighed)

    # -- what the model writes

    def _generate(self, request: Request) -> tuple[str, int]:
        """The answer that the model writes, and the tokens it took."""
        body = {**self._common(), "max_tokens": self.section.max_new_tokens}
        if self.chat:
            body["messages"] = self.prompts.turns(request)
            part = self.client.post("/chat/completions", body, self._written)
        else:
            body |= {"prompt": self.prompts.text(request), "stop": [self.prompts.ending]}
            part = self.client.post("/completions", body, self._written)
        return str(part.value), part.tokens

    def _written(self, reply: Mapping[str, Any]) -> str:
        """The text of a reply: of a chat its message, of a completion its `text`."""
        (choice,) = _choices(reply, 1)
        message = choice.get("message")
        written = message.get("content") if isinstance(message, Mapping) else choice.get("text")
        if written is not None and not isinstance(written, str):
            raise ScoringError(
                f"{self.section.url} sent {type(written).__name__} instead of a text as the answer; "
                "is model.url the address of a model that writes text?"
            )
        return whole_text(written or "")

    def _common(self) -> dict[str, Any]:
        return {"model": self.section.name, "temperature": 0}

    # -- how probable given answers are

    def _weigh(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        """One span per reference, and the tokens it took."""
        if self.chat:
            return self._weigh_chat(request, references)
        return self._weigh_plain(request, references)

    def _weigh_plain(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        """All references in one request, which `/completions` takes as a list of prompts."""
        prompts = self.prompts
        answers = [prompts.lead + reference for reference in references]
        texts = [prompts.text(request) + answer + prompts.ending for answer in answers]
        # Only an answer that is not ASCII needs the length of its prompt (see `plain_span`), which costs a request.
        before = None if all(answer.isascii() for answer in answers) else self._prompt_length(request)

        def spans_of(reply: Mapping[str, Any]) -> list[list[Any]]:
            found = []
            for choice, answer in zip(_choices(reply, len(texts)), answers, strict=True):
                known = None if answer.isascii() else before
                span = plain_span(self._prompt_tokens(choice, reply), answer, prompts.ending, known)
                found.append([span.text, span.logprob])
            return found

        part = self._ask_echo(texts, spans_of)
        return [Span(*span) for span in part.value], part.tokens

    def _weigh_chat(self, request: Request, references: Sequence[str]) -> tuple[list[Span], int]:
        """One request per reference, because `/chat/completions` takes one chat."""
        spans, tokens = [], 0
        turns = self.prompts.turns(request)
        before = None if all(reference.isascii() for reference in references) else self._prompt_length(request)
        for reference in references:
            # As a default, `reference` is the one of this turn of the loop, not the last one.
            def span_of(reply: Mapping[str, Any], reference: str = reference) -> list[Any]:
                known = None if reference.isascii() else before
                span = chat_span(self._prompt_tokens(_choices(reply, 1)[0], reply), reference, known)
                return [span.text, span.logprob]

            part = self._read([*turns, {"role": "assistant", "content": reference}], span_of, generate=False)
            spans.append(Span(*part.value))
            tokens += part.tokens
        return spans, tokens

    def _read(self, messages: Sequence[Mapping[str, Any]], read: Reader, *, generate: bool) -> ReplyPart:
        """Ask for a chat with the log-probabilities of all its tokens; `generate` opens a turn for the model."""
        # vLLM's options; a server must write at least one token, which is not used.
        options = {"add_generation_prompt": generate, "prompt_logprobs": 0, "max_tokens": 1}
        return self.client.post("/chat/completions", {**self._common(), **options, "messages": list(messages)}, read)

    def _ask_echo(self, texts: Sequence[str], read: Reader) -> ReplyPart:
        """Ask for texts with the log-probabilities of all their tokens, and for nothing to be written."""
        options = {"echo": True, "max_tokens": 0, "logprobs": 1}
        return self.client.post("/completions", {**self._common(), **options, "prompt": list(texts)}, read)

    def _prompt_length(self, request: Request) -> int:
        """How many tokens a prompt has before its answer."""

        def length_of(reply: Mapping[str, Any]) -> int:
            return len(self._prompt_tokens(_choices(reply, 1)[0], reply))

        if self.chat:
            return int(self._read(self.prompts.turns(request), length_of, generate=True).value)
        return int(self._ask_echo([self.prompts.text(request)], length_of).value)

    def _prompt_tokens(self, choice: Mapping[str, Any], reply: Mapping[str, Any]) -> list[tuple[str, float | None]]:
        tokens = prompt_tokens(choice, reply)
        if tokens is None:
            raise ScoringError(
                f"{self.section.url} sent no log-probabilities of the prompt, though they were asked for; "
                'set model.logprobs = "never" to go without'
            )
        return tokens

    def prompt_text(self, request: Request) -> str:
        """The whole prompt, up to where the answer begins; of a chat the texts of its turns."""
        return self.prompts.chat_text(request) if self.chat else self.prompts.text(request)

    def _weighed_text(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference."""
        return self._weigh(request, [reference])[0][0].text

    # -- what the server is

    def _find_model(self) -> dict[str, Any]:
        """What the server says about the model; a name it does not know is refused before anything is paid for."""
        listed = self.client.models()
        for row in listed:
            if row.get("id") == self.section.name:
                return row
        if listed:
            known = ", ".join(str(row.get("id")) for row in listed[:8])
            raise ScoringError(f'model.name = "{self.section.name}": {self.section.url} serves {known}')
        return {}

    def _offers_logprobs(self) -> bool:
        """Whether the server gives log-probabilities of given answers: it is asked once, with one short prompt.

        Only a yes is kept for later takes of a run: a server that does not may be mended in the meantime.
        """
        known = f"weighs {self.section.prompt} {self.section.name}"
        if self.client.account.fact(known):
            return True
        try:
            if self.chat:
                question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
                offers = self._read([question, answer], _weighs_two, generate=False).value
            else:
                offers = self._ask_echo(["1 + 1 = 2"], _weighs_two).value
        except Refused as error:
            if error.status not in NOT_KNOWN_STATUSES:
                raise
            if error.status == NOT_FOUND and not self.served:  # neither a list of models nor a place to ask
                raise ScoringError(
                    f"model.url = {self.section.url}: a server answers there, but finds nothing at /models nor where "
                    "prompts are sent; most addresses end in /v1"
                ) from error
            return False
        if offers:
            self.client.account.learn(known, True)
        return bool(offers)


def _facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What tells models of one name apart; how long a prompt the server takes changes no answer."""
    facts = {fact: row[fact] for fact in MODEL_FACTS if fact in row}
    if isinstance(facts.get("meta"), Mapping):
        facts["meta"] = {key: value for key, value in facts["meta"].items() if key != "n_ctx"}
    return facts


def _weighs_two(reply: Mapping[str, Any]) -> bool:
    """Whether the reply to the first question has a log-probability for its answer, 2."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    tokens = prompt_tokens(first, reply) or []
    return any("2" in text and value is not None for text, value in tokens)


def _choices(reply: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """The choices of a reply in the order of what was asked; servers may send them in another."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != count or not all(isinstance(c, Mapping) for c in choices):
        raise ScoringError(
            f"the server's reply has no list of {count} choices; is model.url the address of an /v1 API?"
        )
    if count == 1:
        return choices
    by_index = {choice.get("index"): choice for choice in choices if isinstance(choice.get("index"), int)}
    if set(by_index) != set(range(count)):
        found = str([choice.get("index") for choice in choices])[:80]
        raise ScoringError(
            f"the server numbers its {count} choices by {found} instead of 0 to "
            f'{count - 1}, so answers cannot be told apart; set model.logprobs = "never" to go without'
        )
    return [by_index[index] for index in range(count)]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
