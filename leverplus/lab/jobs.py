"""One piece of the benchmark: a selector trained in one world with one seed, or the arms of a world that need none.

What a piece leaves is a record: accuracies item by item, calls, seconds and where it comes from. Arms without training
are measured once a world; a trained selector is measured alone, on the same items and pools.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.experiment.opening import open_run
from leverplus.experiment.parts import Parts
from leverplus.experiment.run import Run
from leverplus.lab.methods import TrainingMethod
from leverplus.recipe.recipe import Recipe, find_recipe, load_recipe
from leverplus.renamed import stage_today
from leverplus.rundir import commit, read_json, write_json

if TYPE_CHECKING:
    from leverplus.evaluation.arms import EvaluationContext
    from leverplus.evaluation.predictions import Results

Record = dict[str, Any]
ARMS = "arms"
"""The name of the job that measures a world's arms without training."""
LATER_ARMS = ("label_rank", "label_regression")
"""Arms that records of 0.1 lack; they are measured and added when a benchmark goes on."""
ORACLE_POOL = 64
"""Largest pool in which the oracle is run: it asks about every candidate, once for every demonstration."""


@dataclass(frozen=True)
class Job:
    """A method (None: the arms) at a budget, in a world, with a seed; `settings` are those of the whole benchmark.

    `queries` limits the training questions (0: all); `pools` are sizes of pools to evaluate on beside the recipe's.
    """

    name: str
    method: TrainingMethod | None
    budget: int
    world: int
    seed: int
    settings: tuple[str, ...] = ()
    queries: int = 0
    pools: tuple[int, ...] = ()

    def recipe(self) -> Recipe:
        own = (f"task.world_seed={self.world}", *self.settings)
        return load_recipe("best", own) if self.method is None else self.method.at(self.budget, own)

    @property
    def stages(self) -> dict[str, str]:
        """The methods that this training measures, by the stage after which they are finished."""
        assert self.method is not None
        return {**self.method.finished_at(self.budget), _last_stage(self.method.recipe, self.method.changes): self.name}

    @property
    def folder(self) -> str:
        few = f"-queries{self.queries}" if self.queries else ""
        return f"{self.name}-{self.budget}{few}-world{self.world}-seed{self.seed}"

    def marks(self) -> list[str]:
        """The keys of the records that the job leaves."""
        names = [ARMS] if self.method is None else list(self.stages.values())
        return [self.key(name, size) for name in names for size in self.sizes]

    def due(self, found: Mapping[str, Record]) -> bool:
        """Whether something that the job leaves is not among the records."""
        if any(key not in found for key in self.marks()):
            return True
        return self.method is None and any(
            arm not in found[key]["accuracy"] for key in self.marks() for arm in LATER_ARMS
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of pools to evaluate on; 0 is the recipe's."""
        return (0, *self.pools)

    def key(self, name: str, pool: int = 0) -> str:
        parts = [name, str(self.budget), f"world{self.world}", f"seed{self.seed}"]
        parts += [f"queries{self.queries}"] if self.queries else []
        return "/".join(parts + ([f"pool{pool}"] if pool else []))


@cache
def _last_stage(recipe: str, changes: tuple[str, ...]) -> str:
    return load_recipe(recipe, changes).train.stages[-1]


@dataclass(frozen=True)
class Workplace:
    """Where runs and stores are kept; a world has its own store unless one is named.

    `commit` names the source; without it, the commit of the source where it is a git checkout.
    """

    runs: Path
    store: Path | None = None
    commit: str | None = None

    def store_of(self, world: int) -> Path:
        return self.store or self.runs / "stores" / f"world{world}.db"


def do_job(job: Job, place: Workplace) -> dict[str, Record]:
    """The records of a job, by key; what its run folder holds already is taken up."""
    return measure_arms(job, place) if job.method is None else train_and_measure(job, place)


def measure_arms(job: Job, place: Workplace) -> dict[str, Record]:
    """Every arm that needs no training, on the test items of a world."""
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.experiment.evaluate import choose_text_share
    from leverplus.experiment.ranking import rankings_of

    records = {}
    for size in job.sizes:
        recipe = resized(job.recipe(), size)
        run = Run(recipe, place.runs / ARMS, job.seed, place.store_of(job.world), shared=_shared_parts(recipe))
        _share_parts(run)
        started = time.monotonic()
        context = _test_context(run)
        section = replace(run.recipe.eval, oracle=run.recipe.pool.size <= ORACLE_POOL)
        share = choose_text_share(run)
        rankings = rankings_of(run, share)  # of labels alone: this run has trained nothing
        results = run_arms(context, section, None, share, run.recipe.pool.mmr_lambda, rankings=rankings)
        records[job.key(ARMS, size)] = {
            **_record(job, ARMS, run, context, results),
            "commit": place.commit or commit(),
            "text_share": share,
            "images": list(results.images),
            "evaluation_seconds": time.monotonic() - started,
        }
    return records


def train_and_measure(job: Job, place: Workplace) -> dict[str, Record]:
    """Train a selector, or take it up, and measure what it chooses; a record for every method it makes on the way."""
    from leverplus.evaluation.evaluate import run_learned
    from leverplus.evaluation.predictions import Results
    from leverplus.training.checkpoint import load_checkpoint

    assert job.method is not None
    folder, store = place.runs / job.folder, place.store_of(job.world)
    recipe = job.recipe()
    trained_run = open_run(
        recipe,
        find_recipe(job.method.recipe_at(job.budget)),
        folder,
        seed=job.seed,
        store_path=store,
        most_queries=job.queries,
        shared=_shared_parts(recipe),
    )
    _share_parts(trained_run)
    trained = _train(trained_run)
    records = {}
    for size in job.sizes:
        run = trained_run
        if size:
            run = replace(run, recipe=resized(recipe, size), shared=run.parts)
        context = _test_context(run)
        for stage, name in job.stages.items():
            started = time.monotonic()
            results = Results.of(context.queries)
            run_learned(
                results,
                context,
                load_checkpoint(rundir.stage_folder(folder / rundir.CHECKPOINTS, stage))[0],
                run.recipe.eval.shots,
            )
            records[job.key(name, size)] = {
                **_record(job, name, run, context, results),
                "commit": place.commit or commit(),
                "none_share": _none_share(results),
                **trained[stage],
                "evaluation_seconds": time.monotonic() - started,
            }
    _prune(folder)
    return records


def _train(run: Run) -> dict[str, Record]:
    """Train the stages of a run; by stage the calls and seconds until its end and the groups it learnt from.

    They are kept in run.json. A training that was stopped and taken up has no seconds: nobody measured them.
    """
    from leverplus.experiment.train import train_run
    from leverplus.training.runlog import RunLog

    manifest = read_json(run.folder / rundir.MANIFEST)
    if "trained" in manifest:
        known: dict[str, Record] = manifest["trained"]
        return {stage_today(stage): record for stage, record in known.items()}
    checkpoints = run.folder / rundir.CHECKPOINTS
    whole, started = not checkpoints.exists(), time.time()
    train_run(run)
    lines = RunLog(run.folder / rundir.LOG).lines()
    trained = {}
    for stage in run.recipe.stages:
        last = [line for line in lines if line["stage"] == stage][-1]
        ended = (rundir.stage_folder(checkpoints, stage) / rundir.CONFIG).stat().st_mtime
        trained[stage] = {
            "model_calls": last["lvlm_calls"],
            "fresh_calls": run.scorer.meter.fresh if whole else None,
            "groups": last["train/rows"],
            "training_seconds": ended - started if whole else None,
        }
    write_json(run.folder / rundir.MANIFEST, {**manifest, "trained": trained})
    return trained


def _test_context(run: Run) -> EvaluationContext:
    from leverplus.evaluation.conditions import require_unseen
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.scoring.scorer import EVALUATION

    run.scorer.meter.asked[EVALUATION].clear()
    queries = run.chosen_items("test", run.recipe.eval.items)
    require_unseen(queries, run.demonstrations)
    return evaluation_context(run, queries)


def _record(job: Job, name: str, run: Run, context: EvaluationContext, results: Results) -> Record:
    """What every record says: what was measured, on what, and the accuracy of every item by arm and shots."""
    from leverplus.evaluation.conditions import conditions_of
    from leverplus.scoring.scorer import EVALUATION

    accuracy = {
        arm: {str(n): [round(float(value), 6) for value in results.accuracy(arm, n)] for n in results.shots(arm)}
        for arm in results.draws
    }
    return {
        "method": name,
        "budget": job.budget,
        "world": job.world,
        "seed": job.seed,
        "queries": job.queries,
        "pool": run.recipe.pool.size,
        "n": len(results.items),
        "recipe": run.recipe.hash,
        "conditions": conditions_of(run.scorer.context, "test", results.items, context.pools)["hash"],
        "accuracy": accuracy,
        "eval_calls": run.scorer.meter.calls(EVALUATION),
    }


def _none_share(results: Results) -> dict[str, float]:
    """How often a selector with its own count shows nothing, by the most it may show."""
    own = results.draws.get("learned_auto", {})
    return {str(n): sum(not one.demos for one in draws[0]) / len(draws[0]) for n, draws in own.items()}


_last_parts: list[Parts] = []
"""Those of the last run of this process; a worker does many jobs in one world."""


def _shared_parts(recipe: Recipe) -> Parts | None:
    """What the last run of this process built, where it fits; what it is does not depend on the run."""
    return next((parts for parts in _last_parts if parts.fits(recipe)), None)


def _share_parts(run: Run) -> None:
    """Let the next run of this process take over what this one builds."""
    _last_parts[:] = [run.parts]


def resized(recipe: Recipe, size: int) -> Recipe:
    """A recipe with pools of another size; 0 leaves them as they are."""
    return replace(recipe, pool=replace(recipe.pool, size=size)) if size else recipe


def _prune(folder: Path) -> None:
    """Remove what only a training under way needs: the states and checkpoints of its epochs."""
    shutil.rmtree(folder / rundir.STATE, ignore_errors=True)
    for epoch in (folder / rundir.CHECKPOINTS).glob("*-epoch*"):
        shutil.rmtree(epoch)
