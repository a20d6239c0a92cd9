from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from benchmarking import load_benchmark

from leverplus.backends.base import Request
from leverplus.backends.world import WorldBackend
from leverplus.errors import ScoringError
from leverplus.scoring.scorer import reference_counts
from leverplus.tasks.world import WorldTask
from leverplus.types import ItemId


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


@pytest.fixture(scope="module")
def backend(task) -> WorldBackend:
    return WorldBackend(task)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("scoring")


def requests_of(task: WorldTask, shots: int, count: int, seed: int = 0) -> list[Request]:
    """Requests in which half of the leading demonstrations are shared."""
    rng = np.random.default_rng([seed, shots])
    train, dev = task.items("train"), task.items("dev")
    shared = [train[int(row)] for row in rng.choice(len(train), shots, replace=False)]
    requests = []
    for place, row in enumerate(rng.choice(len(dev), count, replace=False)):
        query, own = dev[int(row)], [train[int(r)] for r in rng.choice(len(train), shots, replace=False)]
        demos = shared[:-1] + own[-1:] if place % 2 else own
        requests.append(Request(query, tuple(demos), tuple(reference_counts(query))))
    return requests


@pytest.mark.parametrize("shots", [0, 1, 3, 8])
def test_batches_answer_as_one_whole_pass_a_prompt_with_pictures_encoded_each_time(
    task, backend, benchmark, shots
) -> None:
    requests = requests_of(task, shots, 10)
    plain = benchmark.OneByOne(task).answer(requests)
    for batched, one in zip(backend.answer(requests), plain, strict=True):
        assert batched.raw == one.raw
        assert batched.logprobs == pytest.approx(one.logprobs, abs=1e-4)


def test_mixed_numbers_of_demonstrations_come_back_in_the_order_asked(task, backend) -> None:
    requests = [r for shots in (3, 0, 1) for r in requests_of(task, shots, 4)]
    requests = requests[::2] + requests[1::2]
    for request, reply in zip(requests, backend.answer(requests), strict=True):
        (alone,) = WorldBackend(task).answer([request])
        assert reply.raw == alone.raw
        assert reply.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_right_answer_beats_a_shuffled_one_where_the_model_knows_the_facts(task, backend) -> None:
    """Queries about facts that pretraining saw; wrong answers are those of other such queries."""
    known = [item for item in task.items("dev") if item.meta["unknown"] == "0"][:60]
    wrong = [item.answer for item in known[1:] + known[:1]]
    pairs = [(item, other) for item, other in zip(known, wrong, strict=True) if other not in item.answers]
    requests = [Request(item, (), (item.answer, other)) for item, other in pairs]
    margins = [reply.logprobs[0] - reply.logprobs[1] for reply in backend.answer(requests)]
    assert np.mean(np.array(margins) > 0) > 0.9


def test_the_picture_matters(task, backend) -> None:
    requests = requests_of(task, 1, 20)
    donors = [*requests[1:], requests[0]]
    swapped = [
        replace(r, query=replace(r.query, id=ItemId(f"{r.query.id}*"), image=d.query.image))
        for r, d in zip(requests, donors, strict=True)
    ]
    before, after = backend.answer(requests), backend.answer(swapped)
    assert sum(b.raw != a.raw for b, a in zip(before, after, strict=True)) >= 5


def test_each_picture_is_seen_once(task, monkeypatch) -> None:
    backend, seen = WorldBackend(task), []
    see = backend.model.see
    monkeypatch.setattr(backend.model, "see", lambda pictures: seen.append(len(pictures)) or see(pictures))
    requests = requests_of(task, 3, 6)
    backend.answer(requests)
    backend.answer(requests)
    assert sum(seen) == len({item.id for r in requests for item in (r.query, *r.demos)})


def test_nine_demonstrations_and_no_references_are_refused(task, backend) -> None:
    (request,) = requests_of(task, 8, 1)
    with pytest.raises(ScoringError, match="at most 8 demonstrations, not 9"):
        backend.answer([replace(request, demos=(*request.demos, task.items("train")[0]))])
    with pytest.raises(ScoringError, match="no true answers whose probability"):
        backend.answer([replace(request, references=())])


def test_the_benchmark_states_its_ratios_and_both_sides_agree(benchmark) -> None:
    result = benchmark.run(queries=4, candidates=16, sample=8)
    for name, count in (("dense_one_shot", 4 * 16), ("two_shot_expansions", 4 * 2 * 15)):
        row = result[name]
        assert row["candidates"] == count
        assert row["same_answers"]
        assert row["largest_logprob_gap"] < 1e-4
        assert row["ratio"] == pytest.approx(row["per_second"] / row["one_by_one_per_second"])
        assert row["ratio"] > 2
