"""Log-probabilities of given answers from what servers return for the tokens of a prompt.

Two shapes are read: `logprobs` with `tokens` and `token_logprobs` (completions with echo) and vLLM's `prompt_logprobs`,
a list of {token id: {logprob, decoded_token}}. An answer's tokens are found by their text, from the end: tokens before
the prompt (a start marker) do not disturb that, and an answer is never tokenized apart from its prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.errors import ScoringError

MARKERS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""How some servers write blanks and line ends inside tokens."""

_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
"""How the markers of chat templates look: <|im_end|>, </s>, <end_of_turn>, [/INST]."""

CLOSING = 8
"""Most tokens a chat template writes after an answer."""


@dataclass(frozen=True)
class Span:
    """The tokens an answer is made of, and the sum of their log-probabilities, end marker included."""

    text: str
    logprob: float


Token = tuple[str, Any]
"""A token's text, and what the server sent as its log-probability: a number, None, or anything."""

ROUNDING = 1e-5
"""How far above 0 rounding may lift a log-probability. It is a logit less the log of a sum, each rounded to float32:
two roundings at logits of up to 64 make 8e-6. What is further above 0 is no log-probability."""


def prompt_tokens(choice: Mapping[str, Any], reply: Mapping[str, Any]) -> list[Token] | None:
    """The tokens of a prompt with their log-probabilities; None where the server sent none."""
    echoed = choice.get("logprobs")
    if isinstance(echoed, Mapping) and isinstance(echoed.get("tokens"), list):
        values = echoed.get("token_logprobs")
        if isinstance(values, list) and len(values) == len(echoed["tokens"]):
            return [(_token_text(token), value) for token, value in zip(echoed["tokens"], values, strict=True)]
    rows = choice.get("prompt_logprobs") or reply.get("prompt_logprobs")
    if isinstance(rows, list) and any(rows):
        return [_chosen(row) for row in rows]
    return None


def _chosen(row: Any) -> Token:
    """The token that stood in the prompt: the first entry; a higher-ranked one may follow it."""
    if not isinstance(row, Mapping) or not row:
        return "", None
    entry = next(iter(row.values()))
    return (_token_text(entry.get("decoded_token")), entry.get("logprob")) if isinstance(entry, Mapping) else ("", None)


def _token_text(token: Any) -> str:
    """What a server says a token is; "" for what is no text. Halves of characters become replacement characters."""
    return whole_text(token) if isinstance(token, str) else ""


def whole_text(text: str) -> str:
    """A text that Unicode allows: a server may send half of a character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain_span(tokens: Sequence[Token], answer: str, ending: str, before: int | None = None) -> Span:
    """An answer that ends the text: its tokens and those of its ending.

    `before` is the number of tokens before the answer where its text cannot say, because it is not plain ASCII: servers
    cut such characters into tokens that are no text by themselves.
    """
    start = before if before is not None else len(tokens) - _reach(tokens, len(tokens), answer + ending)
    return _span(tokens, answer, start, len(tokens), ending)


def chat_span(tokens: Sequence[Token], answer: str, before: int | None = None) -> Span:
    """An answer inside a closed turn: its tokens and the first one after them, which ends the turn.

    With `before`, see above, the turn ends at the first marker after the answer's first token.
    """
    if before is not None:
        marks = [place for place in range(before + 1, len(tokens)) if _MARK.fullmatch(tokens[place][0].strip())]
        end = marks[0] if marks else len(tokens)
        return _span(tokens, answer, before, min(end + 1, len(tokens)), _text(tokens[end : end + 1]))
    for closing in range(1, min(CLOSING, len(tokens) - 1) + 1):
        end = len(tokens) - closing
        reach = _reach(tokens, end, answer)
        if reach:
            return _span(tokens, answer, end - reach, end + 1, _text(tokens[end : end + 1]))
    return _span(tokens, answer, len(tokens), len(tokens), "")


def _reach(tokens: Sequence[Token], end: int, wanted: str) -> int:
    """How many tokens before `end` make a text, 0 where none do; failing that, all but the blanks it starts with."""
    loose = 0
    for count in range(1, end + 1):
        text = _text(tokens[end - count : end])
        if text == wanted:
            return count
        if not loose and text.lstrip(" ") == wanted.lstrip(" "):
            loose = count
        if len(text) > len(wanted):
            break
    return loose


def _span(tokens: Sequence[Token], answer: str, start: int, end: int, ending: str) -> Span:
    values = [value for _, value in tokens[start:end]]
    if not values:
        tail = _text(tokens[-CLOSING:])
        raise ScoringError(
            f"the server's tokens end in {tail!r}, where the answer {answer!r} does not stand by itself; "
            'change model.template, or set model.logprobs = "never" to go without log-probabilities'
        )
    total = sum(_logprob(value, answer) for value in values)
    text = _text(tokens[start:end])
    return Span(text.removesuffix(ending) if ending else text, total)


def _logprob(value: Any, answer: str) -> float:
    """The log-probability of one token; what is none is refused."""
    number = float(value) if isinstance(value, float) or _small(value) else math.nan
    if not math.isfinite(number) or number > ROUNDING:
        raise ScoringError(
            f"the server gave {str(value)[:40]!r} as the log-probability of a token of the answer {answer!r}, which "
            'must be a finite number of at most 0; set model.logprobs = "never" to go without log-probabilities'
        )
    return min(0.0, number)


def _small(value: Any) -> bool:
    """A whole number that a float holds; the length of an integer has no limit in JSON."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _text(tokens: Sequence[Token]) -> str:
    return "".join(text.translate(MARKERS) for text, _ in tokens)
