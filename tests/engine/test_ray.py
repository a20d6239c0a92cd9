"""Two Ray nodes on this machine score the world while a worker and then a node are killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leverplus.backends.base import Backend, Request
from leverplus.backends.world import WorldBackend
from leverplus.engine.local import LocalEngine
from leverplus.engine.open import BackendFactory, open_engine
from leverplus.engine.ray import RayEngine
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import ScoreSection, TaskSection
from leverplus.scoring.scorer import Scorer
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import verify
from leverplus.tasks.world import WorldTask
from leverplus.types import Item, ItemId

ray = pytest.importorskip("ray")
sys.path.append(str(Path(__file__).parent.parent / "backends"))  # for the server that keeps books
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHUNK = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.second = made.add_node(num_cpus=1, object_store_memory=80_000_000)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


def slowly(seconds: float) -> Callable[[], Backend]:
    """Builds the world's backend, slowed down so that there is a mid-run to kill in; travels by value."""

    def build() -> Backend:
        import time

        from leverplus.engine.open import BackendFactory
        from leverplus.recipe.sections import TaskSection

        backend = BackendFactory(TaskSection(), "world")()
        answer = backend.answer
        backend.answer = lambda requests: time.sleep(seconds) or answer(requests)  # type: ignore[method-assign]
        return backend

    return build


def prompts_of(task: WorldTask, count: int) -> list[Any]:
    train = task.items("train")
    return [(query.id, (train[row + 100].id,)) for row in range(count // 4) for query in task.items("dev")[:4]]


def test_killed_workers_and_nodes_cost_nothing_but_time(cluster, task, tmp_path: Path) -> None:
    backend = WorldBackend(task)
    engine = RayEngine(slowly(0.25), backend.fingerprint(), patience=120)
    places = engine.places()
    assert len(places) == len({node for node, _ in places}) == 2
    events: list[str] = []

    def trouble(what: str, done: int, total: int) -> None:
        if done >= 4 * CHUNK and not events:
            os.kill(places[0][1], signal.SIGKILL)
            events.append("worker")
        if done >= 16 * CHUNK and len(events) == 1:
            cluster.remove_node(cluster.second)
            events.append("node")

    prompts = prompts_of(task, 40 * CHUNK)
    with ScoreStore(tmp_path / "ray.db") as store, ScoreStore(tmp_path / "local.db") as other:
        scorer = Scorer(task, backend, store, engine, progress=trouble, chunk=CHUNK)
        scores = scorer.score(prompts)
        assert events == ["worker", "node"]
        assert 1 <= engine.repeated <= 2
        assert scorer.meter.fresh == len(prompts) == store.count()
        assert verify(store).clean
        local = Scorer(task, backend, other, LocalEngine(backend)).score(prompts)
        for ours, theirs in zip(scores, local, strict=True):
            assert (ours.query, ours.demos, ours.raw) == (theirs.query, theirs.demos, theirs.raw)
            assert ours.gt_prob == pytest.approx(theirs.gt_prob, abs=1e-4)
    engine.close()


def test_other_weights_and_failing_models_are_refused(cluster, task, tmp_path: Path) -> None:
    backend = WorldBackend(task)
    requests = [Request(task.items("dev")[0], (), ())]
    stranger = RayEngine(BackendFactory(TaskSection(), "world"), {"model": "another"}, workers=1)
    with pytest.raises(ScoringError, match="is not the one on this machine"):
        list(stranger.run(requests, 1))
    stranger.close()
    failing = RayEngine(BackendFactory(TaskSection(), "world"), backend.fingerprint(), workers=1)
    with pytest.raises(ScoringError, match="has no true answers whose probability could be measured"):
        list(failing.run(requests, 1))
    failing.close()
    missing = RayEngine(BackendFactory(TaskSection(), "worlt"), backend.fingerprint(), workers=1)
    with pytest.raises(ScoringError, match="did you mean 'world'"):
        list(missing.run(requests, 1))


def hanging_once(mark: str) -> Callable[[], Backend]:
    """Builds a backend that repeats questions; the first one that is asked hangs for ever. Travels by value."""

    def build() -> Backend:
        import os
        import time

        from leverplus.backends.base import Reply

        class Echo:
            def fingerprint(self) -> dict[str, str]:
                return {"model": "echo"}

            def answer(self, requests: Any) -> list[Reply]:
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                    time.sleep(3600)
                except FileExistsError:
                    pass  # another one hung before
                return [Reply(request.query.question, None, 1) for request in requests]

        return Echo()

    return build


def test_a_worker_that_hangs_is_given_up_and_another_one_asked(cluster, tmp_path: Path) -> None:
    engine = RayEngine(
        hanging_once(str(tmp_path / "hung")), {"model": "echo"}, workers=1, patience=400, hung_after=10.0
    )
    requests = [Request(Item(ItemId(letter), letter, ("x",), "dev"), (), ("x",)) for letter in "abcd"]
    answered = [one for part in engine.run(requests, 2) for one in part]
    assert [(one.place, one.reply.raw) for one in answered] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert engine.repeated == 1
    engine.close()


def test_what_a_lost_worker_may_have_paid_is_counted_and_all_else_to_the_cent(cluster, tmp_path: Path) -> None:
    from faulty_server import faulty
    from paying_scorer import open_scorer
    from speaking_server import MODEL

    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)  # an earlier test took one away
    with faulty(delay=0.1) as served:
        section = ModelSection(name=MODEL, url=served.url, concurrency=2, price_in=2000.0, price_out=8000.0)
        scorer, prompts = open_scorer(tmp_path, section, demos=4)
        task = TaskSection(name="jsonl", file=str(tmp_path / "capitals.jsonl"), folder=str(tmp_path), images="none")
        score = ScoreSection(engine="ray", workers=2, chunk=8)
        engine = open_engine(score, scorer.backend, BackendFactory(task, "openai", section))
        assert isinstance(engine, RayEngine)
        process = engine.places()[0][1]
        killed: list[int] = []

        def trouble(what: str, done: int, total: int) -> None:
            if done >= 8 and not killed:
                os.kill(process, signal.SIGKILL)
                killed.append(done)

        scorer.engine, scorer.chunk, scorer.progress = engine, 8, trouble
        scorer.score(prompts)
        engine.close()
        account = scorer.backend.client.account.total
        assert killed
        assert engine.repeated == 1
        assert scorer.store.count() == len(prompts) == scorer.meter.fresh == 48
        # One chunk was lost: 8 prompts, each with one request to weigh two answers and one to write.
        assert account.unpriced == 2 * 8
        # The lost worker's own requests have no price here; one more where it was lost before its first chunk was
        # told, because whether the server weighs answers was asked when it was built.
        spent_by_lost = served.cost(2000.0, 8000.0) - account.cost
        dearest = max(asked * 2000.0 + written * 8000.0 for asked, written in served.tokens) / 1e6
        assert -1e-9 <= spent_by_lost <= (account.unpriced + 1) * dearest
        assert account.cost >= spent_by_lost  # 40 prompts and more are priced, 8 at most are not


def test_what_others_have_under_way_is_handed_over_before_a_failure_is_told(cluster) -> None:
    def build() -> Backend:
        import time

        from leverplus.backends.base import Reply
        from leverplus.errors import ScoringError

        class Failing:
            def fingerprint(self) -> dict[str, str]:
                return {"model": "failing"}

            def answer(self, requests: Any) -> list[Reply]:
                if requests[0].query.question == "b":
                    time.sleep(1.0)
                    raise ScoringError("the server has closed the account")
                time.sleep(3.0)
                return [Reply(request.query.question, None, 1) for request in requests]

        return Failing()

    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    engine = RayEngine(build, {"model": "failing"}, workers=2, patience=300)
    engine.places()  # both are there, so that both are asked at once
    requests = [Request(Item(ItemId(letter), letter, ("x",), "dev"), (), ("x",)) for letter in "abcdef"]
    seen: list[str] = []
    with pytest.raises(ScoringError, match="closed the account"):
        seen.extend(one.reply.raw for part in engine.run(requests, 1) for one in part)
    engine.close()
    assert "a" in seen
    assert len(seen) <= 2  # nothing new was begun; on a busy machine "a" may be done before "b" begins
