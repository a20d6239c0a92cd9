"""Opening the engine a `[score]` section names, and the recipe for building a backend anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from leverplus import catalog
from leverplus.backends.base import Backend
from leverplus.engine.base import Engine
from leverplus.recipe.model import FOUND, ModelSection
from leverplus.recipe.sections import ScoreSection, TaskSection
from leverplus.rundir import started_from
from leverplus.tasks.base import Task


@dataclass(frozen=True)
class BackendFactory:
    """Builds a backend in whichever process calls it: three small values that travel instead of a model."""

    task: TaskSection
    backend: str
    model: ModelSection = field(default_factory=ModelSection)

    def __call__(self) -> Backend:
        return build_backend(self.backend, build_task(self.task), self.model)


def build_backend(
    name: str, task: Task, model: ModelSection, paid: Path | None = None, earlier: Mapping[str, float] | None = None
) -> Backend:
    """The backend of that name, for a task and a `[model]` section.

    `paid` is where a backend that costs money keeps its account, `earlier` what was spent before that file existed.
    """
    factory = catalog.load(catalog.BACKENDS, name, "backend")
    if name == "openai" and paid is not None:
        from leverplus.backends.api.account import Account

        charged: Backend = factory(task, model, Account(paid, earlier))
        return charged
    backend: Backend = factory(task, model)
    return backend


def find_weights(backend: str, model: ModelSection, run: Path) -> ModelSection:
    """`[model]` with a relative folder or file that is not here looked for where the run was started from."""
    if backend not in ("hf", "vllm", "table"):
        return model
    names = [name.strip() for name in model.name.split(",")] if backend == "table" else [model.name]
    homes = [started_from(run, name) for name in names]
    found = [name if home is None else f"{home}{FOUND}{name}" for name, home in zip(names, homes, strict=True)]
    return replace(model, name=",".join(found))


def build_task(section: TaskSection) -> Task:
    """The task of a `[task]` section."""
    factory = catalog.load(catalog.TASKS, section.name, "task")
    task: Task = factory(section)
    return task


def open_engine(section: ScoreSection, backend: Backend, factory: Callable[[], Backend]) -> Engine:
    """The engine of a `[score]` section: `backend` answers in this process, `factory` builds its copies elsewhere."""
    if section.engine == "ray":
        from leverplus.engine.ray import RayEngine

        return RayEngine(
            factory,
            backend.fingerprint(),
            workers=section.workers,
            hung_after=section.worker_timeout,
            most=getattr(backend, "most_by_worker", 0),
            charged=getattr(backend, "charged_elsewhere", lambda _values: None),
            lost=getattr(backend, "lost_elsewhere", lambda _requests: None),
        )
    from leverplus.engine.local import LocalEngine

    return LocalEngine(backend)
