"""Beam search over the tokens that a model writes: several beginnings are continued at a time, the best ending wins.

The rules are those of `generate` in transformers (`num_beams`, `length_penalty`, early_stopping = False): an ending is
scored by its log-probability divided by its length to the power of the penalty, so 0 compares plain log-probabilities,
and a prompt is done when no beginning can still beat the worst of as many endings as there are beams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leverplus.models.hf.reader import Beams

Advance = Callable[[Sequence[int], Sequence[int], Sequence[int], int], Tensor]
"""(rows of the step before, a token after each, the prompt of each, tokens written before) -> log-probabilities."""


@dataclass
class _PromptBeams:
    """The search after one prompt: beginnings (log-probability, tokens) and endings (score, tokens), best first."""

    going: list[tuple[float, list[int]]] = field(default_factory=lambda: [(0.0, [])])
    ended: list[tuple[float, list[int]]] = field(default_factory=list)

    def extend(
        self,
        logprobs: Tensor,
        beams: Beams,
        stops: frozenset[int],
        length: int,
        last: bool,
    ) -> list[tuple[int, int]]:
        """Continue every beginning by its next token, given (rows, V); returns (row, token) of those that go on."""
        before = torch.tensor(
            [score for score, _ in self.going],
            dtype=logprobs.dtype,
            device=logprobs.device,
        )
        total = (logprobs + before[:, None]).flatten()  # (rows * V,)
        # Twice as many as beams: even if half of them end, enough are left to go on, as in transformers.
        best = total.topk(min(2 * beams.count, total.numel()))
        going: list[tuple[float, list[int]]] = []
        taken: list[tuple[int, int]] = []
        for rank, (score, place) in enumerate(
            zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ):
            row, token = divmod(place, logprobs.shape[1])
            words = [*self.going[row][1], token]
            if last or token in stops:
                if rank < beams.count:  # a worse ending is dropped, as in transformers
                    self.ended.append((score / length**beams.penalty, words))
            elif len(going) < beams.count:
                going.append((score, words))
                taken.append((row, token))
        ranked = sorted(self.ended, key=lambda one: -one[0])
        self.ended = ranked[: beams.count]
        worst = self.ended[-1][0] if len(self.ended) == beams.count else -math.inf
        if last or not going:
            return []
        best_possible = going[0][0] / length**beams.penalty
        if not best_possible > worst:  # true for NaN too
            return []
        self.going = going
        return taken


def beam_search(
    first: Tensor,
    advance: Advance,
    beams: Beams,
    new_tokens: int,
    stops: frozenset[int],
) -> list[tuple[int, ...]]:
    """The best tokens after each of N prompts, a stop token included; `first` (N, V): their first log-probabilities.

    All beginnings of all prompts are rows of one batch; those of one prompt stand together.
    """
    searches = [_PromptBeams() for _ in range(len(first))]
    alive = list(range(len(first)))
    counts = [1] * len(first)
    logprobs = first
    for length in range(1, new_tokens + 1):
        rows: list[int] = []
        tokens: list[int] = []
        owners: list[int] = []
        at = 0  # the first row of the prompt at hand
        for prompt, count in zip(alive, counts, strict=True):
            block = logprobs[at : at + count]  # (count, V)
            taken = searches[prompt].extend(
                block, beams, stops, length, length == new_tokens
            )
            rows += [at + row for row, _ in taken]
            tokens += [token for _, token in taken]
            owners += [prompt] * len(taken)
            at += count
        if not rows:
            break
        alive = list(dict.fromkeys(owners))
        counts = [owners.count(prompt) for prompt in alive]
        logprobs = advance(rows, tokens, owners, length - 1)
    return [tuple(search.ended[0][1]) for search in searches]
