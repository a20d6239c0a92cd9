"""The backend as the scorer uses it: its fingerprint, labels to choose from, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_hf import COLOURS, ColourTask, llama
from wrong_wirings import (
    Plant,
    answers_see_one_another,
    hides_what_is_kept,
    looks_ahead,
    one_place_off,
)

from leverplus.errors import DataError, ScoringError
from leverplus.models.base import LocalEngine, Request
from leverplus.models.hf.backend import HfBackend
from leverplus.models.settings import ModelSection
from leverplus.scores.scorer import Scorer
from leverplus.scores.selftest import self_test
from leverplus.scores.store import ScoreStore

TASK = ColourTask(pictures=False)
QUERY, DEMOS = TASK.items("dev")[0], tuple(TASK.items("train")[:2])


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> ModelSection:
    folder = llama(tmp_path_factory.mktemp("llama"))
    return ModelSection(name=str(folder), device="cpu", untrained=True)


@pytest.fixture(scope="module")
def backend(section: ModelSection) -> HfBackend:
    return HfBackend(TASK, section)


def test_labels_are_chosen_without_writing(backend: HfBackend) -> None:
    request = Request(QUERY, DEMOS, tuple(COLOURS), choose=True)
    chosen, written = backend.answer([request, replace(request, choose=False)])
    assert chosen.raw == COLOURS[int(np.argmax(chosen.logprobs))]
    np.testing.assert_allclose(chosen.logprobs, written.logprobs, atol=1e-4)
    assert written.raw not in COLOURS
    assert written.tokens > chosen.tokens
    with pytest.raises(ScoringError, match="no labels"):
        backend.answer([replace(request, references=())])


@pytest.mark.slow
def test_everything_that_could_change_a_reply_is_in_the_fingerprint(
    section: ModelSection,
) -> None:
    def mark(**change: Any) -> str:
        return str(HfBackend(TASK, replace(section, **change)).fingerprint())

    changes: list[dict[str, Any]] = [
        {},
        {"prompt": "chat"},
        {"template": "Q: {question}\nA: {answer}\n"},
        {"instruction": "Be short."},
        {"dtype": "bfloat16"},
        {"max_new_tokens": 3},
    ]
    assert len({mark(**change) for change in changes}) == len(changes)
    assert mark(batch_tokens=64) == mark(untrained=False) == mark()


@pytest.mark.slow
def test_rounded_numbers_pass_with_their_own_tolerance(section: ModelSection) -> None:
    coarse = HfBackend(TASK, replace(section, dtype="bfloat16"))
    assert 1e-3 < self_test(TASK, coarse, trained=False).batch_gap < coarse.tolerance
    coarse.tolerance = 1e-3
    with pytest.raises(ScoringError, match="log-probabilities differ"):
        self_test(TASK, coarse, trained=False)


FAULTS: dict[str, Plant] = {
    "one place early": one_place_off(-1),
    "one place late": one_place_off(1),
    "a mask that looks ahead": looks_ahead,
    "kept places that are hidden where nothing is": hides_what_is_kept,
    "answers that see one another": answers_see_one_another,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_read_wrongly_is_refused_when_it_is_loaded(
    section: ModelSection, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """By comparing with the model's own forward pass."""
    model = HfBackend(TASK, section)
    FAULTS[fault](model, monkeypatch)
    with pytest.raises(ScoringError, match="is not supported"):
        model._verify()


def test_what_it_cannot_read_is_named(backend: HfBackend) -> None:
    with pytest.raises(ScoringError, match="is a language model"):
        backend.answer([Request(replace(QUERY, image="dev0"), (), ("red",))])
    long = replace(QUERY, question="colour " * 5000)
    said = f"query {QUERY.id} with 0 demonstrations is too long .* has room for 4,096"
    with pytest.raises(ScoringError, match=said):
        backend.answer([Request(long, (), ("red",))])


class Wordy(ColourTask):
    """Questions of so many words."""

    def __init__(self, first: int, train: int, others: int) -> None:
        super().__init__(pictures=False)
        for split, items in self._items.items():
            words = train if split == "train" else others
            longer = [replace(item, question="colour " * words) for item in items]
            longer[0] = replace(items[0], question="colour " * max(words, first))
            self._items[split] = longer


def test_demonstrations_that_cannot_fit_together_are_refused_before_anything_is_asked(
    section: ModelSection,
) -> None:
    """No text is too long alone; eight of typical length are."""
    backend = HfBackend(Wordy(0, 600, 30), section)
    assert backend.require_room(1) == ""
    said = (
        r"8 demonstrations of typical length .* room for 4,096, which is enough for 2"
    )
    with pytest.raises(DataError, match=said):
        backend.require_room(8)
    note = HfBackend(Wordy(1000, 8, 8), section).require_room(4)
    assert note.startswith("note: 4 demonstrations fit into 4,096 tokens as a rule")


def test_scores_reach_the_store_and_are_not_asked_again(
    backend: HfBackend, tmp_path: Path
) -> None:
    shown = [(), tuple(demo.id for demo in DEMOS)]
    prompts = [(item.id, own) for item in TASK.items("dev")[:4] for own in shown]
    with ScoreStore(tmp_path / "scores.db") as store:
        scorer = Scorer(TASK, backend, store, LocalEngine(backend))
        scores = scorer.score(prompts)
        assert scorer.score(prompts) == scores
        assert scorer.meter.fresh == len(prompts)
    assert all(0.0 < score.gt_prob < 1.0 for score in scores)
    assert scorer.context.values["backend"]["revision"] == backend.files.digest
