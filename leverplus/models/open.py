"""Which model a name means, and how its backend and its engine are opened, here or in another process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leverplus import catalog
from leverplus.data.rundir import SHIPPED, shipped, started_from
from leverplus.data.tasks.base import Task
from leverplus.data.tasks.settings import TaskSection
from leverplus.errors import ScoringError, WrongUsage
from leverplus.models.base import Backend, Engine, LocalEngine
from leverplus.models.settings import FOUND, ModelSection


def model_values(model: str) -> dict[str, Any]:
    """The backend and the [model] section of what `--model` names: URL#NAME, table:FILE, a function, a local model.

    A URL without a name is a server that is asked what it serves; the name is then "".

    >>> model_values("http://127.0.0.1:8000/v1#tiny")
    {'backend': 'openai', 'model': {'url': 'http://127.0.0.1:8000/v1', 'name': 'tiny'}}
    """
    address, _, name = model.partition("#")
    kind, _, rest = model.partition(":")
    if kind in ("http", "https"):
        if not urlsplit(address).hostname:
            raise WrongUsage(
                f"--model {model[:100]}: write the server's address and the model's name as URL#NAME"
            )
        return {"backend": "openai", "model": {"url": address, "name": name}}
    if model.startswith(SHIPPED):
        files = sorted(shipped(model).parent.glob(f"{shipped(model).name}*.parquet"))
        if not files:
            raise WrongUsage(
                f"--model {model}: no recorded table of this name comes with the package"
            )
        names = ",".join(f"{SHIPPED}{path.name}" for path in files)
        return {"backend": "table", "model": {"name": names}}
    if kind == "table":
        return {"backend": "table", "model": {"name": rest}}
    if model == "world":
        return {"backend": "world", "model": {}}
    if catalog.is_outside(model) and kind not in ("pypi", "tiny"):
        from leverplus.models.callable import load_function, takes_messages

        form = "plain"
        if takes_messages(load_function(model)):
            form = "chat"
        return {"backend": "callable", "model": {"name": model, "prompt": form}}
    if not model.strip():
        raise WrongUsage(
            "--model is empty; give a folder, a GGUF file, a hub's name, URL#NAME, table:FILE or module:function"
        )
    if re.match(r"[A-Za-z0-9_.-]+:[0-9]+(/|#|$)", model) and not Path(model).exists():
        base = address.rstrip("/").removesuffix("/v1")
        named = ""
        if name:
            named = f"#{name}"
        raise WrongUsage(
            f"--model {model[:100]}: did you mean http://{base}/v1{named}?"
        )
    return {"backend": "hf", "model": {"name": model}}


@dataclass(frozen=True)
class BackendFactory:
    """Builds a backend in whichever process calls it: three small values that travel instead of a model."""

    task: TaskSection
    backend: str
    model: ModelSection = field(default_factory=ModelSection)

    def __call__(self) -> Backend:
        return build_backend(self.backend, build_task(self.task), self.model)


def build_backend(
    name: str, task: Task, model: ModelSection, paid: Path | None = None
) -> Backend:
    """The backend of that name; `paid` is where one that costs money keeps its account."""
    factory = catalog.load(catalog.BACKENDS, name, "backend")
    if name == "openai" and paid is not None:
        from leverplus.models.api.account import Account

        charged: Backend = factory(task, model, Account(paid))
        return charged
    backend: Backend = factory(task, model)
    return backend


def build_task(section: TaskSection) -> Task:
    """The task of a `[task]` section."""
    task: Task = catalog.load(catalog.TASKS, section.name, "task")(section)
    return task


def find_weights(backend: str, model: ModelSection, run: Path) -> ModelSection:
    """`[model]` with a relative folder or file that is not here looked for where the run was started from."""
    if backend not in ("hf", "vllm", "table"):
        return model
    found = []
    for name in model.name.split(",") if backend == "table" else [model.name]:
        home = started_from(run, name.strip())
        found.append(name if home is None else f"{home}{FOUND}{name.strip()}")
    return replace(model, name=",".join(found))


def open_engine(
    name: str,
    backend: Backend,
    factory: Callable[[], Backend],
    *,
    workers: int = 0,
    worker_timeout: float = 1800.0,
) -> Engine:
    """The engine of that name: `backend` answers in this process, `factory` builds its copies elsewhere."""
    if name != "ray":
        return LocalEngine(backend)
    if hasattr(backend, "usage"):
        raise ScoringError(
            'score.engine = "ray" is for models that run in this process; a server is asked from here, by '
            'model.concurrency requests at a time and with one account of what it costs: set score.engine = "local"'
        )
    from leverplus.models.ray import RayEngine

    return RayEngine(
        factory, backend.fingerprint(), workers=workers, hung_after=worker_timeout
    )
