"""Finds the log-probabilities of given answers in what servers return for the tokens of a prompt.

Two shapes are read: `logprobs` with `tokens` and `token_logprobs` (completions with echo) and vLLM's `prompt_logprobs`,
a list of {token id: {logprob, decoded_token}}. An answer's tokens are found by their text, from the end: tokens before
the prompt (a start marker) do not disturb that, and an answer is never tokenized apart from its prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leverplus.errors import ScoringError

MARKERS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""How some servers write blanks and line ends inside tokens (byte-level BPE and SentencePiece)."""

_TURN_MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
"""Matches the markers of chat templates: <|im_end|>, </s>, <end_of_turn>, [/INST]."""

MOST_CLOSING = 8
"""A chat template writes at most so many tokens after an answer."""

ROUNDING = 1e-5
"""How far above 0 rounding may lift a log-probability. It is a logit minus the log of a sum, each rounded to float32:
two roundings at logits of up to 64 make 8e-6. A value further above 0 is no log-probability."""

Token = tuple[str, Any]
"""A token's text, and what the server sent as its log-probability: a number, None, or anything."""


class Span(NamedTuple):
    """The text of the tokens an answer is made of, and the sum of their log-probabilities, end marker included."""

    text: str
    logprob: float


def prompt_tokens(
    choice: Mapping[str, Any], reply: Mapping[str, Any]
) -> list[Token] | None:
    """The tokens of a prompt with their log-probabilities; None where the server sent none."""
    echoed = choice.get("logprobs")
    if isinstance(echoed, Mapping):
        texts: Any = echoed.get("tokens")
        values: Any = echoed.get("token_logprobs")
        whole = isinstance(texts, list) and isinstance(values, list)
        if whole and len(texts) == len(values):
            return list(zip(map(whole_text, texts), values, strict=True))
    rows = choice.get("prompt_logprobs") or reply.get("prompt_logprobs")
    if not isinstance(rows, list) or not any(rows):
        return None
    tokens: list[Token] = []
    for row in rows:
        # vLLM lists the token that stood in the prompt first; a more probable one may follow.
        entry = next(iter(row.values())) if isinstance(row, Mapping) and row else None
        known: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
        tokens.append((whole_text(known.get("decoded_token")), known.get("logprob")))
    return tokens


def whole_text(text: Any) -> str:
    """A text with U+FFFD in place of lone surrogates: a server may send half of a character; "" where it is none."""
    if not isinstance(text, str):
        return ""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain_span(
    tokens: Sequence[Token], answer: str, ending: str, before: int | None = None
) -> Span:
    """The span of an answer that ends the text: its tokens and those of its ending.

    `before` is the number of tokens before an answer that is not ASCII. Its tokens cannot be found by their text,
    because servers cut such characters into tokens that are no text by themselves.
    """
    if before is None:
        before = len(tokens) - _count_back(tokens, len(tokens), answer + ending)
    return _span(tokens, answer, slice(before, len(tokens)), ending)


def chat_span(tokens: Sequence[Token], answer: str, before: int | None = None) -> Span:
    """The span of an answer inside a closed turn: its tokens and the first one after them, which ends the turn.

    With `before` (as in `plain_span`) the turn ends at the first marker after the answer's first token.
    """
    if before is not None:
        end = before + 1
        while end < len(tokens) and not _TURN_MARKER.fullmatch(tokens[end][0].strip()):
            end += 1
        return _span(
            tokens, answer, slice(before, end + 1), _text(tokens[end : end + 1])
        )
    # How many tokens the template writes after the answer is not known, so each number is tried.
    for closing in range(1, min(MOST_CLOSING, len(tokens) - 1) + 1):
        end = len(tokens) - closing
        if count := _count_back(tokens, end, answer):
            return _span(
                tokens,
                answer,
                slice(end - count, end + 1),
                _text(tokens[end : end + 1]),
            )
    return _span(tokens, answer, slice(0), "")  # an empty span, which raises


def _count_back(tokens: Sequence[Token], end: int, wanted: str) -> int:
    """How many tokens before `end` make up a text; 0 where none do.

    Where no number of tokens gives the text exactly, one that gives it but for blanks at its start counts too.
    """
    but_for_blanks = 0
    for count in range(1, end + 1):
        text = _text(tokens[end - count : end])
        if text == wanted:
            return count
        if not but_for_blanks and text.lstrip(" ") == wanted.lstrip(" "):
            but_for_blanks = count
        if len(text) > len(wanted):
            break
    return but_for_blanks


def _span(tokens: Sequence[Token], answer: str, part: slice, ending: str) -> Span:
    """The span of some tokens; its text is given without the ending."""
    total = 0.0
    for _, value in tokens[part]:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        # in JSON an integer may have any length, so it is compared before it becomes a float
        if not known or not -1e300 < value <= ROUNDING:
            raise ScoringError(
                f"the server gave {str(value)[:40]!r} as the log-probability of a token of the answer {answer!r}, "
                'which must be a finite number of at most 0; set model.logprobs = "never" to go without '
                "log-probabilities"
            )
        total += min(0.0, float(value))
    if not tokens[part]:
        tail = _text(tokens[-MOST_CLOSING:])
        raise ScoringError(
            f"the server's tokens end in {tail!r}, where the answer {answer!r} does not stand by itself; "
            'change model.template, or set model.logprobs = "never" to go without log-probabilities'
        )
    text = _text(tokens[part])
    return Span(text.removesuffix(ending) if ending else text, total)


def _text(tokens: Sequence[Token]) -> str:
    return "".join(text.translate(MARKERS) for text, _ in tokens)
