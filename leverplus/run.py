"""A run: one recipe, one seed, one folder, and the parts that are built from them when they are needed."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import rundir
from leverplus.errors import DataError, LeverError, MissingFile, TrainingError
from leverplus.parsing import parse_toml
from leverplus.recipe.pools import RECORDED
from leverplus.recipe.recipe import Recipe, load_recipe
from leverplus.rundir import Heartbeat, digest_of, make_private_folder, read_json, write_json, write_text

if TYPE_CHECKING:
    from leverplus.backends.base import Backend, Recorded
    from leverplus.embedders.base import Embedder, Vectors
    from leverplus.embedders.live import LiveEmbedder
    from leverplus.policies.base import Policy
    from leverplus.recipe.forecast import Part
    from leverplus.recipe.sections import TaskSection
    from leverplus.scoring.scorer import Scorer
    from leverplus.tasks.base import Task
    from leverplus.training.expectation import Expectation
    from leverplus.training.groups import ItemTable
    from leverplus.types import Group, Item, Pool

POOL_SEED = 0
"""Pools and evaluated items do not follow the run's seed: runs with different seeds are compared on the same ones."""

LOOKED_AT = 200
"""Items whose length a rough price goes by."""

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass
class Run:
    """One experiment: a recipe, a seed, a folder, and the parts that are built from them when they are needed."""

    recipe: Recipe
    folder: Path
    seed: int
    store_path: Path
    say: Say = field(default=lambda _: None)
    progress: Progress = field(default=lambda _what, _done, _total: None)
    strict: bool = False
    """Whether an error of the preflight stops the training."""
    at_work: bool = True
    """Whether progress is noted in the run folder; not where a finished selector only serves."""
    said: set[tuple[str, object]] = field(default_factory=set)
    """Findings that were told: code and stage."""
    _unlabelled: int = 0

    @cached_property
    def task(self) -> Task:
        from leverplus.engine.open import build_task

        return build_task(self.task_section)

    @cached_property
    def task_section(self) -> TaskSection:
        """`[task]` by the rules the folder was made with: one from before task.rules existed keeps its splits."""
        resolved, section = self.folder / "resolved.toml", self.recipe.task
        if resolved.is_file() and "rules" not in parse_toml(resolved.read_bytes()).get("task", {}):
            section = replace(section, rules="0.1")
        return replace(section, **rundir.moved_paths(self.folder, section, ("folder", "file", "images", "captions")))

    @cached_property
    def embedder(self) -> Embedder:
        from leverplus.embedders.cached import open_embedder

        section = replace(self.recipe.embed, **rundir.moved_paths(self.folder, self.recipe.embed, ("model",)))
        return open_embedder(section, self.store_path.parent / "vectors", self.tell)

    @cached_property
    def live(self) -> LiveEmbedder | None:
        """Embeds items anew while adapters are trained; None where the recipe asks for none."""
        if not getattr(self.recipe.stages.get("sft"), "lora_rank", 0):
            return None
        from leverplus.embedders.cached import CachedEmbedder
        from leverplus.embedders.live import LiveEmbedder

        assert isinstance(self.embedder, CachedEmbedder), "the recipe was checked"
        return LiveEmbedder(self.embedder, self.task)

    def given_policy(self, text: str) -> Policy:
        """A selector from outside this run, refused where it does not fit the task's vectors."""
        from leverplus.training.given import given_policy, require_widths

        policy = given_policy(text)
        _, table = self.pools(self.demonstrations[:1])
        require_widths(policy, table.dims, len(table), text)
        if (policy.adapters is None) != (self.live is None):
            which = "has no adapters, and" if policy.adapters is None else "has adapters in the embedder, and not"
            raise LeverError(f"{text} {which} this recipe (sft.lora_rank); use a run of the same kind")
        return policy

    def starting_policy(self) -> Policy | None:
        """What `train.start` names, kept in the run folder once read; None where training begins from scratch."""
        from leverplus.training.checkpoint import load_checkpoint, save_checkpoint

        kept = self.folder / "checkpoints" / "start"
        if not self.recipe.train.start:
            return None
        if not kept.is_dir():
            given = self.given_policy(self.recipe.train.start)
            save_checkpoint(kept, given, self.recipe.hash, {"from": self.recipe.train.start})
        return load_checkpoint(kept)[0]

    def add_adapters(self, policy: Policy) -> None:
        """Give a fresh policy the adapters that the recipe asks for."""
        if self.live is None:
            return
        from leverplus.policies.adapters import Adapters
        from leverplus.training.seeds import derive_seed

        sft: Any = self.recipe.stages["sft"]
        seed = derive_seed(self.seed, "adapters")
        options = {"rank": sft.lora_rank, "alpha": sft.lora_alpha, "dropout": sft.lora_dropout}
        policy.adapters = Adapters.around(self.live.network, self.live.revision, **options, seed=seed)

    @cached_property
    def backend(self) -> Backend:
        from leverplus.engine.open import build_backend, find_weights

        recipe, paid, earlier = self.recipe, None, None
        if self.at_work and (self.folder / "run.json").is_file():
            paid, earlier = self.folder / "paid.jsonl", read_json(self.folder / "run.json").get("spent")
        model = find_weights(recipe.score.backend, recipe.model, self.folder)
        backend = build_backend(recipe.score.backend, self.task, model, paid, earlier)
        if hasattr(backend, "say"):
            backend.say = self.say
        return backend

    @cached_property
    def scorer(self) -> Scorer:
        from leverplus.backends.base import Recorded
        from leverplus.engine.open import BackendFactory, find_weights, open_engine
        from leverplus.scoring.scorer import Scorer
        from leverplus.scoring.trust import require_offered, require_trust
        from leverplus.store.db import ScoreStore

        section = self.recipe.score
        model = find_weights(section.backend, self.recipe.model, self.folder)
        factory = BackendFactory(self.task_section, section.backend, model)
        engine = open_engine(section, self.backend, factory)
        store = ScoreStore(self.store_path)
        scorer = Scorer(self.task, self.backend, store, engine, progress=self._scored, chunk=section.chunk)
        if notice := getattr(self.backend, "notice", ""):
            self.say(notice)
        if isinstance(self.backend, Recorded):
            return scorer  # there is no model to be tested
        reward = self.recipe.reward
        if not section.groups:  # imported groups bring their own measurements
            require_offered(self.backend, reward.components or (reward.mode,), reward.quality)
        trained = not self.recipe.model.untrained
        passed = require_trust(scorer, self.store_path.parent, trained=trained, progress=self._scored)
        if passed is not None and passed.note:
            self.say(passed.note)
        if passed is not None and self.at_work:
            self.remember({"self_test": passed.found})
        return scorer

    def require_same_task(self, *, force: bool = False) -> None:
        """Refuse data other than that the run was trained on, unless forced; a run without any notes what it has."""
        trained = read_json(self.folder / "run.json").get("task_version")
        if trained is None or (force and trained != self.task.version):
            if trained is not None:
                self.say(f"note: the data changed since this run was trained ({trained}, now {self.task.version})")
                self.remember({"trained_on": trained})
            self.remember({"task_version": self.task.version})
        elif trained != self.task.version:
            raise LeverError(
                f"the data of task {self.task.name} changed since {self.folder} was trained (version {trained}, now "
                f"{self.task.version}), and items may stand in other splits; train a new run with --out DIR, bring the "
                "old data back, or evaluate all the same with `lever eval RUN --force`"
            )

    def require_model(self) -> None:
        """Open and test the model: one that is missing or broken is named before anything is embedded."""
        _ = self.scorer

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

    def expects(self) -> bool:
        """Whether the reward asks what labels let answers expect; refused where the task's metric does not allow it."""
        reward = self.recipe.reward
        if "expected_accuracy" not in (reward.components or (reward.mode,)):
            return False
        from leverplus.metrics import MATCHING
        from leverplus.training.expectation import INSTEAD

        if self.task.metric not in MATCHING:
            raise TrainingError(
                f'reward "expected_accuracy" needs a metric by which an answer that nobody gave scores nothing '
                f"({', '.join(MATCHING)}), and the task has {self.task.metric}; {INSTEAD}"
            )
        return True

    @cached_property
    def expectation(self) -> Expectation | None:
        """What labels let answers expect; None where the reward does not ask for it."""
        if not self.expects():
            return None
        from leverplus.metrics import metric_named
        from leverplus.pools.similarity import rows
        from leverplus.training.expectation import Expectation

        asked = {item.id for item in self.shuffled_queries()}
        places = [place for place, item in enumerate(self.demonstrations) if item.id in asked]
        return Expectation(
            [self.demonstrations[place] for place in places],
            rows(self.demonstration_vectors, places),
            metric_named(self.task.metric),
            seed=self.seed,
            tell=partial(self.tell, "learning what labels let expect"),
        )

    def _asked(self, items: Sequence[Item]) -> Sequence[Item]:
        """Those of some items that can be queries: with a recorded table, those it holds with some candidates."""
        if self.recipe.pool.kind != RECORDED:
            return items
        held = self.recorded
        return [item for item in items if len(held.candidates(item.id)) >= max(2, *self.recipe.eval.shots)]

    @property
    def recorded(self) -> Recorded:
        """The recorded table that stands for the model; refused where there is none."""
        from leverplus.backends.base import Recorded

        if not isinstance(self.backend, Recorded):
            raise LeverError('pool.kind = "recorded" takes what a recorded table holds: set score.backend = "table"')
        return self.backend

    def chosen_items(self, split: str, count: int) -> list[Item]:
        """`count` items of a split, drawn at random once for all runs; 0: all of them."""
        items = self._asked(self.task.items(split))
        if count == 0 or count >= len(items):
            return list(items)
        rng = np.random.default_rng([POOL_SEED, len(items), sum(split.encode())])
        return [items[int(row)] for row in np.sort(rng.choice(len(items), count, replace=False))]

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]:
        """The pools of some queries, and the vectors of everything in them."""
        from leverplus.pools.build import build_pools, recorded_pools
        from leverplus.pools.similarity import rows
        from leverplus.training.groups import ItemTable

        demos, vectors = self.demonstrations, self.demonstration_vectors
        places = {item.id: row for row, item in enumerate(demos)}
        strangers = [query for query in queries if query.id not in places]
        places |= {query.id: row for row, query in enumerate(strangers, start=len(demos))}
        every = vectors if not strangers else vectors.joined(self.embedder.embed(strangers, self.task))
        if self.recipe.pool.kind == RECORDED:
            pools = recorded_pools(self.recipe.pool, queries, self.recorded.candidates, self.backend.fingerprint())
        else:
            pools = build_pools(
                self.recipe.pool,
                queries,
                rows(every, [places[query.id] for query in queries]),
                demos,
                vectors,
                seed=POOL_SEED,
                fingerprint=self.embedder.fingerprint(),
            )
        if self.recipe.mistakes.any:
            from leverplus.training.mistakes import spoil_pools

            pools = spoil_pools(self.recipe.mistakes, pools, queries, demos)
        ids = [item.id for item in (*demos, *strangers)]
        blocks = {name: block for name, block in vars(every).items() if block is not None}
        table = ItemTable.from_arrays(ids, blocks)
        if self.live is not None:
            table.live = self.live.items([*demos, *strangers])
        return pools, table

    @cached_property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.folder)

    def tell(self, what: str, done: int, total: int) -> None:
        """Show how far something is, and keep the run alive for those who follow its folder."""
        self.progress(what, done, total)
        if self.at_work:
            self.heartbeat.beat(what, done, total)

    def calls(self) -> int:
        """Distinct prompts that training and dev selection asked for so far."""
        return self.scorer.meter.calls("training")

    def _scored(self, what: str, done: int, total: int) -> None:
        """Replies came: tell it, and write to run.json what a server was asked so far, over all takes."""
        self.tell(what, done, total)
        if self.at_work and hasattr(self.backend, "usage"):
            self.remember({"spent": self.backend.usage()})
        scorer = self.__dict__.get("scorer")  # not there yet while the self-test runs
        if scorer is not None and done >= total and scorer.meter.unlabelled > self._unlabelled:
            self._unlabelled = scorer.meter.unlabelled
            self.say(
                f"note: {self._unlabelled:,} of {scorer.meter.fresh:,} answers were empty where a label was asked for, "
                "and count as wrong; name the labels in model.instruction, or raise model.max_new_tokens"
            )

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Write facts to run.json beside what it says already; `lever world ladder` and benchmarks have no folder."""
        if (self.folder / "run.json").is_file():
            write_json(self.folder / "run.json", {**read_json(self.folder / "run.json"), **facts})

    def affordable_calls(self) -> int:
        """What the budget leaves for training after every epoch was judged on dev."""
        section, reserve = self.recipe.score, self.recipe.dev_reserve()
        left = section.budget - reserve
        if left < section.cost(self.recipe.pool.size):
            raise TrainingError(
                f"score.budget = {section.budget}: judging every epoch on dev may take {reserve} calls, "
                "which leaves none for training; raise score.budget or lower score.dev_queries or the number of epochs"
            )
        return left

    def forecast(self) -> list[Part]:
        """What the whole run may ask of the model, by the recipe and the data; asks nothing."""
        from leverplus.recipe.forecast import Sizes, forecast

        counts = {split: len(self.task.items(split)) for split in ("dev", "test")}
        pictures = any(item.image is not None for item in self.demonstrations)
        queries = len(self.task.items(self.recipe.mistakes.queries))
        return forecast(self.recipe, Sizes(train=queries, **counts, pictures=pictures))

    def rough_price(self, parts: Sequence[Part]) -> float | None:
        """What these parts may cost at the recipe's prices, by the length of some items; None where none are given."""
        from leverplus.recipe.forecast import Texts, price

        section = self.recipe.model
        some = self.demonstrations[:LOOKED_AT]
        if not some or not section.price_in + section.price_out:
            return None
        labels = len(getattr(self.task, "labels", ()))
        # a server that weighs answers reads the prompt once for each, and once more where the answer is written
        weighed = labels or 1 + float(np.mean([len(set(item.answers)) for item in some]))
        readings = 1.0 if section.logprobs == "never" else weighed
        lengths = [len(section.template) + len(item.question) + len(item.answer) for item in some]
        texts = Texts(float(np.mean(lengths)), readings)
        prices = {"price_in": section.price_in, "price_out": section.price_out}
        return price(parts, prices, texts, section.max_new_tokens)

    def shuffled_queries(self) -> list[Item]:
        """Every training item in the order of the run's seed; training takes them from the front."""
        items = self._asked(self.task.items(self.recipe.mistakes.queries))
        return [items[int(row)] for row in np.random.default_rng([self.seed, 31]).permutation(len(items))]

    @cached_property
    def imported_groups(self) -> list[Group]:
        """The groups of `score.groups`; every item must be one of the training split."""
        from leverplus.scoring.group_file import load_groups

        section = self.recipe.score
        named = rundir.moved_paths(self.folder, section, ("groups",)).get("groups", section.groups)
        groups = load_groups(Path(named).expanduser())
        known = {item.id for item in self.demonstrations}
        for group in groups:
            strangers = [item for item in (group.query, *group.pool.candidates) if item not in known]
            if strangers:
                raise DataError(
                    f"score.groups: item {strangers[0]} is not in the training split of {self.task.name}; type "
                    f"`lever import FILE --task {self.task.name} --into DIR`, which gives items the ids of the task"
                )
        return groups

    @cached_property
    def imitates_beams(self) -> bool:
        """Whether `score.groups` is beam data, which only sft can learn from; another stage is refused."""
        from leverplus.scoring.group_file import require_imitation

        return bool(self.recipe.score.groups) and require_imitation(self.imported_groups, list(self.recipe.stages))

    def training_queries(self) -> list[Item]:
        """The training queries that are searched before training, or those of imported groups."""
        section = self.recipe.score
        if section.groups:
            return [self.task.item(group.query) for group in self.imported_groups]
        share = section.first_share if section.rounds else 1.0
        affordable = max(1, int(share * self.affordable_calls()) // section.cost(self.recipe.pool.size))
        return self.shuffled_queries()[: min(affordable, section.queries or affordable)]


def open_run(
    recipe: Recipe,
    source: Path,
    folder: Path,
    *,
    seed: int,
    store_path: Path,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Run:
    """Create a run folder, or take up the one that is there if it belongs to the same recipe and seed."""
    import tomli_w

    identity = {"recipe": recipe.name, "recipe_hash": recipe.hash, "seed": seed}
    manifest = folder / "run.json"
    stored = read_json(manifest) if manifest.is_file() else {}
    if {key: stored.get(key) for key in identity} != identity:
        if stored and has_results(folder):
            raise LeverError(
                f"{folder} holds another run (recipe {stored.get('recipe')}, hash {stored.get('recipe_hash')}, seed "
                f"{stored.get('seed')}); choose a new folder with --out DIR, or delete {folder}"
            )
        leftovers = [name for name in ("checkpoints", "state", "acquired") if (folder / name).exists()]
        if leftovers:
            raise LeverError(
                f"{folder} has {', '.join(leftovers)} but no run.json, so nobody knows which run they belong to; "
                f"choose a new folder with --out DIR, or delete {folder}"
            )
        if recipe.train.start:
            from leverplus.training.given import find_given

            find_given(recipe.train.start)  # one that is missing is refused before there is a folder
        try:
            make_private_folder(folder)
            shutil.copyfile(source, folder / "recipe.toml")
            resolved = tomli_w.dumps(_without_none(recipe.values()))
            write_text(folder / "resolved.toml", resolved)
            facts: dict[str, Any] = {
                "versions": rundir.versions(),
                "commit": rundir.commit(),
                "platform": platform.platform(),
                "started_in": str(Path.cwd()),
            }
            facts |= {"spent": stored["spent"]} if "spent" in stored else {}
            write_json(manifest, {**identity, "resolved_digest": digest_of(resolved), **facts})
        except OSError as error:
            raise LeverError(
                f"cannot write to {folder} ({error.strerror}); choose another folder with --out DIR"
            ) from error
    return Run(recipe, folder, seed, store_path, say, progress)


RESULTS = ("checkpoints", "state", "acquired", "log.jsonl", "eval.json", "predictions.parquet", "probe.json")
"""What a run has once something was trained or evaluated; before that a corrected recipe may take its folder over."""


def has_results(folder: Path) -> bool:
    return any((folder / name).exists() for name in RESULTS)


def load_run(
    folder: Path,
    store_path: Path | None = None,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Run:
    """The run in a folder that was made before."""
    from leverplus.store.location import default_store_path

    if not (folder / "resolved.toml").is_file():
        raise MissingFile(f"{folder} is not a run folder (no resolved.toml); type `lever run RECIPE --out {folder}`")
    manifest = read_json(folder / "run.json")
    recipe = replace(load_recipe(str(folder / "resolved.toml")), name=manifest["recipe"])
    # settings that were added since are at their defaults: the file is compared, not the hash of today's settings
    if digest_of((folder / "resolved.toml").read_text(encoding="utf-8")) != manifest.get("resolved_digest"):
        raise LeverError(f"{folder}/resolved.toml is not the one this run was made with; start a new run")
    return Run(recipe, folder, manifest["seed"], store_path or default_store_path(), say, progress)


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return values
