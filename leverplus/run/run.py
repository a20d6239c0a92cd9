"""A run: one recipe, one seed, one folder, with the parts that are built from them when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import catalog
from leverplus.arms.settings import RECORDED
from leverplus.data import rundir
from leverplus.data.rundir import Heartbeat, moved_paths, read_json, write_json
from leverplus.errors import DataError, TrainingError
from leverplus.run.calls import KeptCalls
from leverplus.run.parts import Parts, Progress, Say
from leverplus.run.recipe import Recipe

if TYPE_CHECKING:
    from leverplus.arms.corpus import Corpus, Queries
    from leverplus.data.tasks.base import Task
    from leverplus.data.types import Group, Item, Pool
    from leverplus.encode.base import Embedder, Vectors
    from leverplus.learn.arm import Learned
    from leverplus.learn.live import LiveEmbedder
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable
    from leverplus.models.base import Backend
    from leverplus.scores.scorer import Scorer

POOL_SEED = 0
"""Pools and evaluated items do not follow the run's seed: runs with different seeds are compared on the same ones."""


@dataclass(frozen=True)
class Run:
    """One experiment. It holds what others work with and does nothing by itself; nobody changes it once it is made."""

    recipe: Recipe
    folder: Path
    seed: int
    store_path: Path
    say: Say = field(default=lambda _: None)
    progress: Progress = field(default=lambda _what, _done, _total: None)
    strict: bool = False
    """Whether an error of the preflight stops the training."""
    at_work: bool = True
    """Whether progress and calls are noted in the run folder; not where a finished selector only serves."""
    most_queries: int = 0
    """Training questions at most, for learning curves; 0: all."""
    log_to: tuple[str, ...] = ()
    """Who is given the training log beside those that the recipe names; changes nothing about the run."""
    shared: Parts | None = None
    """Parts of another run, taken over instead of built again where they fit this recipe."""

    @cached_property
    def parts(self) -> Parts:
        if self.shared is not None and self.shared.fits(self.recipe):
            return self.shared
        return Parts(
            self.recipe,
            self.folder,
            self.store_path,
            say=self.say,
            progress=self.show_progress,
            at_work=self.at_work,
        )

    @property
    def task(self) -> Task:
        return self.parts.task

    @property
    def embedder(self) -> Embedder:
        return self.parts.embedder

    @cached_property
    def live(self) -> LiveEmbedder | None:
        """Embeds items anew while adapters are trained; None where the recipe asks for none."""
        if not getattr(self.recipe.stages.get("sft"), "lora_rank", 0):
            return None
        from leverplus.encode.cached import CachedEmbedder
        from leverplus.learn.live import LiveEmbedder

        assert isinstance(self.embedder, CachedEmbedder), "the recipe was checked"
        return LiveEmbedder(self.embedder, self.task)

    @property
    def backend(self) -> Backend:
        return self.parts.backend

    @property
    def demonstrations(self) -> Sequence[Item]:
        return self.parts.demonstrations

    @property
    def demonstration_vectors(self) -> Vectors:
        return self.parts.demonstration_vectors

    @cached_property
    def scorer(self) -> Scorer:
        """Asks the store, else the model, which is tested before it is believed."""
        from leverplus.run.scoring import RunOutput, open_scorer

        voice = RunOutput(self.say, self.show_progress, self.remember)
        return open_scorer(
            self.recipe, self.parts, self.store_path, self.kept_calls, voice
        )

    def require_model(self) -> None:
        """Open and test the model: one that is missing or broken is named before anything is embedded."""
        _ = self.scorer

    @cached_property
    def kept_calls(self) -> KeptCalls:
        has_folder = self.at_work and (self.folder / rundir.MANIFEST).is_file()
        return KeptCalls(self.folder / rundir.CALLS if has_folder else None)

    def calls(self) -> int:
        """Distinct prompts that training and dev selection asked for so far."""
        return len(self.kept_calls)

    def _can_be_asked(self, items: Sequence[Item]) -> Sequence[Item]:
        """Those of some items that can be queries: with a recorded table, those it holds with some candidates."""
        if self.recipe.pool.kind != RECORDED:
            return items
        held = self.parts.recorded
        return [
            item
            for item in items
            if len(held.candidates(item.id)) >= max(2, *self.recipe.eval.shots)
        ]

    def chosen_items(self, split: str, count: int) -> list[Item]:
        """`count` items of a split, drawn at random once for all runs; 0: all of them."""
        items = self._can_be_asked(self.task.items(split))
        if count == 0 or count >= len(items):
            return list(items)
        rng = np.random.default_rng([POOL_SEED, len(items), sum(split.encode())])
        return [
            items[int(row)]
            for row in np.sort(rng.choice(len(items), count, replace=False))
        ]

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]:
        """The pools of some queries, and the vectors of everything in them."""
        from leverplus.arms.corpus import Queries, forbidden_positions
        from leverplus.arms.pools import build_pools, recorded_pools
        from leverplus.arms.similarity import rows
        from leverplus.learn.policies.table import ItemTable

        demos, vectors = self.demonstrations, self.demonstration_vectors
        places = {item.id: row for row, item in enumerate(demos)}
        strangers = [query for query in queries if query.id not in places]
        places |= {
            query.id: row for row, query in enumerate(strangers, start=len(demos))
        }
        every = (
            vectors
            if not strangers
            else vectors.joined(self.embedder.embed(strangers, self.task))
        )
        if self.recipe.pool.kind == RECORDED:
            pools = recorded_pools(
                self.recipe.pool,
                queries,
                self.parts.recorded.candidates,
                self.backend.fingerprint(),
            )
        else:
            asked = Queries(
                list(queries),
                rows(every, [places[query.id] for query in queries]),
                forbidden_positions(queries, demos),
            )
            pools = build_pools(
                self.recipe.pool,
                asked,
                self.corpus,
                seed=POOL_SEED,
                fingerprint=self.embedder.fingerprint(),
            )
        ids = [item.id for item in (*demos, *strangers)]
        blocks = {
            name: block for name, block in vars(every).items() if block is not None
        }
        table = ItemTable(ids, blocks)
        if self.live is not None:
            table.live = self.live.items([*demos, *strangers])
        return pools, table

    @cached_property
    def corpus(self) -> Corpus:
        """All demonstrations, as every arm sees them."""
        from leverplus.arms.corpus import Corpus

        demos = self.demonstrations
        return Corpus.of_items(demos, self.demonstration_vectors, self.task.answers)

    def asked(self, queries: Sequence[Item]) -> Queries:
        """Some queries as every arm sees them: never shown themselves nor another question on their picture.

        They are limited to what a recorded table holds, or, with eval.candidates = "pool", to their pools.
        """
        from leverplus.arms.corpus import Queries, forbidden_positions
        from leverplus.arms.similarity import rows

        demos, vectors = self.demonstrations, self.demonstration_vectors
        places = {item.id: row for row, item in enumerate(demos)}
        strangers = [query for query in queries if query.id not in places]
        if strangers:
            places |= {
                item.id: row for row, item in enumerate(strangers, start=len(demos))
            }
            vectors = vectors.joined(self.embedder.embed(strangers, self.task))
        only: list[Any] = []
        if self.limits_arms:
            for pool in self.pools(queries)[0]:
                only.append(np.array([places[demo] for demo in pool.candidates]))
        return Queries(
            list(queries),
            rows(vectors, [places[query.id] for query in queries]),
            forbidden_positions(queries, demos),
            only,
            self.query_digest,
        )

    @property
    def limits_arms(self) -> bool:
        """Whether arms choose among the pools instead of all demonstrations."""
        limited = self.recipe.eval.candidates == "pool"
        return limited or self.recipe.pool.kind == RECORDED

    def query_digest(self, item: Item) -> str:
        """Names a query by its words and pixels, as a bundle names it."""
        from leverplus.arms.corpus import words_digest

        return words_digest(item.question, self.task.image(item))

    def selector(self, policy: Policy) -> Learned:
        """A trained network as a way of choosing: among the pools that it was trained with."""
        from leverplus.learn.arm import Learned

        live = self.embed_live if self.live is not None else None
        return Learned().take(policy, self.recipe.pool, POOL_SEED, live)

    def embed_live(self, queries: Sequence[Item]) -> Any:
        """Embeds demonstrations and queries anew, for selectors with adapters in the embedder."""
        assert self.live is not None
        known = {item.id for item in self.demonstrations}
        strangers = [query for query in queries if query.id not in known]
        return self.live.items([*self.demonstrations, *strangers])

    @cached_property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.folder)

    def show_progress(self, what: str, done: int, total: int) -> None:
        """Show how far something is, and keep the run alive for those who follow its folder."""
        self.progress(what, done, total)
        if self.at_work:
            self.heartbeat.beat(what, done, total)

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Write facts to run.json beside what it says already; `lever world ladder` and benchmarks have no folder."""
        if self.at_work and (self.folder / rundir.MANIFEST).is_file():
            write_json(
                self.folder / rundir.MANIFEST,
                {**read_json(self.folder / rundir.MANIFEST), **facts},
            )

    def affordable_calls(self) -> int:
        """What the budget leaves for training after the pilot, and after every epoch was judged on dev."""
        section, reserve = self.recipe.score, self.recipe.reserve()
        left = section.budget - reserve
        if left < section.cost(self.recipe.pool.size):
            raise TrainingError(
                f"score.budget = {section.budget}: judging every epoch on dev may take {reserve} calls, "
                "which leaves none for training; raise score.budget or lower score.dev_queries or the number of epochs"
            )
        return left

    def shuffled_queries(self) -> list[Item]:
        """Every training item in the order of the run's seed; training takes them from the front."""
        items = self._can_be_asked(self.task.items("train"))
        order = np.random.default_rng([self.seed, 31]).permutation(len(items))
        return [items[int(row)] for row in order[: self.most_queries or None]]

    @cached_property
    def imported_groups(self) -> list[Group]:
        """The groups of `score.groups`; every item must be one of the training split."""
        section = self.recipe.score
        named = moved_paths(self.folder, section, ("groups",)).get(
            "groups", section.groups
        )
        load_groups = catalog.load(catalog.LEGACY, "imported_groups", "reader")
        groups: list[Group] = load_groups(Path(named).expanduser())
        known = {item.id for item in self.demonstrations}
        for group in groups:
            strangers = [
                item
                for item in (group.query, *group.pool.candidates)
                if item not in known
            ]
            if strangers:
                raise DataError(
                    f"score.groups: item {strangers[0]} is not in the training split of {self.task.name}; type "
                    f"`lever import FILE --task {self.task.name} --into DIR`, which gives items the ids of the task"
                )
        return groups

    @cached_property
    def imitates_beams(self) -> bool:
        """Whether `score.groups` is beam data, which only sft can learn from; another stage is refused."""
        if not self.recipe.score.groups:
            return False
        require = catalog.load(catalog.LEGACY, "imitation", "reader")
        return bool(require(self.imported_groups, list(self.recipe.stages)))

    def training_queries(self) -> list[Item]:
        """The training queries that are searched before training, or those of imported groups."""
        section = self.recipe.score
        if section.groups:
            return [self.task.item(group.query) for group in self.imported_groups]
        share = section.first_share if section.rounds else 1.0
        affordable = max(
            1,
            int(share * self.affordable_calls()) // section.cost(self.recipe.pool.size),
        )
        return self.shuffled_queries()[: min(affordable, section.queries or affordable)]
