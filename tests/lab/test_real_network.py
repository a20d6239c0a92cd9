"""A network that starts from the closed-form score: it changes nothing before it learns, and learns what is there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import real_network as script  # noqa: E402

from leverplus.lab.real import read_records  # noqa: E402

QUERIES, PLACES, TOPICS = 400, 16, 4


def planted() -> script.Inputs:
    """The closed form is noise; a demonstration helps where its topic is the query's, which only texts say."""
    rng = np.random.default_rng(0)
    topic_of_query, topic_of_demo = rng.integers(0, TOPICS, QUERIES), rng.integers(0, TOPICS, 200)
    candidates = np.stack([rng.choice(200, PLACES, replace=False) for _ in range(QUERIES)])
    accuracy = np.where(topic_of_demo[candidates] == topic_of_query[:, None], 0.9, 0.1)
    allowed = rng.random((QUERIES, PLACES)) < 0.9
    rewards = {"accuracy": torch.tensor(accuracy, dtype=torch.float32)}
    one_hot = np.eye(TOPICS, dtype=np.float32) * 2.0
    return script.Inputs(
        torch.tensor(rng.normal(0.0, 0.5, (QUERIES, PLACES)), dtype=torch.float32),
        torch.zeros(QUERIES, PLACES, 2),
        torch.tensor(one_hot[topic_of_query]),
        torch.tensor(one_hot[topic_of_demo]),
        torch.tensor(candidates),
        torch.tensor(allowed),
        rewards,
        {"accuracy": 0.1},
    )


@pytest.mark.parametrize("form", script.FORMS)
def test_every_form_starts_as_the_closed_form_and_finds_a_planted_interaction(form: str) -> None:
    inputs = planted()
    learn = np.arange(QUERIES) < 300
    found = script.train(form, inputs, learn, ~learn, reward="accuracy", rate=1e-2, seed=0).mean(axis=1)
    start = inputs.start.masked_fill(~inputs.allowed, -torch.inf)[300:].argmax(1, keepdim=True)
    assert found[0] == pytest.approx(float(inputs.rewards["accuracy"][300:].gather(1, start).mean()))
    assert found[0] < 0.45, "a quarter of the candidates help"
    assert found[-1] > 0.7, found


def test_a_disallowed_candidate_is_never_chosen_and_never_learnt_from() -> None:
    inputs = planted()
    rows = torch.arange(QUERIES)
    logits = script.Correction(inputs)(inputs, rows).detach()
    assert (logits == -torch.inf).equal(~inputs.allowed)
    changed = inputs.rewards["accuracy"].masked_fill(~inputs.allowed, 55.0)
    one = script.squared_error(logits, inputs.rewards["accuracy"], inputs.allowed, 0.1)
    assert float(one) == pytest.approx(float(script.squared_error(logits, changed, inputs.allowed, 0.1)))


def test_the_squared_error_by_hand() -> None:
    value, wanted = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[0.2, 0.8, 0.5]])
    allowed = torch.tensor([[True, True, False]])
    # scores less their mean are -1 and 1, rewards -0.3 and 0.3; at a worth of 0.1 the error is 0.2 for both
    assert float(script.squared_error(value, wanted, allowed, 0.1)) == pytest.approx(0.04)


def test_the_page_says_what_the_accuracies_of_every_item_come_to() -> None:
    page = (ROOT / "docs" / "recorded.md").read_text(encoding="utf-8")
    assert "\n".join(script.table_lines(read_records(script.KEPT))) in page


def test_the_closed_form_is_the_published_one() -> None:
    kept = [record for record in read_records(script.KEPT) if record.arm == script.LINEAR]
    assert len(kept) == len(script.TASKS) * len(script.MODELS)
    for record in kept:
        published = script.effects_record(f"{record.task}-{record.model}")
        assert record.accuracy.tolist() == pytest.approx(published.accuracy.tolist(), abs=2e-4)
