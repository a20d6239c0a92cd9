"""What touches the numbers is refused when a model is loaded, by comparing with the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_hf import ColourTask, llama

from leverplus.backends.hf import reader as reading
from leverplus.backends.hf.backend import HfBackend
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection

Plant = Callable[[HfBackend, pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HfBackend:
    folder = llama(tmp_path_factory.mktemp("llama"))
    return HfBackend(ColourTask(pictures=False), ModelSection(name=str(folder), device="cpu", untrained=True))


def one_place_off(by: int) -> Plant:
    def plant(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
        weigh = model.reader._token_logprobs

        def elsewhere(hidden: Any, rows: Any, columns: Any, targets: Any) -> Any:
            moved = [min(max(column + by, 0), hidden.shape[1] - 1) for column in columns]
            return weigh(hidden, rows, moved, targets)

        patch.setattr(model.reader, "_token_logprobs", elsewhere)

    return plant


def looks_ahead(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    run = model.language.run

    def masked(embedded: Any, positions: Any, _mask: Any, distance: Any, past: Any) -> Any:
        rows, new = embedded[0].shape[:2]
        every = new + (past[0][0].shape[2] if past else 0)
        return run(embedded, positions, torch.ones(rows, 1, new, every, dtype=torch.bool), distance, past)

    patch.setattr(model.language, "run", masked)


def answers_see_one_another(model: HfBackend, patch: pytest.MonkeyPatch) -> None:
    visible = reading.visible
    patch.setattr(reading, "visible", lambda branch, past: visible(branch.clamp(max=0), past))


FAULTS: dict[str, Plant] = {
    "one place early": one_place_off(-1),
    "one place late": one_place_off(1),
    "a mask that looks ahead": looks_ahead,
    "answers that see one another": answers_see_one_another,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_read_wrongly_is_refused(model: HfBackend, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model._verify()
    FAULTS[fault](model, monkeypatch)
    with pytest.raises(ScoringError, match="is not supported"):
        model._verify()
