from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.base import Answered, LocalEngine, Reply, Request
from leverplus.models.open import open_engine
from leverplus.models.ray import HeadWatch, RayEngine


class Echo:
    """Answers with the question, after a moment."""

    def fingerprint(self) -> dict[str, str]:
        return {"model": "echo"}

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        time.sleep(0.01)
        return [Reply(request.query.question, None, 1) for request in requests]


def requests_for(questions: str) -> list[Request]:
    return [Request(Item(ItemId(q), q, ("x",), "dev"), (), ("x",)) for q in questions]


def test_the_local_engine_answers_chunk_by_chunk_and_only_when_the_next_is_wanted() -> (
    None
):
    backend = Echo()
    run = LocalEngine(backend).run(requests_for("abc"), 2)
    answered = next(run)
    assert [(one.place, one.reply.raw) for one in answered] == [(0, "a"), (1, "b")]
    assert 0.005 <= answered[0].seconds < 5.0
    assert [[(one.place, one.reply.raw) for one in part] for part in run] == [
        [(2, "c")]
    ]


def test_a_backend_that_streams_is_asked_once_for_all_and_handed_on_as_it_comes() -> (
    None
):
    class Streaming(Echo):
        def stream(self, requests: Sequence[Request]) -> Iterator[list[Answered]]:
            for place in reversed(range(len(requests))):
                yield [
                    Answered(place, Reply(requests[place].query.question, None, 1), 0.5)
                ]

    run = LocalEngine(Streaming()).run(requests_for("abc"), 2)
    assert [[(one.place, one.reply.raw) for one in part] for part in run] == [
        [(2, "c")],
        [(1, "b")],
        [(0, "a")],
    ]


def test_a_section_names_its_engine() -> None:
    backend = Echo()
    assert isinstance(open_engine("local", backend, Echo), LocalEngine)
    engine = open_engine("ray", backend, Echo, workers=3)
    assert isinstance(engine, RayEngine)
    assert (engine.workers, engine.fingerprint) == (3, {"model": "echo"})


def test_without_ray_the_error_says_what_to_type(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = RayEngine(Echo, {"model": "echo"})
    with pytest.raises(ScoringError, match=r'pip install -e "\.\[ray\]"'):
        list(engine.run(requests_for("a"), 1))
    assert list(engine.run([], 1)) == []


def test_a_head_that_is_gone_for_long_ends_scoring_with_what_to_type(
    monkeypatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("leverplus.models.ray.time.monotonic", lambda: now)
    with socket.create_server(("127.0.0.1", 0)) as head:
        watch = HeadWatch(f"127.0.0.1:{head.getsockname()[1]}", silent=30.0)
        now += 100
        watch.look()
    now += 29  # gone, but one that restarts now is not noticed
    watch.look()
    now += 1
    watch.look()  # it looks every two seconds only
    now += 1
    with pytest.raises(
        ScoringError,
        match=r"has not answered for 31 s; .*`ray start --head` .*run the same command",
    ):
        watch.look()


def test_an_address_without_a_cluster_is_told_in_one_sentence(monkeypatch) -> None:
    ray = pytest.importorskip("ray")

    def refuse(**_options: object) -> None:
        raise ConnectionError("ray.init() could not find a node\nin the cluster")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ScoringError) as told:
        list(RayEngine(Echo, {"model": "echo"}).run(requests_for("a"), 1))
    assert (
        "RAY_ADDRESS=10.0.0.1:6379 (ray.init() could not find a node); type `ray status`"
        in str(told.value)
    )
    assert "\n" not in str(told.value)


def test_a_server_is_asked_from_one_process_alone() -> None:
    class Paid(Echo):
        def usage(self) -> dict[str, float]:
            return {"cost": 1.0}

    with pytest.raises(ScoringError, match=r'set score\.engine = "local"'):
        open_engine("ray", Paid(), Paid)
