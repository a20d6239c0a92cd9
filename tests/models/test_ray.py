"""Two Ray nodes on this machine score the world while a worker and then a node are killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.base import Backend, LocalEngine, Request
from leverplus.models.open import BackendFactory
from leverplus.models.ray import RayEngine
from leverplus.scores.exchange import verify
from leverplus.scores.scorer import Scorer
from leverplus.scores.store import ScoreStore
from leverplus_lab.world.backend import WorldBackend
from leverplus_lab.world.task import WorldTask

ray = pytest.importorskip("ray")
sys.path.append(
    str(Path(__file__).parent.parent / "models")
)  # for the server that keeps books
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHUNK = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {
        "num_cpus": 1,
        "object_store_memory": 80_000_000,
        "include_dashboard": False,
    }
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

        from leverplus.data.tasks.settings import TaskSection
        from leverplus.models.open import BackendFactory

        backend = BackendFactory(TaskSection(), "world")()
        answer = backend.answer
        backend.answer = lambda requests: time.sleep(seconds) or answer(requests)  # type: ignore[method-assign]
        return backend

    return build


def prompts_of(task: WorldTask, count: int) -> list[Any]:
    train = task.items("train")
    return [
        (query.id, (train[row + 100].id,))
        for row in range(count // 4)
        for query in task.items("dev")[:4]
    ]


def closed(engine: RayEngine) -> None:
    """Give the workers back to the cluster."""
    for actor in engine._actors:
        ray.kill(actor)


def test_killed_workers_and_nodes_cost_nothing_but_time(
    cluster, task, tmp_path: Path
) -> None:
    backend = WorldBackend(task)
    engine = RayEngine(slowly(0.25), backend.fingerprint(), patience=120)
    places = []
    for _, node, process in ray.get([own.ready.remote() for own in engine._started()]):
        places.append((node, process))
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
    with (
        ScoreStore(tmp_path / "ray.db") as store,
        ScoreStore(tmp_path / "local.db") as other,
    ):
        scorer = Scorer(task, backend, store, engine, progress=trouble, chunk=CHUNK)
        scores = scorer.score(prompts)
        assert events == ["worker", "node"]
        assert 1 <= engine.repeated <= 2
        assert scorer.meter.fresh == len(prompts) == store.count()
        assert verify(store).clean
        local = Scorer(task, backend, other, LocalEngine(backend)).score(prompts)
        for ours, theirs in zip(scores, local, strict=True):
            for name in ("query", "demos", "raw"):
                assert getattr(ours, name) == getattr(theirs, name)
            assert ours.gt_prob == pytest.approx(theirs.gt_prob, abs=1e-4)
    closed(engine)


def test_other_weights_and_failing_models_are_refused(
    cluster, task, tmp_path: Path
) -> None:
    backend = WorldBackend(task)
    requests = [Request(task.items("dev")[0], (), ())]
    stranger = RayEngine(
        BackendFactory(TaskSection(), "world"), {"model": "another"}, workers=1
    )
    with pytest.raises(ScoringError, match="is not the one on this machine"):
        list(stranger.run(requests, 1))
    closed(stranger)
    failing = RayEngine(
        BackendFactory(TaskSection(), "world"), backend.fingerprint(), workers=1
    )
    with pytest.raises(
        ScoringError, match="has no true answers whose probability could be measured"
    ):
        list(failing.run(requests, 1))
    closed(failing)
    missing = RayEngine(
        BackendFactory(TaskSection(), "worlt"), backend.fingerprint(), workers=1
    )
    with pytest.raises(ScoringError, match="did you mean 'world'"):
        list(missing.run(requests, 1))


def hanging_once(mark: str) -> Callable[[], Backend]:
    """Builds a backend that repeats questions; the first one that is asked hangs for ever. Travels by value."""

    def build() -> Backend:
        import os
        import time

        from leverplus.models.base import Reply

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


def test_a_worker_that_hangs_is_given_up_and_another_one_asked(
    cluster, tmp_path: Path
) -> None:
    engine = RayEngine(
        hanging_once(str(tmp_path / "hung")),
        {"model": "echo"},
        workers=1,
        patience=400,
        hung_after=10.0,
    )
    requests = [
        Request(Item(ItemId(letter), letter, ("x",), "dev"), (), ("x",))
        for letter in "abcd"
    ]
    answered = [one for part in engine.run(requests, 2) for one in part]
    assert [(one.place, one.reply.raw) for one in answered] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "d"),
    ]
    assert engine.repeated == 1
    closed(engine)
