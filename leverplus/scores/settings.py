"""The `[score]` section of a recipe: what is asked of the frozen model for training."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.data.settings import setting


@dataclass(frozen=True)
class ScoreSection:
    """`[score]`: what is asked of the frozen model for training, and how much of it."""

    backend: str = setting(
        "world", "the frozen model", choices=catalog.BACKENDS, part="backend"
    )
    engine: str = setting(
        "local",
        "where it runs: this process, or a Ray cluster",
        choices=("local", "ray"),
    )
    workers: int = setting(
        0,
        "model copies on a Ray cluster; 0: one a GPU, or one a CPU where there is none",
        low=0,
    )
    worker_timeout: float = setting(
        1800.0,
        "ray: seconds a worker may take for a chunk before another one is asked",
        above=0.0,
    )
    chunk: int = setting(
        512,
        "prompts asked and committed together: the most a crash costs a worker",
        low=1,
    )
    budget: int = setting(
        32000, "calls that training and dev selection may ask for", low=1
    )
    groups: str = setting(
        "",
        "learn from groups that `lever import` took over, in this folder, instead of searching",
    )
    queries: int = setting(
        0, "training queries; 0: as many as the budget pays for", low=0
    )
    search: str = setting(
        "beam",
        "one-shot tables, beam search on top of them, or sequences from several sources",
        choices=("dense", "beam", "mixed"),
    )
    shots: int = setting(
        2, "how many demonstrations searched sequences have", low=1, high=8
    )
    beam: int = setting(5, "how many sequences beam search keeps", low=1)
    side: str = setting(
        "right",
        "where beam search puts a new one: next to the query, or in front",
        choices=("right", "left"),
    )
    random: int = setting(5, "mixed: sequences drawn by chance", low=0)
    retrieved: int = setting(5, "mixed: sequences of nearest neighbours", low=0)
    samples: int = setting(
        0, "mixed: sequences drawn from the selector at each temperature", low=0
    )
    temperatures: tuple[float, ...] = setting(
        (1.0, 1.3), "mixed: temperatures of these samples", above=0.0
    )
    selector_beams: int = setting(
        0, "mixed: likeliest sequences under the selector", low=0
    )
    prefixes: bool = setting(False, "mixed: also score every prefix of a sequence")
    mine: int = setting(
        0,
        "calls to find better or worse sequences for a query whose sequences all score the same",
        low=0,
    )
    keep: str = setting(
        "all",
        "which groups are kept: mixed has right and wrong, strict and few_positives more wrong than right",
        choices=("all", "mixed", "strict", "few_positives", "diverse"),
    )
    tiers: tuple[str, ...] = setting(
        ("high", "medium", "low"),
        "tiers of the curriculum that are kept",
        choices=("high", "medium", "low"),
    )
    rounds: int = setting(
        0,
        "epochs of the first stage that learns from answers, before which the selector says what to ask next",
        low=0,
    )
    first_share: float = setting(
        0.3,
        "share of the calls spent before the first of these rounds",
        above=0.0,
        high=1.0,
    )
    best: int = setting(
        8,
        "rounds: the selector's best candidates that are measured for a fresh query",
        low=1,
    )
    chance: int = setting(2, "rounds: candidates measured by chance beside them", low=0)
    pilot: int = setting(
        0,
        "training queries of a pilot before training, each asked with every demonstration of it; it says what can be "
        "gained, and finds one list for everybody; 0: none",
        low=0,
    )
    pilot_demos: int = setting(
        10, "demonstrations of the pilot, drawn by chance", low=2, high=64
    )
    dev_queries: int = setting(64, "dev queries on which every epoch is judged", low=1)
    dev_shots: tuple[int, ...] = setting(
        (1, 2, 3, 4), "numbers of demonstrations judged there", low=1, high=8
    )

    @property
    def draws_from_selector(self) -> bool:
        """Whether sequences come from the selector that the first stage trained."""
        return self.search == "mixed" and bool(self.samples or self.selector_beams)

    def cost(self, pool: int) -> int:
        """Most calls one training query needs."""
        if self.groups:
            return 0
        calls = 1 + self.mine
        if self.search == "mixed":
            drawn = self.random + self.retrieved + self.selector_beams
            drawn += self.samples * len(self.temperatures)
            if self.prefixes:
                drawn *= self.shots
            return calls + drawn
        calls += pool
        if self.search == "beam":
            for step in range(1, self.shots):
                calls += min(self.beam, pool) * (pool - step)
        return calls
