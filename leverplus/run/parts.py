"""What a run reads and never changes: the task, the embedder, the demonstrations with their vectors, the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus.data import rundir
from leverplus.data.rundir import moved_paths
from leverplus.errors import LeverError
from leverplus.run.recipe import Recipe

if TYPE_CHECKING:
    from leverplus.data.tasks.base import Task
    from leverplus.data.tasks.settings import TaskSection
    from leverplus.data.types import Item
    from leverplus.encode.base import Embedder, Vectors
    from leverplus.models.base import Backend, Recorded
    from leverplus.models.settings import ModelSection

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]
"""(what, done, total), called as work goes on."""


@dataclass(frozen=True)
class Parts:
    """Each part is built when it is first asked for; runs that `fit` can share them."""

    recipe: Recipe
    folder: Path
    store_path: Path
    say: Say
    progress: Progress
    at_work: bool

    def fits(self, recipe: Recipe) -> bool:
        """Whether these are the parts of another recipe too: the same task, embedder and model.

        What a server is paid is noted run by run, so a run that asks one has its own parts.
        """
        mine = self.recipe
        same_data = (mine.task, mine.embed) == (recipe.task, recipe.embed)
        same_model = (mine.score.backend, mine.model) == (
            recipe.score.backend,
            recipe.model,
        )
        return same_data and same_model and recipe.score.backend != "openai"

    @cached_property
    def task_section(self) -> TaskSection:
        """`[task]` with its files where they lie from here."""
        section = self.recipe.task
        files = ("folder", "file", "images", "database")
        return replace(section, **moved_paths(self.folder, section, files))

    @cached_property
    def task(self) -> Task:
        from leverplus.models.open import build_task

        task = build_task(self.task_section)
        if self.recipe.task.metric != "judge":
            return task
        from leverplus.scores.judge import Judge, with_judge

        paid = None
        if self.at_work and (self.folder / rundir.MANIFEST).is_file():
            paid = self.folder / f"judge-{rundir.PAID}"
        judge = Judge(self.recipe.judge, self.store_path, paid, self.say)
        return with_judge(task, judge)

    @cached_property
    def embedder(self) -> Embedder:
        from leverplus.encode.cached import open_embedder
        from leverplus.models.settings import warn_of_plain_key

        section = replace(
            self.recipe.embed, **moved_paths(self.folder, self.recipe.embed, ("model",))
        )
        if warning := warn_of_plain_key(section.url, section.key_env):
            self.say(warning)  # before the first request carries the key
        return open_embedder(
            section,
            self.store_path.parent / "vectors",
            self.progress,
            lambda: self.demonstrations,
        )

    @cached_property
    def demonstrations(self) -> Sequence[Item]:
        return self.task.items("train")

    @cached_property
    def demonstration_vectors(self) -> Vectors:
        vectors = self.embedder.embed(self.demonstrations, self.task)
        with_pictures = any(item.image is not None for item in self.demonstrations)
        if with_pictures and vectors.image is None and not self.recipe.embed.mean:
            self.say(
                f"pictures are not seen by the selector: embed.name = {self.recipe.embed.name} reads texts alone, and "
                "demonstrations are told apart by their questions and answers; clip and siglip see pictures"
            )
        return vectors

    @cached_property
    def model_section(self) -> ModelSection:
        """`[model]` with its weights where they are found from here."""
        from leverplus.models.open import find_weights

        return find_weights(self.recipe.score.backend, self.recipe.model, self.folder)

    @cached_property
    def backend(self) -> Backend:
        """The frozen model; a server is told what earlier takes of this run paid for."""
        from leverplus.models.open import build_backend
        from leverplus.models.settings import warn_of_plain_key

        recipe, section = self.recipe, self.model_section
        paid = None
        if recipe.score.backend == "openai" and (
            warning := warn_of_plain_key(section.url, section.key_env)
        ):
            self.say(warning)  # before the first request carries the key
        if self.at_work and (self.folder / rundir.MANIFEST).is_file():
            paid = self.folder / rundir.PAID
        backend = build_backend(recipe.score.backend, self.task, section, paid)
        if hasattr(backend, "say"):
            backend.say = self.say
        return backend

    @property
    def recorded(self) -> Recorded:
        """The recorded table that stands for the model; refused where there is none."""
        from leverplus.models.base import Recorded

        if not isinstance(self.backend, Recorded):
            raise LeverError(
                'pool.kind = "recorded" takes what a recorded table holds: set score.backend = "table"'
            )
        return self.backend
