"""Wrong wirings that a real model can have, planted in a backend for the time of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from leverplus.models.hf import quick
from leverplus.models.hf import reader as reading
from leverplus.models.hf.backend import HfBackend

Plant = Callable[[HfBackend, pytest.MonkeyPatch], None]


def one_place_off(by: int) -> Plant:
    def plant(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
        weigh = model.reader._token_logprobs

        def elsewhere(hidden: Any, rows: Any, columns: Any, targets: Any) -> Any:
            moved = [
                min(max(column + by, 0), hidden.shape[1] - 1) for column in columns
            ]
            return weigh(hidden, rows, moved, targets)

        patch.setattr(model.reader, "_token_logprobs", elsewhere)

    return plant


def looks_ahead(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    run = model.language.run

    def masked(
        embedded: Any, positions: Any, _mask: Any, distance: Any, past: Any
    ) -> Any:
        rows, new = embedded[0].shape[:2]
        every = new + (past[0][0].shape[2] if past else 0)
        return run(
            embedded,
            positions,
            torch.ones(rows, 1, new, every, dtype=torch.bool),
            distance,
            past,
        )

    patch.setattr(model.language, "run", masked)


def hides_what_is_kept(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    """Without a mask causal attention begins at the upper left: new places see the first kept ones only."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    patch.setattr(quick, "attend", sdpa_attention_forward)


def answers_see_one_another(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    visible = reading.visible
    patch.setattr(
        reading, "visible", lambda branch, past: visible(branch.clamp(max=0), past)
    )


def sees_few_back(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    """Every place sees itself and the five before it, so that no demonstration is seen."""
    run = model.language.run

    def masked(
        embedded: Any, positions: Any, mask: Any, distance: Any, past: Any
    ) -> Any:
        rows, new = embedded[0].shape[:2]
        every = new + (past[0][0].shape[2] if past else 0)
        back = (
            torch.arange(every - new, every)[:, None] - torch.arange(every)[None]
        )  # (new, every)
        whole = ((back >= 0) & (back < 6))[None, None].expand(rows, 1, new, every)
        return run(
            embedded, positions, whole if mask is None else whole & mask, distance, past
        )

    patch.setattr(model.language, "run", masked)


def no_end(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    prompts = model.prompts
    patch.setattr(
        prompts,
        "answer_tokens",
        lambda tail, words: prompts._after(tail, prompts.end.lead + words),
    )


def no_cue(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    text = model.prompts.text
    patch.setattr(
        model.prompts, "text", lambda request: text(request).rsplit("\n", 1)[0]
    )


def shuffled_prompt(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    tokens_of = model.prompts.tokens_of

    def shuffled(texts: Sequence[str]) -> list[list[int]]:
        found = zip(texts, tokens_of(texts), strict=True)
        return [
            list(np.random.default_rng(len(text)).permutation(ids))
            for text, ids in found
        ]

    patch.setattr(model.prompts, "tokens_of", shuffled)
