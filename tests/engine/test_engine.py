from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence

import pytest

from leverplus.backends.base import Reply, Request
from leverplus.backends.world import WorldBackend
from leverplus.engine.local import LocalEngine
from leverplus.engine.open import BackendFactory, open_engine
from leverplus.engine.ray import RayEngine
from leverplus.errors import ScoringError, UnknownName
from leverplus.recipe.sections import ScoreSection, TaskSection
from leverplus.types import Item, ItemId


class Echo:
    """Answers with the question, after a moment."""

    def fingerprint(self) -> dict[str, str]:
        return {"model": "echo"}

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        time.sleep(0.01)
        return [Reply(request.query.question, None, 1) for request in requests]


def chunks(*questions: str) -> list[list[Request]]:
    return [[Request(Item(ItemId(q), q, ("x",), "dev"), (), ("x",)) for q in part] for part in questions]


def test_the_local_engine_answers_chunk_by_chunk_and_only_when_the_next_is_wanted() -> None:
    backend = Echo()
    run = LocalEngine(backend).run(chunks("ab", "c"))
    number, replies, seconds = next(run)
    assert (number, [reply.raw for reply in replies]) == (0, ["a", "b"])
    assert 0.01 <= seconds < 5.0
    assert [(number, replies[0].raw) for number, replies, _ in run] == [(1, "c")]


def test_a_section_names_its_engine() -> None:
    backend = Echo()
    assert isinstance(open_engine(ScoreSection(), backend, Echo), LocalEngine)
    engine = open_engine(ScoreSection(engine="ray", workers=3), backend, Echo)
    assert isinstance(engine, RayEngine)
    assert (engine.workers, engine.fingerprint) == (3, {"model": "echo"})


def test_a_factory_travels_and_builds_the_same_backend() -> None:
    factory = pickle.loads(pickle.dumps(BackendFactory(TaskSection(world_seed=4), "world")))
    backend = factory()
    assert isinstance(backend, WorldBackend)
    assert backend.task.world_seed == 4
    with pytest.raises(UnknownName, match="did you mean 'world'"):
        BackendFactory(TaskSection(), "wordl")()


def test_without_ray_the_error_says_what_to_type(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = RayEngine(Echo, {"model": "echo"})
    with pytest.raises(ScoringError, match=r"pip install 'ray>=2\.50'"):
        list(engine.run(chunks("a")))
    assert list(engine.run([])) == []
