"""The verbs of a run, one function each: the only module that wires the parts together."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import catalog
from leverplus.errors import LeverError, MissingFile, TrainingError
from leverplus.recipe.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from leverplus.backends.base import Backend
    from leverplus.doctor.findings import Finding
    from leverplus.embedders.base import Embedder, Vectors
    from leverplus.evaluation.arms import Bench
    from leverplus.policies.base import Policy
    from leverplus.scoring.scorer import Scorer
    from leverplus.tasks.base import Task
    from leverplus.training.groups import ItemTable, Row
    from leverplus.types import Group, Item, Pool

POOL_SEED = 0
"""Pools and evaluated items do not follow the run's seed: runs with different seeds are compared on the same ones."""

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

    @cached_property
    def task(self) -> Task:
        from leverplus.engine.open import build_task

        return build_task(self.recipe.task)

    @cached_property
    def embedder(self) -> Embedder:
        embedder: Embedder = catalog.load(catalog.EMBEDDERS, self.recipe.embed.name, "embedder")()
        return embedder

    @cached_property
    def backend(self) -> Backend:
        backend: Backend = catalog.load(catalog.BACKENDS, self.recipe.score.backend, "backend")(self.task)
        return backend

    @cached_property
    def scorer(self) -> Scorer:
        from leverplus.engine.open import BackendFactory, open_engine
        from leverplus.scoring.scorer import Scorer
        from leverplus.scoring.selftest import self_test
        from leverplus.store.db import ScoreStore

        section = self.recipe.score
        engine = open_engine(section, self.backend, BackendFactory(self.recipe.task, section.backend))
        store = ScoreStore(self.store_path)
        scorer = Scorer(self.task, self.backend, store, engine, progress=self.progress, chunk=section.chunk)
        if store.count(scorer.context) == 0:
            self_test(self.task, self.backend)  # nothing of this model was believed before
        return scorer

    @cached_property
    def demonstrations(self) -> Sequence[Item]:
        return self.task.items("train")

    @cached_property
    def demonstration_vectors(self) -> Vectors:
        return self.embedder.embed(self.demonstrations, self.task)

    def chosen_items(self, split: str, count: int) -> list[Item]:
        """`count` items of a split, drawn at random once for all runs; 0: all of them."""
        items = self.task.items(split)
        if count == 0 or count >= len(items):
            return list(items)
        rng = np.random.default_rng([POOL_SEED, len(items), sum(split.encode())])
        return [items[int(row)] for row in np.sort(rng.choice(len(items), count, replace=False))]

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]:
        """The pools of some queries, and the vectors of everything in them."""
        from leverplus.pools.build import build_pools
        from leverplus.training.groups import ItemTable

        demos, vectors = self.demonstrations, self.demonstration_vectors
        known = {item.id: row for row, item in enumerate(demos)}
        strangers = [query for query in queries if query.id not in known]
        query_vectors = _select(vectors, [known[q.id] for q in queries if q.id in known])
        if strangers:
            fresh = self.embedder.embed(strangers, self.task)
            query_vectors = fresh if len(strangers) == len(queries) else _merge(queries, known, query_vectors, fresh)
        pools = build_pools(
            self.recipe.pool,
            queries,
            query_vectors,
            demos,
            vectors,
            seed=POOL_SEED,
            fingerprint=self.embedder.fingerprint(),
        )
        ids = [item.id for item in demos] + [item.id for item in strangers]
        blocks = {
            name: block if not strangers else np.concatenate([block, getattr(fresh, name)])
            for name in ("image", "text", "answer")
            if (block := getattr(vectors, name)) is not None
        }
        return pools, ItemTable.from_arrays(ids, blocks)

    def calls(self) -> int:
        """Distinct prompts that training and dev selection asked for so far."""
        return self.scorer.meter.calls("training")

    def affordable_calls(self) -> int:
        """What the budget leaves for training after every epoch was judged on dev."""
        section = self.recipe.score
        epochs = sum(stage.epochs + 1 for stage in self.recipe.stages.values())
        reserve = section.dev_queries * len(section.dev_shots) * epochs
        left = section.budget - reserve
        if left < section.cost(self.recipe.pool.size):
            raise TrainingError(
                f"score.budget = {section.budget}: judging {epochs} epochs on dev may take {reserve} calls, "
                "which leaves none for training; raise score.budget or lower score.dev_queries or the number of epochs"
            )
        return left

    def shuffled_queries(self) -> list[Item]:
        """Every training item in the order of the run's seed; training takes them from the front."""
        items = self.task.items("train")
        return [items[int(row)] for row in np.random.default_rng([self.seed, 31]).permutation(len(items))]

    def training_queries(self) -> list[Item]:
        """The training queries that are searched before training."""
        section = self.recipe.score
        share = section.first_share if section.rounds else 1.0
        affordable = max(1, int(share * self.affordable_calls()) // section.cost(self.recipe.pool.size))
        return self.shuffled_queries()[: min(affordable, section.queries or affordable)]


def _select(vectors: Vectors, rows: Sequence[int]) -> Vectors:
    from leverplus.embedders.base import Vectors

    image = None if vectors.image is None else vectors.image[rows]
    return Vectors(image, vectors.text[rows], vectors.answer[rows])


def _merge(queries: Sequence[Item], known: Mapping[Any, int], old: Vectors, fresh: Vectors) -> Vectors:
    """Vectors in the order of the queries, from those that are demonstrations and those that are not."""
    from leverplus.embedders.base import Vectors

    inside = np.array([query.id in known for query in queries])
    order = np.empty(len(queries), dtype=np.int64)
    order[inside] = np.arange(inside.sum())
    order[~inside] = inside.sum() + np.arange((~inside).sum())

    def joined(name: str) -> Any:
        left, right = getattr(old, name), getattr(fresh, name)
        return None if left is None else np.concatenate([left, right])[order]

    return Vectors(joined("image"), joined("text"), joined("answer"))


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
    if manifest.is_file():
        stored = read_json(manifest)
        if {key: stored.get(key) for key in identity} != identity:
            raise LeverError(
                f"{folder} holds another run (recipe {stored.get('recipe')}, hash {stored.get('recipe_hash')}, seed "
                f"{stored.get('seed')}); choose a new folder with --out DIR, or delete {folder}"
            )
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / "recipe.toml")
            resolved = tomli_w.dumps(_without_none(recipe.values()))
            write_text(folder / "resolved.toml", resolved)
            facts = {"versions": versions(), "commit": commit(), "platform": platform.platform()}
            write_json(manifest, {**identity, "resolved_digest": digest_of(resolved), **facts})
        except OSError as error:
            raise LeverError(
                f"cannot write to {folder} ({error.strerror}); choose another folder with --out DIR"
            ) from error
    return Run(recipe, folder, seed, store_path, say, progress)


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
    if digest_of((folder / "resolved.toml").read_text(encoding="utf-8")) != manifest["resolved_digest"]:
        raise LeverError(f"{folder}/resolved.toml was changed after the run was made; restore it or start a new run")
    return Run(recipe, folder, manifest["seed"], store_path or default_store_path(), say, progress)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return values


def versions() -> dict[str, str]:
    """The versions of what computes."""
    names = ("leverplus", "torch", "numpy", "scipy", "pyarrow", "safetensors")
    return {name: metadata.version(name) for name in names}


def commit() -> str | None:
    """The commit of the source tree, where there is one."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return None
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def search_groups(run: Run) -> list[Group]:
    """What training learns from at first: the scores of searched sequences, asked for once."""
    from leverplus.scoring.plan import find_groups

    queries = run.training_queries()
    pools, table = run.pools(queries)
    groups = find_groups(run.scorer, pools, run.recipe.score, seed=run.seed, table=table)
    if not groups:
        raise TrainingError(
            f"none of {len(queries)} searched groups is kept; loosen score.keep or score.tiers, or raise score.mine"
        )
    run.say(f"searched {len(queries)} training queries with {run.calls():,} calls")
    return groups


class Acquisition:
    """Rounds in which the selector in training says what to ask next; what was asked is kept in the run folder."""

    def __init__(self, run: Run, groups: Sequence[Group], table: ItemTable) -> None:
        self.run, self.table = run, table
        self.pools = run.pools(run.shuffled_queries())[0]
        self.next = len(run.training_queries())
        section = run.recipe.score
        self.per_query = section.best + section.chance + 1
        left = run.affordable_calls() - self.next * section.cost(run.recipe.pool.size)
        self.per_round = left // (section.rounds * self.per_query)
        self.rows = self._rows(groups)
        self.done = 0

    def __call__(self, policy: Policy, epoch: int) -> Sequence[Row]:
        """The rows of an epoch (from 0); fresh queries are asked about before epochs 1..rounds."""
        while self.done < min(epoch, self.run.recipe.score.rounds):
            self.done += 1
            self._ask(policy)
        return self.rows

    def _ask(self, policy: Policy) -> None:
        from leverplus.scoring.acquire import propose
        from leverplus.scoring.search import scored_groups
        from leverplus.types import Member

        section = self.run.recipe.score
        pools = self.pools[self.next : self.next + self.per_round]
        self.next += len(pools)
        if not pools:
            return
        path = self.run.folder / "acquired" / f"round{self.done:02d}.json"
        if not path.is_file():
            wanted = propose(policy, self.table, pools, best=section.best, chance=section.chance, seed=self.run.seed)
            path.parent.mkdir(exist_ok=True)
            write_json(path, {str(query): candidates for query, candidates in wanted.items()})
        asked = read_json(path)
        members = [[Member((), "acquired")] + [Member((c,), "acquired") for c in asked[pool.query]] for pool in pools]
        groups = scored_groups(self.run.scorer, pools, members, f"round {self.done} of {section.rounds}")
        self.rows = [*self.rows, *self._rows(groups)]

    def _rows(self, groups: Sequence[Group]) -> list[Row]:
        from leverplus.training.groups import rows_from_groups

        recipe = self.run.recipe
        stops = recipe.select.stop != "never"
        return rows_from_groups(groups, self.table, recipe.reward, stops=stops, max_shots=recipe.select.max_shots)


def train_run(run: Run) -> Policy:
    """Every stage of the recipe in order, each going on where it was stopped."""
    from leverplus.policies.build import build_policy
    from leverplus.scoring.search import top_members
    from leverplus.training.checkpoint import load_checkpoint
    from leverplus.training.groups import rows_from_groups
    from leverplus.training.loop import StageRun, run_stage
    from leverplus.training.seeds import derive_seed

    recipe, checkpoints = run.recipe, run.folder / "checkpoints"
    groups = search_groups(run)
    _, table = run.pools(run.training_queries()[:1])
    policy = build_policy(recipe.select, table.dims, items=len(table), seed=derive_seed(run.seed, "init"))
    judge = dev_judge(run)
    judge(policy)
    for folder in sorted(checkpoints.glob("*-epoch*")):
        judge(load_checkpoint(folder)[0])  # asks the store only; counts the calls of epochs run before
    acquisition = Acquisition(run, groups, table) if recipe.score.rounds else None
    anchors: dict[str, Policy] = {}
    for number, (name, config) in enumerate(recipe.stages.items()):
        done = checkpoints / name
        if not done.is_dir():
            refresh = acquisition if number == 0 else None
            if acquisition is not None:
                rows = acquisition(policy, 0) if number == 0 else acquisition.rows
            else:
                own = top_members(groups, recipe.train.imitate) if name == "sft" else groups
                rows = rows_from_groups(
                    own, table, recipe.reward, stops=policy.stops, max_shots=recipe.select.max_shots
                )
            stage = StageRun(name, config, table, run.seed, run.folder, anchors, judge, refresh, recipe.hash, run.calls)
            result = run_stage(policy, rows, stage)
            run.say(f"{name}: {result.epochs} epochs, best {result.best_epoch}, dev accuracy {result.best_value:.3f}")
        elif acquisition is not None and number == 0:
            acquisition(policy, config.epochs)  # asks the store only; what later stages learn from
        policy = load_checkpoint(done)[0]
        anchors[name] = load_checkpoint(done)[0]
    return policy


def dev_judge(run: Run) -> Callable[[Policy], Mapping[str, float]]:
    """Judges a policy by the accuracy of its picks on fixed dev queries, store first; these calls count as training."""
    from leverplus.evaluation.arms import learned
    from leverplus.scoring.scorer import TRAINING

    section = run.recipe.score
    pools, table = run.pools(run.chosen_items("dev", section.dev_queries))

    def judge(policy: Policy) -> Mapping[str, float]:
        choices = learned(policy, pools, table, section.dev_shots)
        values: dict[str, float] = {}
        for shots, lists in choices.items():
            prompts = [(pool.query, demos) for pool, demos in zip(pools, lists, strict=True)]
            scores = run.scorer.score(prompts, TRAINING, "judging on dev")
            values[f"reward@{shots}"] = float(np.mean([score.accuracy for score in scores]))
        return {"reward": float(np.mean(list(values.values()))), **values}

    return judge


def bench_of(run: Run, queries: Sequence[Item]) -> Bench:
    """What all arms share on some queries."""
    from leverplus.evaluation.arms import Bench

    pools, table = run.pools(queries)
    return Bench(run.task, run.scorer, queries, pools, table, run.demonstrations, run.demonstration_vectors)


def evaluate_run(
    run: Run,
    policy: Policy | None,
    split: str = "test",
    items: int | None = None,
    *,
    checkpoint: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Every arm on the same items and pools; writes eval.json and predictions.parquet (eval-dev.json, ... on dev).

    `checkpoint` names what `policy` is if it is not the run's last; a second one on test needs `force`.
    """
    from leverplus.evaluation.conditions import require_unseen
    from leverplus.evaluation.cost import query_cost
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.evaluation.predictions import write_predictions
    from leverplus.evaluation.result import report
    from leverplus.evaluation.sweep import guard_test
    from leverplus.scoring.scorer import EVALUATION

    section, suffix = run.recipe.eval, "" if split == "test" else f"-{split}"
    path = run.folder / f"eval{suffix}.json"
    chosen_on_test = guard_test(split, checkpoint, read_json(path) if path.is_file() else None, force)
    run.scorer.meter.asked[EVALUATION].clear()  # eval_calls are those of this evaluation
    bench = bench_of(run, run.chosen_items(split, section.items if items is None else items))
    require_unseen(bench.queries, run.demonstrations)
    share = choose_text_share(run)
    results = run_arms(bench, section, policy, share, run.recipe.pool.mmr_lambda)
    trained = None
    if policy is not None and section.diagnostics:
        trained = bench_of(run, run.training_queries()[: section.diagnostic_items])
    found = report(bench, results, policy, section, split=split, trained=trained)
    found["nearest_both_text_share"] = share
    found["checkpoint"] = checkpoint or (list(run.recipe.stages)[-1] if policy is not None else None)
    found["chosen_on_test"] = chosen_on_test
    write_predictions(results, run.folder / f"predictions{suffix}.parquet")
    write_json(path, found)
    write_json(run.folder / "run.json", {**read_json(run.folder / "run.json"), "query_cost": query_cost(results)})
    return found


def sweep_run(run: Run, split: str = "dev", items: int | None = None, force: bool = False) -> dict[str, Any]:
    """Every checkpoint of a run on the same items; writes sweep-dev.json. On test it needs `force` and is marked."""
    from leverplus.evaluation.conditions import conditions_of
    from leverplus.evaluation.sweep import best_row, checkpoint_names, guard_test, sweep
    from leverplus.training.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    section, checkpoints = run.recipe.eval, run.folder / "checkpoints"
    bench = bench_of(run, run.chosen_items(split, section.items if items is None else items))
    names = checkpoint_names(checkpoints, run.recipe.stages)
    rows = sweep(bench, ((name, load_checkpoint(checkpoints / name)[0]) for name in names), section.shots)
    found = {
        "task": run.task.name,
        "split": split,
        "n": len(bench.queries),
        "checkpoints": rows,
        "best": best_row(rows),
        "chosen_on_test": chosen_on_test,
        "conditions": conditions_of(run.scorer.context, split, [item.id for item in bench.queries], bench.pools),
    }
    write_json(run.folder / f"sweep-{split}.json", found)
    return found


def choose_text_share(run: Run) -> float:
    """The share of the question in nearest_both with the best mean accuracy on dev."""
    from leverplus.evaluation.evaluate import best_text_share

    section = run.recipe.eval
    return best_text_share(bench_of(run, run.chosen_items("dev", section.dev_items)), section.shots)


def run_all(run: Run) -> dict[str, Any]:
    """Every stage of a recipe; what is done already is taken from the store and the run folder."""
    from leverplus.report.build import build_report

    report = evaluate_run(run, train_run(run))
    examine_run(run)
    build_report(run)
    return report


def examine_run(run: Run) -> list[Finding]:
    """What the doctor finds in the run folder; writes findings.json."""
    from leverplus.doctor.examine import examine
    from leverplus.doctor.runfolder import read_run

    findings = examine(read_run(run.folder))
    write_json(run.folder / "findings.json", {"findings": [finding.as_json() for finding in findings]})
    return findings


def read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is not there; is {path.parent} a run folder? `lever run` makes one") from error
    except json.JSONDecodeError as error:
        raise LeverError(f"{path} is damaged ({error}); delete it and run the command that makes it again") from error
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file at once."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
