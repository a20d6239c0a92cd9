"""The sections of a recipe that are not about the selector or its training: task, vectors, scores, evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.recipe.schema import setting


def _tasks() -> tuple[str, ...]:
    return tuple(catalog.TASKS)


def _embedders() -> tuple[str, ...]:
    return tuple(catalog.EMBEDDERS)


def _backends() -> tuple[str, ...]:
    return tuple(catalog.BACKENDS)


def _stages() -> tuple[str, ...]:
    return tuple(catalog.STAGES)


@dataclass(frozen=True)
class TaskSection:
    """`[task]`: where questions, pictures and answers come from."""

    name: str = setting("world", "the task", choices=_tasks)
    world_seed: int = setting(0, "which world is drawn (task = world)", low=0)


@dataclass(frozen=True)
class EmbedSection:
    """`[embed]`: what turns items into vectors."""

    name: str = setting("world", "the embedder", choices=_embedders)


@dataclass(frozen=True)
class ScoreSection:
    """`[score]`: what is asked of the frozen model for training, and how much of it."""

    backend: str = setting("world", "the frozen model", choices=_backends)
    engine: str = setting("local", "where it runs", choices=("local",))
    budget: int = setting(32000, "calls that training and dev selection may ask for", low=1)
    queries: int = setting(0, "training queries; 0: as many as the budget pays for", low=0)
    search: str = setting("beam", "one-shot tables, or beam search on top of them", choices=("dense", "beam"))
    shots: int = setting(2, "how many demonstrations beam search chains", low=1, high=8)
    beam: int = setting(5, "how many sequences beam search keeps", low=1)
    dev_queries: int = setting(64, "dev queries on which every epoch is judged", low=1)
    dev_shots: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of demonstrations judged there", low=1, high=8)

    def cost(self, pool: int) -> int:
        """Most calls one training query needs."""
        calls = 1 + pool
        if self.search == "beam":
            calls += sum(min(self.beam, pool) * (pool - step) for step in range(1, self.shots))
        return calls


@dataclass(frozen=True)
class TrainSection:
    """`[train]`: which stages, in which order; each has a section of its own."""

    stages: tuple[str, ...] = setting(("sft",), "stages in order", choices=_stages)
    imitate: int = setting(1, "best sequences of every length that sft imitates", low=1)


@dataclass(frozen=True)
class EvalSection:
    """`[eval]`: which items, numbers of demonstrations and rival arms."""

    items: int = setting(300, "test items, drawn at random once; 0: all", low=0)
    shots: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of demonstrations", low=1, high=8)
    oracle: bool = setting(True, "also run the greedy oracle, which looks at the answers")
    random_draws: int = setting(3, "independent draws of the random arm", low=1)
    dev_items: int = setting(200, "dev items on which the weight of nearest_both is chosen", low=1)
    vote_neighbours: int = setting(16, "nearest of all demonstrations whose answers label_vote counts", low=1)
    exhaustive_calls: int = setting(20000, "most calls that trying all ordered pairs may take; 0: never", low=0)
    diagnostics: bool = setting(True, "also measure order, regret, shuffled queries and training accuracy")
    diagnostic_items: int = setting(100, "items on which these are measured", low=2)
