"""The backend as the scorer uses it: its fingerprint, labels to choose from, what it refuses."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_hf import COLOURS, ColourTask, llama

from leverplus.backends.base import Request
from leverplus.backends.hf.backend import HfBackend
from leverplus.engine.local import LocalEngine
from leverplus.engine.open import BackendFactory, build_backend
from leverplus.errors import DataError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.scorer import Scorer
from leverplus.scoring.selftest import self_test
from leverplus.store.db import ScoreStore

TASK = ColourTask(pictures=False)
QUERY, DEMOS = TASK.items("dev")[0], tuple(TASK.items("train")[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def section(folder: Path) -> ModelSection:
    return ModelSection(name=str(folder), device="cpu", untrained=True)


@pytest.fixture(scope="module")
def backend(section: ModelSection) -> HfBackend:
    return HfBackend(TASK, section)


def test_labels_are_chosen_without_writing(backend: HfBackend) -> None:
    request = Request(QUERY, DEMOS, tuple(COLOURS), choose=True)
    free = replace(request, choose=False)
    chosen, written = backend.answer([request, free])
    assert chosen.logprobs is not None
    assert chosen.raw == COLOURS[int(np.argmax(chosen.logprobs))]
    np.testing.assert_allclose(chosen.logprobs, written.logprobs, atol=1e-4)
    assert written.raw not in COLOURS
    assert written.tokens > chosen.tokens
    with pytest.raises(ScoringError, match="no labels"):
        backend.answer([replace(request, references=())])


def test_everything_that_could_change_a_reply_is_in_the_fingerprint(backend: HfBackend, section: ModelSection) -> None:
    changes = [
        {"prompt": "chat"},
        {"template": "Q: {question}\nA: {answer}\n"},
        {"instruction": "Be short."},
        {"dtype": "bfloat16"},
        {"max_new_tokens": 3},
    ]
    known = {tuple(sorted(backend.fingerprint().items()))}
    for change in changes:
        known.add(tuple(sorted(HfBackend(TASK, replace(section, **change)).fingerprint().items())))
    assert len(known) == len(changes) + 1
    for same in ({"batch_tokens": 64}, {"untrained": False}):
        assert HfBackend(TASK, replace(section, **same)).fingerprint() == backend.fingerprint()


def test_rounded_numbers_pass_with_their_own_tolerance(section: ModelSection) -> None:
    coarse = HfBackend(TASK, replace(section, dtype="bfloat16"))
    assert coarse.tolerance > 1e-3
    assert 1e-3 < self_test(TASK, coarse, trained=False).batch_gap < coarse.tolerance
    with pytest.raises(ScoringError, match="log-probabilities differ"):
        self_test(TASK, coarse, trained=False, tolerance=1e-3)


def test_a_language_model_is_not_shown_pictures(backend: HfBackend) -> None:
    with pytest.raises(ScoringError, match="is a language model"):
        backend.answer([Request(replace(QUERY, image="dev0"), (), ("red",))])


def test_a_prompt_that_is_too_long_names_its_query(backend: HfBackend) -> None:
    with pytest.raises(ScoringError, match=f"query {QUERY.id} with 0 demonstrations takes .* has room for 4,096"):
        backend.answer([Request(replace(QUERY, question="colour " * 5000), (), ("red",))])


def test_demonstrations_that_cannot_fit_together_are_refused_before_anything_is_asked(section: ModelSection) -> None:
    """No text is too long alone; eight of typical length are."""

    class Wordy(ColourTask):
        def items(self, split):
            words = {"train": 600, "dev": 30, "test": 30}[split]
            return [replace(item, question="colour " * words) for item in super().items(split)]

    backend = HfBackend(Wordy(pictures=False), section)
    assert backend.require_room(1) == ""
    with pytest.raises(DataError, match=r"8 demonstrations of typical length takes .* room for 4,096; show fewer"):
        backend.require_room(8)


def test_a_few_long_texts_are_a_note(section: ModelSection) -> None:
    class OneLong(ColourTask):
        def items(self, split):
            first, *others = super().items(split)
            return [replace(first, question="colour " * 1000), *others]

    note = HfBackend(OneLong(pictures=False), section).require_room(4)
    assert note.startswith("note: 4 demonstrations fit into the model's 4,096 tokens as a rule")


def test_scores_reach_the_store_and_are_not_asked_again(backend: HfBackend, tmp_path: Path) -> None:
    prompts = [
        (item.id, tuple(demo.id for demo in DEMOS[:shots])) for item in TASK.items("dev")[:4] for shots in (0, 2)
    ]
    with ScoreStore(tmp_path / "scores.db") as store:
        scorer = Scorer(TASK, backend, store, LocalEngine(backend))
        scores = scorer.score(prompts)
        assert scorer.meter.fresh == len(prompts)
        assert scorer.score(prompts) == scores
        assert scorer.meter.fresh == len(prompts)
    assert all(0.0 < score.gt_prob < 1.0 for score in scores)
    assert scorer.context.values["backend"]["revision"] == backend.files.digest


def test_the_factory_travels_with_its_model(section: ModelSection, tmp_path: Path) -> None:
    rows = [{"id": n, "question": f"What colour is thing {n}?", "answers": [COLOURS[n % 8]]} for n in range(20)]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "task.jsonl").write_text("\n".join(lines))
    task = TaskSection(name="jsonl", file=str(tmp_path / "task.jsonl"), images="none")
    built = pickle.loads(pickle.dumps(BackendFactory(task, "hf", section)))()
    assert isinstance(built, HfBackend)
    assert built.fingerprint() == build_backend("hf", TASK, section).fingerprint()
