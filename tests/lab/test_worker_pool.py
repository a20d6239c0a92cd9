"""Jobs in several processes: the important first, failures told, the time kept; small functions stand for trainings."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leverplus.errors import TrainingError
from leverplus.lab.jobs import ARMS, Job
from leverplus.lab.methods import ABLATIONS, METHODS, ablation
from leverplus.lab.worker_pool import JobPace, run_jobs, urgency


def job(name: str = "best", budget: int = 8_000, world: int = 0, seed: int = 0) -> Job:
    method = None if name == ARMS else METHODS.get(name) or ablation(name)
    return Job(name, method, budget, world, seed)


def work(own: Job) -> dict[str, dict[str, Any]]:
    """Seed 0 succeeds, 1 cannot, 2 kills its process, 3 takes long; the record says who did it, with which threads."""
    if own.seed == 1:
        raise TrainingError("there is nothing to learn from")
    if own.seed == 2:
        os._exit(9)
    if own.seed == 3:
        time.sleep(60)
    return {own.marks()[-1]: {"process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}}


class Told:
    """What the worker pool reported."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.order: list[Job] = []
        self.failed: dict[str, str] = {}

    def done(self, own: Job, records: dict[str, dict[str, Any]], seconds: float) -> None:
        assert seconds >= 0.0
        self.order.append(own)
        self.records |= records

    def fail(self, own: Job, why: str) -> None:
        self.failed[own.marks()[-1]] = why


def pool(jobs: list[Job], processes: int, seconds: float | None = None) -> tuple[Told, list[Job]]:
    told = Told()
    deadline = None if seconds is None else time.monotonic() + seconds
    left = run_jobs(jobs, work, processes=processes, deadline=deadline, done=told.done, failed=told.fail)
    return told, left


def test_arms_come_first_then_best_at_its_headline_budget() -> None:
    change = next(iter(ABLATIONS))
    jobs = [job("listwise", 128_000), job("best", 8_000), job(ARMS), job(change, 128_000), job("best", 128_000)]
    assert [own.name for own in sorted(jobs, key=urgency)] == [ARMS, "best", "best", "listwise", change]
    assert sorted(jobs, key=urgency)[1].budget == 128_000


def test_one_process_does_all_jobs_in_order_and_goes_on_after_a_failure(monkeypatch: Any) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    told, left = pool([job(budget=8_000), job(seed=1), job(budget=128_000)], processes=1)
    assert [own.budget for own in told.order] == [128_000, 8_000]
    assert told.failed == {"best/8000/world0/seed1": "there is nothing to learn from"}
    assert left == []


def test_processes_report_failures_survive_deaths_and_use_one_thread_each() -> None:
    told, left = pool([job(seed=2), job(seed=1), *(job(world=world) for world in range(3))], processes=2)
    assert left == []
    assert len(told.records) == 3
    assert {record["threads"] for record in told.records.values()} == {"1"}
    assert os.getpid() not in {record["process"] for record in told.records.values()}
    assert told.failed["best/8000/world0/seed1"] == "there is nothing to learn from"
    assert "died (exit code 9)" in told.failed["best/8000/world0/seed2"]


@pytest.mark.slow
def test_when_the_time_is_up_what_is_under_way_is_left_out() -> None:
    jobs, started = [job(seed=3), job(budget=128_000)], time.monotonic()
    told, left = pool(jobs, processes=2, seconds=4.0)
    assert 4.0 <= time.monotonic() - started < 40.0, "the job that sleeps for a minute was stopped"
    assert jobs[0] in left
    assert sorted(map(str, told.order + left)) == sorted(map(str, jobs)), "every job is done or left out"
    assert told.failed == {}


def test_the_expected_time_is_that_of_the_same_kind_or_in_proportion_to_the_calls() -> None:
    pace = JobPace()
    assert pace.expected(job()) == 0.0
    pace.add(job(budget=8_000), 10.0)
    pace.add(job(budget=8_000), 14.0)
    pace.add(job("listwise", 8_000), 99.0)
    assert pace.expected(job(budget=8_000, seed=4)) == 14.0
    assert pace.expected(job(budget=32_000)) == 56.0
    assert pace.expected(job("mended_grpo")) == 0.0


def tell_and_sleep(_: Job) -> dict[str, dict[str, Any]]:
    Path(os.environ["TOLD"]).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(120)
    return {}


def hire_and_wait() -> None:
    run_jobs([job(), job(seed=1)], tell_and_sleep, processes=2, deadline=None, done=Told().done, failed=Told().fail)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_workers_go_when_the_one_who_hired_them_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "worker"
    monkeypatch.setenv("TOLD", str(note))
    boss = multiprocessing.get_context("spawn").Process(target=hire_and_wait)
    boss.start()
    until(lambda: note.is_file() and note.read_text(encoding="utf-8") != "")
    worker = int(note.read_text(encoding="utf-8"))
    assert alive(worker)
    boss.kill()
    boss.join()
    until(lambda: not alive(worker))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < end, "it did not happen within a minute"
        time.sleep(0.05)
