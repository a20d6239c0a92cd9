"""The `openai` backend: a model behind an OpenAI-compatible server, asked by several threads.

Answers always; log-probabilities of given answers where the server offers them: vLLM (chat and completions), SGLang and
others that echo a completion's prompt. Where it offers none, replies say so and gt_prob stays unmeasured.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from leverplus.data.tasks.base import Task
from leverplus.errors import ScoringError
from leverplus.models.api.account import Account, ReplyPart
from leverplus.models.api.client import Client, Reader, Refused, RequestHalted
from leverplus.models.api.weighing import (
    Span,
    Token,
    chat_span,
    plain_span,
    prompt_tokens,
    whole_text,
)
from leverplus.models.base import Answered, Reply, Request, in_order
from leverplus.models.prompts import ServerPrompts
from leverplus.models.room import Room, is_too_long, stated_room, too_long
from leverplus.models.settings import ModelSection

MODEL_FACTS = ("id", "root", "owned_by", "meta")
"""Fields of a server's /models entry that go into the fingerprint; its time of start does not."""

NOT_FOUND = 404
NOT_KNOWN_STATUSES = (400, 404, 405, 415, 422, 501)
"""HTTP statuses by which servers say that they do not know an option or an address."""

LETTERS = 6
"""Characters of a token where a server does not count them. Texts have fewer on average, so that what is refused by
this number does not fit."""

SILENT_WAIT = 1.0
"""Seconds of waiting for replies under way before the user is told."""


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

    def __init__(
        self, task: Task, section: ModelSection, account: Account | None = None
    ) -> None:
        self.task = task
        self.section = section
        # Replaced by whoever shows lines to the user.
        self.say: Callable[[str], None] = lambda _line: None
        self.client = Client(section, account=account)
        self.prompts = ServerPrompts(section, task)
        self.chat = self.prompts.chat
        self.served = self._find_model()
        stated = stated_room(self.served)
        self.room = Room(stated, section.url, self._count_tokens) if stated else None
        self.weighs = section.logprobs == "always" or (
            section.logprobs == "auto" and self._offers_logprobs()
        )

    @property
    def notice(self) -> str:
        """What the user must know before anything is scored; "" when there is nothing."""
        if self.weighs or self.section.logprobs == "never":
            return ""
        return (
            f"{self.section.url} offers no log-probabilities of given answers, so gt_prob is not measured: what is "
            "learnt and searched by is whether the written answer is right"
        )

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        return {
            "model": section.name,
            "revision": section.revision or _digest(_facts_of(self.served)),
            "template": f"api-{section.prompt}-{_digest(self.prompts.shape)}",
            "decoding": f"greedy, at most {section.max_new_tokens} tokens",
            "logprobs": "of prompts" if self.weighs else "none",
        }

    def require_room(self, shots: int) -> str:
        """Refuse prompts that the server has no room for, before one is paid for; a note where only few may not fit."""
        if self.room:
            return self.room.require(self.task, shots)
        return ""

    def usage(self) -> Mapping[str, float]:
        """Requests, tokens and money so far over all takes of a run, those of the self-test included."""
        return asdict(self.client.account.total)

    def forget(self) -> None:
        """Forget replies that are stored or were judged, and are of no further use."""
        self.client.account.stored()

    # -- asking from several threads

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """All replies in order."""
        with closing(self.stream(requests)) as coming:
            return in_order(coming)

    def stream(
        self, requests: Sequence[Request]
    ) -> Generator[list[Answered], None, None]:
        """Yield the replies that have come since the last time, until all requests are answered.

        The first failure sets `halt`: nothing further is asked, what is under way is waited for and yielded, and then
        the failure is raised. Where the caller leaves early (Ctrl-C), what is under way is waited for too: the threads
        have it in the account by then. The threads are daemons: a second Ctrl-C ends them with the process.
        """
        todo = iter(enumerate(requests))
        lock = threading.Lock()
        halt = self.client.halt
        # What threads hand back: a reply, an error, or None when a thread ends.
        done: SimpleQueue[Answered | Exception | None] = SimpleQueue()

        def work() -> None:
            while not halt.is_set():
                with lock:
                    place, request = next(todo, (0, None))
                if request is None:
                    break
                began = time.perf_counter()
                try:
                    reply = self._reply(request)
                    done.put(Answered(place, reply, time.perf_counter() - began))
                except Exception as error:
                    halt.set()
                    done.put(error)
            done.put(None)

        threads = []
        for _ in range(min(self.section.concurrency, len(requests))):
            threads.append(threading.Thread(target=work, daemon=True))
            threads[-1].start()
        running = len(threads)
        failure = None
        try:
            while running:
                answered, came = [], [done.get()]  # waits for one
                while not done.empty():  # and takes what else is there
                    came.append(done.get())
                for one in came:
                    if isinstance(one, Answered):
                        answered.append(one)
                    # The others fail with RequestHalted, which says nothing.
                    elif failure is None or isinstance(failure, RequestHalted):
                        failure = one or failure
                    running -= one is None
                if answered:
                    yield answered
        finally:
            halt.set()
            self._wait_for(threads)
            halt.clear()
        if failure is not None:
            raise failure

    def _wait_for(self, threads: Sequence[threading.Thread]) -> None:
        """Wait until all threads have ended; where that takes long, tell the user how many are late."""
        until = time.monotonic() + SILENT_WAIT
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        late = [thread for thread in threads if thread.is_alive()]
        if late:
            self.say(
                f"waiting for {len(late)} replies that are under way and paid for; stop again to leave at once"
            )
        for thread in late:
            thread.join()

    def _reply(self, request: Request) -> Reply:
        if not request.references:
            raise ScoringError(
                f"query {request.query.id} has no true answers whose probability could be measured; run "
                "`lever task check`"
            )
        logprobs = None
        tokens = 0
        try:
            if self.weighs:
                spans, tokens = self._weigh(request, request.references)
                logprobs = tuple(span.logprob for span in spans)
                if request.choose:
                    best = request.references[logprobs.index(max(logprobs))]
                    return Reply(best, logprobs, tokens)
            part = self._generate(request)
        except Refused as error:
            if is_too_long(error.words):
                raise ScoringError(too_long(request, error.words)) from error
            raise
        return Reply(str(part.value), logprobs, tokens + part.tokens)

    # -- what the model writes

    def _generate(self, request: Request) -> ReplyPart:
        """The answer that the model writes."""
        body: dict[str, Any] = {"max_tokens": self.section.max_new_tokens}
        if self.chat:
            body["messages"] = self.prompts.turns(request)
        else:
            body["prompt"] = self.prompts.text(request)
            body["stop"] = [self.prompts.stop]
        return self._post(body, self._written)

    def _written(self, reply: Mapping[str, Any]) -> str:
        """The text of a reply: of a chat its message, of a completion its `text`."""
        (choice,) = _choices(reply, 1)
        message = choice.get("message")
        written = choice.get("text")
        if isinstance(message, Mapping):
            written = message.get("content")
        if written is not None and not isinstance(written, str):
            raise ScoringError(
                f"{self.section.url} sent {type(written).__name__} instead of a text as the answer; "
                "is model.url the address of a model that writes text?"
            )
        return whole_text(written)

    def _post(self, body: Mapping[str, Any], read: Reader) -> ReplyPart:
        path = "/completions"
        if "messages" in body:
            path = "/chat/completions"
        common = {"model": self.section.name, "temperature": 0}
        return self.client.post(path, {**common, **body}, read)

    # -- how probable given answers are

    def _weigh(
        self, request: Request, references: Sequence[str]
    ) -> tuple[list[Span], int]:
        """One span per reference, and the tokens it took."""
        prompts = self.prompts
        answers = list(references)
        if not self.chat:
            answers = [prompts.lead + reference for reference in references]
        # Only an answer that is not ASCII needs the length of its prompt (see `plain_span`), which costs a request.
        before = None
        if not all(answer.isascii() for answer in answers):
            before = self._prompt_length(request)
        parts = []
        if self.chat:
            # one request per answer, because `/chat/completions` takes one chat
            turns = prompts.turns(request)
            for answer in answers:
                closed = [*turns, {"role": "assistant", "content": answer}]
                read = partial(self._spans, [answer], before)
                parts.append(self._post(_chat_body(closed), read))
        else:
            text = prompts.text(request)
            texts = [text + answer + prompts.ending for answer in answers]
            read = partial(self._spans, answers, before)
            parts.append(self._post(_echo_body(texts), read))
        spans = []
        for part in parts:
            spans += [Span(*own) for own in part.value]
        return spans, sum(part.tokens for part in parts)

    def _spans(
        self, answers: Sequence[str], before: int | None, reply: Mapping[str, Any]
    ) -> list[Span]:
        """Text and log-probability of every answer in a reply."""
        found = []
        for choice, answer in zip(_choices(reply, len(answers)), answers, strict=True):
            tokens = self._tokens_of(choice, reply)
            known = None if answer.isascii() else before
            if self.chat:
                found.append(chat_span(tokens, answer, known))
            else:
                found.append(plain_span(tokens, answer, self.prompts.ending, known))
        return found

    def _prompt_length(self, request: Request) -> int:
        """How many tokens a prompt has before its answer."""

        def length_of(reply: Mapping[str, Any]) -> int:
            return len(self._tokens_of(_choices(reply, 1)[0], reply))

        if self.chat:
            body = _chat_body(self.prompts.turns(request), generate=True)
        else:
            body = _echo_body([self.prompts.text(request)])
        return int(self._post(body, length_of).value)

    def _tokens_of(
        self, choice: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> list[Token]:
        tokens = prompt_tokens(choice, reply)
        if tokens is None:
            raise ScoringError(
                f"{self.section.url} sent no log-probabilities of the prompt, though they were asked for; "
                'set model.logprobs = "never" to go without'
            )
        return tokens

    # -- what the server is

    def _find_model(self) -> dict[str, Any]:
        """What the server says about the model; a name it does not know is refused before anything is paid for."""
        listed = {str(row.get("id")): row for row in self.client.models()}
        name = self.section.name
        if listed and name not in listed:
            known = ", ".join(list(listed)[:8])
            raise ScoringError(
                f'model.name = "{name}": {self.section.url} serves {known}'
            )
        return listed.get(name, {})

    def _count_tokens(self, request: Request) -> int:
        """Tokens of a prompt without pictures and of its answer, as the server counts them; at least so many."""
        bare = [replace(item, image=None) for item in (*request.demos, request.query)]
        request = Request(bare[-1], tuple(bare[:-1]), ())
        if self.chat:
            turns = self.prompts.turns(request)
            text = "\n".join(turn["content"] for turn in turns)
            prompt: dict[str, Any] = {"messages": turns}
        else:
            text = self.prompts.text(request)
            prompt = {"prompt": text}
        counted = self.client.count_tokens(text, **prompt)
        return (counted or len(text) // LETTERS) + self.section.max_new_tokens

    def _offers_logprobs(self) -> bool:
        """Whether the server gives log-probabilities of given answers: it is asked once, with one short prompt.

        Only a yes is kept for later takes of a run: a server that does not may be mended in the meantime.
        """
        account = self.client.account
        known = f"weighs {self.section.prompt} {self.section.name}"
        if account.fact(known):
            return True
        body = _echo_body(["1 + 1 = 2"])
        if self.chat:
            turn = self.prompts.text_turn
            body = _chat_body([turn("user", "1 + 1?"), turn("assistant", "2")])
        try:
            offers = bool(self._post(body, _weighs_two).value)
        except Refused as error:
            if error.status not in NOT_KNOWN_STATUSES:
                raise
            # neither a list of models nor a place to ask
            if error.status == NOT_FOUND and not self.served:
                raise ScoringError(
                    f"model.url = {self.section.url}: a server answers there, but finds nothing at /models nor where "
                    "prompts are sent; most addresses end in /v1"
                ) from error
            return False
        if offers:
            account.learn(known, True)
        return offers


def _chat_body(turns: Sequence[Any], *, generate: bool = False) -> dict[str, Any]:
    """Asks for a chat with the log-probabilities of all its tokens; `generate` opens a turn for the model."""
    # vLLM's options; a server must write at least one token, which is not used.
    return {
        "add_generation_prompt": generate,
        "prompt_logprobs": 0,
        "max_tokens": 1,
        "messages": list(turns),
    }


def _echo_body(texts: Sequence[str]) -> dict[str, Any]:
    """Asks for texts with the log-probabilities of all their tokens, and for nothing to be written."""
    return {"echo": True, "max_tokens": 0, "logprobs": 1, "prompt": list(texts)}


def _facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What tells models of one name apart; how long a prompt the server takes changes no answer."""
    facts = {fact: row[fact] for fact in MODEL_FACTS if fact in row}
    if isinstance(facts.get("meta"), Mapping):
        facts["meta"] = {**facts["meta"], "n_ctx": None}
    return facts


def _weighs_two(reply: Mapping[str, Any]) -> bool:
    """Whether the reply to the first question has a log-probability for its answer, 2."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    tokens = prompt_tokens(first, reply) if isinstance(first, Mapping) else None
    return any("2" in text and value is not None for text, value in tokens or ())


def _choices(reply: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """The choices of a reply in the order of what was asked; servers may send them in another."""
    choices = reply.get("choices")
    whole = isinstance(choices, list) and all(isinstance(c, Mapping) for c in choices)
    if not whole or not isinstance(choices, list) or len(choices) != count:
        raise ScoringError(
            f"the server's reply has no list of {count} choices; is model.url the address of an /v1 API?"
        )
    if count == 1:
        return choices
    numbered = {str(choice.get("index")): choice for choice in choices}
    if set(numbered) != set(map(str, range(count))):
        raise ScoringError(
            f"the server numbers its {count} choices by {', '.join(numbered)[:80]} instead of 0 to "
            f'{count - 1}, so answers cannot be told apart; set model.logprobs = "never" to go without'
        )
    return [numbered[str(place)] for place in range(count)]


def _digest(value: Any) -> str:
    content = json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]
