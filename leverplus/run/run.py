"""A run: one recipe, one seed, one folder, with the parts that are built from them when they are needed.

A run folder is made or taken up here; a folder or data that belong to another run are refused.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus.arms.corpus import (
    Corpus,
    Queries,
    forbidden_positions,
    words_digest,
)
from leverplus.arms.pairs import PairFeatures
from leverplus.arms.pools import build_pools, recorded_pools
from leverplus.arms.settings import RECORDED
from leverplus.arms.similarity import Floats, Positions, rows
from leverplus.arms.training import Training
from leverplus.catalog import ADAPTERS, KINDS, LEGACY, load
from leverplus.data import rundir
from leverplus.data.rundir import (
    Heartbeat,
    commit,
    make_private_folder,
    moved_paths,
    read_json,
    text_digest,
    versions,
    write_json,
    write_text,
)
from leverplus.data.tasks.base import Task
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Group, Item, Pool
from leverplus.encode.base import Embedder, Vectors
from leverplus.encode.cached import open_embedder
from leverplus.encode.pretrained import require_installed
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.learn.arm import Learned
from leverplus.learn.given import find_given
from leverplus.learn.policies.table import ItemTable
from leverplus.models.base import Backend, Recorded
from leverplus.models.open import build_backend, build_task, find_weights
from leverplus.models.settings import ModelSection, warn_of_plain_key
from leverplus.run.recipe import Recipe, load_recipe
from leverplus.run.scoring import KeptCalls, open_scorer
from leverplus.scores.scorer import Scorer
from leverplus.scores.store import default_store_path

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]
"""(what, done, total), called as work goes on."""

POOL_SEED = 0
"""Pools and evaluated items do not follow the run's seed: runs with different seeds are compared on the same ones."""

PARTS = ("task", "embedder", "demonstrations", "demonstration_vectors", "backend")
"""What a run reads and never changes, and another run can take over."""

RESULTS = (
    rundir.CHECKPOINTS,
    rundir.STATE,
    rundir.ACTIVE,
    rundir.LOG,
    rundir.EVAL,
    rundir.PREDICTIONS,
    rundir.PROBE,
)
"""What a run has once something was trained or evaluated; before that a corrected recipe may take its folder over."""


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
    like: Run | None = None
    """Another run, whose parts are taken over instead of built again where they fit this recipe."""

    def __post_init__(self) -> None:
        if self.like is not None and _same_parts(self.recipe, self.like.recipe):
            for name in PARTS:
                if name in vars(self.like):
                    vars(self)[name] = vars(self.like)[name]

    @cached_property
    def manifest(self) -> Path | None:
        """run.json, where there is a folder to write to; `lever world ladder` and benchmarks have none."""
        path = self.folder / rundir.MANIFEST
        return path if self.at_work and path.is_file() else None

    @cached_property
    def task_section(self) -> TaskSection:
        """`[task]` with its files where they lie from here."""
        section = self.recipe.task
        files = ("folder", "file", "images", "database")
        return replace(section, **moved_paths(self.folder, section, files))

    @cached_property
    def task(self) -> Task:
        task = build_task(self.task_section)
        if self.recipe.task.metric != "judge":
            return task
        from leverplus.scores.judge import Judge, with_judge

        paid = self.manifest and self.folder / f"judge-{rundir.PAID}"
        judge = Judge(self.recipe.judge, self.store_path, paid, self.say)
        return with_judge(task, judge)

    @cached_property
    def embedder(self) -> Embedder:
        section = self.recipe.embed
        section = replace(section, **moved_paths(self.folder, section, ("model",)))
        self._warn_of_plain_key(section.url, section.key_env)
        return open_embedder(
            section,
            self.store_path.parent / "vectors",
            self.show_progress,
            lambda: self.demonstrations,
        )

    def _warn_of_plain_key(self, url: str, key_env: str) -> None:
        """Say so before the first request carries a key that everybody can read."""
        if warning := warn_of_plain_key(url, key_env):
            self.say(warning)

    @cached_property
    def demonstrations(self) -> Sequence[Item]:
        return self.task.items("train")

    @cached_property
    def demonstration_vectors(self) -> Vectors:
        vectors = self.embedder.embed(self.demonstrations, self.task)
        with_pictures = any(item.image is not None for item in self.demonstrations)
        if with_pictures and vectors.image is None:
            self.say(
                f"pictures are not seen by the selector: embed.name = {self.recipe.embed.name} reads texts alone, and "
                "demonstrations are told apart by their questions and answers; clip and siglip see pictures"
            )
        return vectors

    @cached_property
    def model_section(self) -> ModelSection:
        """`[model]` with its weights where they are found from here."""
        return find_weights(self.recipe.score.backend, self.recipe.model, self.folder)

    @cached_property
    def backend(self) -> Backend:
        """The frozen model; a server is told what earlier takes of this run paid for."""
        name, section = self.recipe.score.backend, self.model_section
        if name == "openai":
            self._warn_of_plain_key(section.url, section.key_env)
        paid = self.manifest and self.folder / rundir.PAID
        backend = build_backend(name, self.task, section, paid)
        if hasattr(backend, "say"):
            backend.say = self.say
        return backend

    @property
    def recorded(self) -> Recorded:
        """The recorded table that stands for the model; refused where there is none."""
        if not isinstance(self.backend, Recorded):
            raise LeverError(
                'pool.kind = "recorded" takes what a recorded table holds: set score.backend = "table"'
            )
        return self.backend

    @cached_property
    def live(self) -> Any:
        """Embeds items anew while adapters are trained; None where the recipe asks for none."""
        if not getattr(self.recipe.stages.get("sft"), "lora_rank", 0):
            return None
        return load(ADAPTERS, "live", "adapters")(self.embedder, self.task)

    @cached_property
    def scorer(self) -> Scorer:
        """Asks the store, else the model, which is tested before it is believed."""
        return open_scorer(self)

    @cached_property
    def kept_calls(self) -> KeptCalls:
        return KeptCalls(self.manifest and self.folder / rundir.CALLS)

    def calls(self) -> int:
        """Distinct prompts that training and dev selection asked for so far."""
        return len(self.kept_calls.keys)

    def _can_be_asked(self, items: Sequence[Item]) -> Sequence[Item]:
        """Those of some items that can be queries: with a recorded table, those it holds with some candidates."""
        if self.recipe.pool.kind != RECORDED:
            return items
        fewest = max(2, *self.recipe.eval.shots)
        found = []
        for item in items:
            if len(self.recorded.candidates(item.id)) >= fewest:
                found.append(item)
        return found

    def chosen_items(self, split: str, count: int) -> list[Item]:
        """`count` items of a split, drawn at random once for all runs; 0: all of them."""
        items = self._can_be_asked(self.task.items(split))
        if count == 0 or count >= len(items):
            return list(items)
        rng = np.random.default_rng([POOL_SEED, len(items), sum(split.encode())])
        drawn = np.sort(rng.choice(len(items), count, replace=False))
        return [items[int(row)] for row in drawn]

    def everyone(self, queries: Sequence[Item]) -> tuple[list[Item], Vectors]:
        """All demonstrations, and behind them the queries that are none, with the vectors of all."""
        known = {item.id for item in self.demonstrations}
        strangers = [query for query in queries if query.id not in known]
        vectors = self.demonstration_vectors
        if strangers:
            vectors = vectors.joined(self.embedder.embed(strangers, self.task))
        return [*self.demonstrations, *strangers], vectors

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]:
        """The pools of some queries, and the vectors of everything in them."""
        section = self.recipe.pool
        items, vectors = self.everyone(queries)
        if section.kind == RECORDED:
            candidates, marks = self.recorded.candidates, self.backend.fingerprint()
            pools = recorded_pools(section, queries, candidates, marks)
        else:
            asked = self._queries(queries, items, vectors)
            marks = self.embedder.fingerprint()
            pools = build_pools(
                section, asked, self.corpus, seed=POOL_SEED, fingerprint=marks
            )
        blocks = {}
        for name, block in vars(vectors).items():
            if block is not None:
                blocks[name] = block
        table = ItemTable([item.id for item in items], blocks)
        if self.live is not None:
            table.live = self.live.items(items)
        if self.recipe.select.pairs:
            table.pairs = partial(self._pairs, items, vectors)
        return pools, table

    def _pairs(
        self, items: Sequence[Item], vectors: Vectors, query: int, shown: Positions
    ) -> Floats:
        """What a selector with `select.pairs` reads of an item and some demonstrations, all by their rows."""
        asked = Queries([items[query]], rows(vectors, [query]))
        return self.pair_features.of(asked, self.corpus, shown)

    @cached_property
    def pair_features(self) -> PairFeatures:
        demos, vectors = self.demonstrations, self.demonstration_vectors
        training = Training(demos, vectors, self.task.answers, self.corpus)
        return PairFeatures.fit(training)

    @cached_property
    def corpus(self) -> Corpus:
        """All demonstrations, as every arm sees them."""
        demos = self.demonstrations
        return Corpus.of_items(demos, self.demonstration_vectors, self.task.answers)

    def asked(self, queries: Sequence[Item]) -> Queries:
        """Some queries as every arm sees them: never shown themselves nor another question on their picture.

        They are limited to what a recorded table holds, or, with eval.candidates = "pool", to their pools.
        """
        items, vectors = self.everyone(queries)
        asked = self._queries(queries, items, vectors)
        if not self.limits_arms:
            return asked
        places = {item.id: row for row, item in enumerate(items)}
        only = []
        for pool in self.pools(queries)[0]:
            only.append(np.array([places[demo] for demo in pool.candidates]))
        return replace(asked, only=only)

    def _queries(
        self, queries: Sequence[Item], items: Sequence[Item], vectors: Vectors
    ) -> Queries:
        places = {item.id: row for row, item in enumerate(items)}
        return Queries(
            list(queries),
            rows(vectors, [places[query.id] for query in queries]),
            forbidden_positions(queries, self.demonstrations),
            digest_of=self.query_digest,
        )

    @property
    def limits_arms(self) -> bool:
        """Whether arms choose among the pools instead of all demonstrations."""
        limited = self.recipe.eval.candidates == "pool"
        return limited or self.recipe.pool.kind == RECORDED

    def query_digest(self, item: Item) -> str:
        """Names a query by its words and pixels, as a bundle names it."""
        return words_digest(item.question, self.task.image(item))

    def selector(self, policy: Policy) -> Learned:
        """A trained network as a way of choosing: among the pools that it was trained with."""
        live = self.embed_live if self.live is not None else None
        chosen = Learned().take(policy, self.recipe.pool, POOL_SEED, live)
        if policy.config.pairs:
            chosen.pairs = self.pair_features
        return chosen

    def embed_live(self, queries: Sequence[Item]) -> Any:
        """Embeds demonstrations and queries anew, for selectors with adapters in the embedder."""
        assert self.live is not None
        return self.live.items(self.everyone(queries)[0])

    @cached_property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.folder)

    def show_progress(self, what: str, done: int, total: int) -> None:
        """Show how far something is, and keep the run alive for those who follow its folder."""
        self.progress(what, done, total)
        if self.at_work:
            self.heartbeat.beat(what, done, total)

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Write facts to run.json beside what it says already."""
        if self.manifest is not None:
            write_json(self.manifest, {**read_json(self.manifest), **facts})

    def affordable_calls(self) -> int:
        """What the budget leaves for training after the pilot, and after every epoch was judged on dev."""
        return self.recipe.score.budget - self.recipe.reserve()

    def shuffled_queries(self) -> list[Item]:
        """Every training item in the order of the run's seed; training takes them from the front."""
        items = self._can_be_asked(self.task.items("train"))
        order = np.random.default_rng([self.seed, 31]).permutation(len(items))
        return [items[int(row)] for row in order]

    @cached_property
    def imported_groups(self) -> list[Group]:
        """The groups of `score.groups`; every item must be one of the training split."""
        section = self.recipe.score
        moved = moved_paths(self.folder, section, ("groups",))
        path = Path(moved.get("groups", section.groups)).expanduser()
        groups: list[Group] = load(LEGACY, "imported_groups", "reader")(path)
        known = {item.id for item in self.demonstrations}
        for group in groups:
            for item in (group.query, *group.pool.candidates):
                if item not in known:
                    raise DataError(
                        f"score.groups: item {item} is not in the training split of {self.task.name}; type "
                        f"`lever import FILE --task {self.task.name} --into DIR`, which gives items the ids of the task"
                    )
        return groups

    @cached_property
    def imitates_beams(self) -> bool:
        """Whether `score.groups` is beam data, which only sft can learn from; another stage is refused."""
        if not self.recipe.score.groups:
            return False
        require = load(LEGACY, "imitation", "reader")
        return bool(require(self.imported_groups, list(self.recipe.stages)))

    def training_queries(self) -> list[Item]:
        """The training queries that are searched before training, or those of imported groups."""
        section = self.recipe.score
        if section.groups:
            return [self.task.item(group.query) for group in self.imported_groups]
        share = section.first_share if section.rounds else 1.0
        calls = int(share * self.affordable_calls())
        affordable = max(1, calls // section.cost(self.recipe.pool.size))
        return self.shuffled_queries()[: min(affordable, section.queries or affordable)]


def _same_parts(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes have the same task, encoder and model; what a server is paid is noted run by run."""
    for name in ("task", "embed", "model"):
        if getattr(one, name) != getattr(other, name):
            return False
    return one.score.backend == other.score.backend != "openai"


def open_run(
    recipe: Recipe,
    source: Path,
    folder: Path,
    *,
    seed: int,
    store_path: Path,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    strict: bool = False,
    like: Run | None = None,
) -> Run:
    """Create a run folder, or take up the one that is there if it belongs to the same recipe and seed."""
    identity = {"recipe": recipe.name, "recipe_hash": recipe.hash, "seed": seed}
    manifest = folder / rundir.MANIFEST
    stored = read_json(manifest) if manifest.is_file() else {}
    if {key: stored.get(key) for key in identity} != identity:
        _refuse_occupied(folder, stored)
        _require_parts(recipe)
        try:
            _write_folder(folder, recipe, source, identity, stored)
        except OSError as error:
            raise LeverError(
                f"cannot write to {folder} ({error.strerror}); choose another folder with --out DIR"
            ) from error
    return Run(
        recipe, folder, seed, store_path, say, progress, strict=strict, like=like
    )


def _refuse_occupied(folder: Path, stored: Mapping[str, Any]) -> None:
    """Refuse a folder that holds results of another run, or of one that nobody can name."""
    if not any((folder / name).exists() for name in RESULTS):
        return
    whose = "results but no run.json, so nobody knows of which run"
    if stored:
        whose = (
            f"another run (recipe {stored.get('recipe')}, hash {stored.get('recipe_hash')}, seed "
            f"{stored.get('seed')})"
        )
    raise LeverError(
        f"{folder} holds {whose}; choose a new folder with --out DIR, or delete {folder}: prompts that were asked before "
        "are stored, and are not asked again"
    )


def _require_parts(recipe: Recipe) -> None:
    """Refuse what is missing before there is a folder: a checkpoint, an encoder, a part of the user's own."""
    if recipe.train.start:
        find_given(recipe.train.start)
    require_installed(recipe.embed)
    for _, kind, part in recipe.outside_parts():
        load(dict(KINDS)[kind], part, kind)


def _write_folder(
    folder: Path,
    recipe: Recipe,
    source: Path,
    identity: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> None:
    """The recipe as given, every value of it, and run.json; `stored` is what an earlier recipe left there."""
    import tomli_w

    make_private_folder(folder)
    (folder / rundir.CALLS).unlink(missing_ok=True)  # of the earlier recipe
    shutil.copyfile(source, folder / rundir.RECIPE)
    values: dict[str, Any] = {}
    for name, section in recipe.values().items():
        # TOML has no word for nothing
        values[name] = {
            key: value for key, value in section.items() if value is not None
        }
    resolved = tomli_w.dumps(values)
    write_text(folder / rundir.RESOLVED, resolved)
    facts: dict[str, Any] = {
        **identity,
        "resolved_digest": text_digest(resolved),
        "versions": versions(),
        "commit": commit(),
        "platform": platform.platform(),
        "started_in": str(Path.cwd()),
    }
    if "spent" in stored:  # what a server was paid stays paid
        facts["spent"] = stored["spent"]
    write_json(folder / rundir.MANIFEST, facts)


def load_run(
    folder: Path,
    store_path: Path | None = None,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    *,
    strict: bool = False,
    at_work: bool = True,
) -> Run:
    """The run in a folder that was made before."""
    path = folder / rundir.RESOLVED
    if not path.is_file():
        beside = folder.with_name(f"{folder.name}.run")
        if (beside / rundir.RESOLVED).is_file():
            raise MissingFile(
                f"{folder} is the bundle of a fit; the run behind it is {beside}: name that"
            )
        raise MissingFile(
            f"{folder} is not a run folder (no resolved.toml); type `lever run RECIPE --out {folder}`"
        )
    manifest = read_json(folder / rundir.MANIFEST)
    recipe = replace(load_recipe(str(path)), name=manifest["recipe"])
    # settings that were added since are at their defaults: the file is compared, not the hash of today's settings
    digest = text_digest(path.read_text(encoding="utf-8"))
    if digest != manifest.get("resolved_digest"):
        raise LeverError(
            f"{folder}/resolved.toml was changed after this run was made; start a new run with --out DIR"
        )
    store = store_path or default_store_path()
    seed = manifest["seed"]
    return Run(recipe, folder, seed, store, say, progress, strict, at_work)


def require_same_task(run: Run, *, force: bool = False) -> None:
    """Refuse data other than that the run was trained on, unless forced; a run without any notes what it has."""
    now = run.task.version
    trained = read_json(run.folder / rundir.MANIFEST).get("task_version")
    if trained is None:
        run.remember({"task_version": now})
    elif trained != now and force:
        run.say(
            f"note: the data changed since this run was trained ({trained}, now {now})"
        )
        run.remember({"trained_on": trained, "task_version": now})
    elif trained != now:
        raise LeverError(
            f"the data of task {run.task.name} changed since {run.folder} was trained (version {trained}, now "
            f"{now}), and items may stand in other splits; train a new run with --out DIR, bring the "
            "old data back, or evaluate all the same with `lever eval RUN --force`"
        )
