"""What touches the numbers is refused when a model is loaded, by comparing with the model's own forward pass."""

from __future__ import annotations

import pytest
from tiny_hf import ColourTask, llama
from wrong_wirings import Plant, answers_see_one_another, hides_what_is_kept, looks_ahead, one_place_off, query_first

from leverplus.backends.hf.backend import HfBackend
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.scoring.selftest import self_test


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HfBackend:
    folder = llama(tmp_path_factory.mktemp("llama"))
    return HfBackend(ColourTask(pictures=False), ModelSection(name=str(folder), device="cpu", untrained=True))


FAULTS: dict[str, Plant] = {
    "one place early": one_place_off(-1),
    "one place late": one_place_off(1),
    "a mask that looks ahead": looks_ahead,
    "kept places that are hidden where nothing is": hides_what_is_kept,
    "answers that see one another": answers_see_one_another,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_read_wrongly_is_refused(model: HfBackend, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model._verify()
    FAULTS[fault](model, monkeypatch)
    with pytest.raises(ScoringError, match="is not supported"):
        model._verify()


def test_a_query_before_its_demonstrations_is_refused(model: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    task = ColourTask(pictures=False)
    self_test(task, model, queries=6, trained=False)
    query_first(model, monkeypatch)
    with pytest.raises(ScoringError, match="demonstrations go in their order, the query last"):
        self_test(task, model, queries=6, trained=False)
