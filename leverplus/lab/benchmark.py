"""`lever bench`: which jobs a benchmark consists of, doing what is missing, and writing its table and pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from leverplus.errors import EvaluationError
from leverplus.lab.jobs import ARMS, Job, Record, Workplace, do_job, resized
from leverplus.lab.methods import (
    ABLATIONS,
    BUDGETS,
    COMMON,
    HEADLINE,
    ITEMS,
    METHODS,
    POOL_SIZES,
    QUERIES,
    QUICK,
    QUICK_SETTINGS,
    SEEDS,
    TITLES,
    WORLDS,
    TrainingMethod,
    ablation,
    owner_of,
    quick_settings,
)
from leverplus.lab.records import Records
from leverplus.lab.worker_pool import run_jobs
from leverplus.recipe.recipe import Recipe

BETWEEN_WRITES = 10.0
"""Seconds between two writings of the results while jobs go on."""


@dataclass(frozen=True)
class BenchmarkPlan:
    """What is measured: methods at budgets, ablations of `best`, `best` on pools of other sizes and from fewer
    questions; each in every world and with every seed."""

    methods: Sequence[str] = tuple(TITLES)
    budgets: Sequence[int] = BUDGETS
    worlds: Sequence[int] = WORLDS
    seeds: int = SEEDS
    items: int = ITEMS
    ablations: Sequence[str] = ()
    pools: Sequence[int] = ()
    queries: Sequence[int] = ()
    quick: bool = False

    def jobs(self) -> list[Job]:
        """Every job, the arms of each world first."""
        found = [self._arms(world) for world in self.worlds]
        names = dict.fromkeys(owner_of(name) for name in self.methods)
        for budget in self.budgets:
            for name in names:
                found += self._trainings(name, METHODS[name], budget)
            for name in self.ablations:
                found += self._trainings(name, ablation(name), budget)
            best = self._trainings("best", METHODS["best"], budget)
            found += [replace(job, queries=most) for most in self.queries for job in best]
        pooled = [job.name in (ARMS, "best") and not job.queries for job in found]
        return [replace(job, pools=tuple(self.pools)) if own else job for job, own in zip(found, pooled, strict=True)]

    def _arms(self, world: int) -> Job:
        settings = QUICK_SETTINGS if self.quick else ()
        return Job(ARMS, None, 0, world, 0, (*COMMON, f"eval.items={self.items}", *settings))

    def _trainings(self, name: str, method: TrainingMethod, budget: int) -> list[Job]:
        settings = (*COMMON, f"eval.items={self.items}", *(quick_settings(method) if self.quick else ()))
        return [Job(name, method, budget, world, seed, settings) for seed in range(self.seeds) for world in self.worlds]


def ablation_plan(**sizes: Any) -> BenchmarkPlan:
    """The ablations of `best`, and `best` to compare with."""
    return BenchmarkPlan(**{"methods": ("best",), "budgets": (HEADLINE,), "ablations": tuple(ABLATIONS), **sizes})


def curve_plan(**sizes: Any) -> BenchmarkPlan:
    """`best` by the size of the pools and by the number of training questions."""
    own = {"methods": ("best",), "budgets": (HEADLINE,), "pools": POOL_SIZES, "queries": QUERIES}
    return BenchmarkPlan(**{**own, **sizes})


def quick_plan(what: str) -> dict[str, Any]:
    """The sizes of `--quick` for a plan."""
    sizes = {name: QUICK[name] for name in ("budgets", "worlds", "seeds", "items")}
    own = {"methods": ("methods",), "ablations": ("ablations",), "curves": ("pools", "queries")}[what]
    return {**sizes, **{name: QUICK[name] for name in own}, "quick": True}


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is kept and how it is done; `say` tells the user how far it is."""

    folder: Path
    place: Workplace
    processes: int = 1
    minutes: float | None = None
    say: Callable[[str], None] = lambda _: None


def run_benchmark(plan: BenchmarkPlan, bench: Benchmark) -> dict[str, Any]:
    """Do what is missing within the time, then write results.json.gz, bench.json, bench.md and bench.svg."""
    started = time.monotonic()
    records = Records.read(bench.folder)
    require_current(plan.jobs(), records)
    jobs = [job for job in plan.jobs() if job.due(records.found)]
    total, written = len(jobs), [started]
    count = [0]

    def done(job: Job, found: dict[str, Record], seconds: float) -> None:
        count[0] += 1
        records.add(found)
        for key in job.marks():
            records.failed.pop(key, None)
        bench.say(f"{count[0]} of {total}: {job.marks()[-1]} in {seconds:.0f} s")
        if time.monotonic() - written[0] > BETWEEN_WRITES:
            records.write()
            written[0] = time.monotonic()

    def failed(job: Job, why: str) -> None:
        count[0] += 1
        records.failed[job.marks()[-1]] = why
        bench.say(f"{count[0]} of {total}: {job.marks()[-1]} failed: {why}")

    deadline = None if bench.minutes is None else started + 60.0 * bench.minutes
    try:
        work = partial(do_job, place=bench.place)
        left = run_jobs(jobs, work, processes=bench.processes, deadline=deadline, done=done, failed=failed)
    finally:
        records.write()
    return write_summary(plan, bench, records, [job.marks()[-1] for job in left])


def require_current(jobs: Sequence[Job], records: Records) -> None:
    """Refuse results of a training whose recipe is another one by now: a table would mix the two."""
    recipes: dict[tuple[str, int, int, int], Recipe] = {}
    for job in jobs:
        if job.method is None:
            continue
        kind = (job.name, job.budget, job.world, job.queries)
        for size in job.sizes:
            for name in job.stages.values():
                record = records.found.get(job.key(name, size))
                if record is None:
                    continue
                if kind not in recipes:
                    recipes[kind] = job.recipe()
                recipe = resized(recipes[kind], size)
                if record["recipe"] != recipe.hash:
                    raise EvaluationError(
                        f"{records.path} holds {job.key(name, size)} of another recipe ({record['recipe']}, now "
                        f"{recipe.hash}): settings or --items differ; choose another --out DIR, or move the file away"
                    )


def write_summary(plan: BenchmarkPlan, bench: Benchmark, records: Records, left: Sequence[str]) -> dict[str, Any]:
    """The figures of all that was measured so far, as JSON, Markdown and pictures."""
    from leverplus.lab.drawing import gap_picture
    from leverplus.lab.pages import markdown
    from leverplus.lab.summary import summary_of
    from leverplus.rundir import write_json, write_text

    found = {
        **summary_of(records.found),
        "failed": dict(records.failed),
        "left_out": list(left),
        "quick": plan.quick,
    }
    write_json(bench.folder / "bench.json", found)
    write_text(bench.folder / "bench.md", markdown(found))
    write_text(bench.folder / "bench.svg", gap_picture(found))
    return found
