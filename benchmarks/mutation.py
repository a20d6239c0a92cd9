"""How many small mistakes in the core mathematics do the tests catch?

    python benchmarks/mutation.py --seed 1 --sample 240     try 240 random mistakes (goes on where it stopped)
    python benchmarks/mutation.py --seed 1 --survivors      those that no test caught, with their lines
    python benchmarks/mutation.py --seed 1 --again          try the survivors once more, after tests were added
    python benchmarks/mutation.py --count                   how many mistakes there are in each file

A mistake is one operator, constant, bound, sign, order or branch changed in one of the files of `TESTS`; it is caught
when one of the tests beside that file fails, or runs five times as long as without it. Every mistake is tried in a
forked child of a process that has imported torch and pytest but nothing of the package: an import hook hands the child
the changed source, and no file is written. Outcomes are kept mistake by mistake in `benchmarks/mutation/seedN.jsonl`.
Mistakes that change nothing anybody could see stand with the reason in `benchmarks/mutation/equivalent.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.util
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # children are many; each has one core at most

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from mutants import Mutant, mutants_of  # noqa: E402 beside this file

BROKEN = 70
"""The exit status of a child that could not run pytest at all."""

NAP = 0.05
"""Seconds between two looks at a child."""

PACKAGES = ("leverplus", "leverplus_lab")
KEPT = ROOT / "benchmarks" / "mutation"
STAGES = ("learn/test_stages.py", "learn/test_grpo.py", "learn/test_steps.py")
POLICIES = (
    "learn/test_parts.py",
    "learn/test_policies.py",
    "legacy/test_legacy_checkpoints.py",
)
TESTS: dict[str, tuple[str, ...]] = {
    "learn/maths/losses.py": ("learn/test_losses.py",),
    "learn/maths/advantages.py": ("learn/test_advantages.py", "learn/test_losses.py"),
    "learn/maths/rewards.py": ("learn/test_rewards.py",),
    "learn/maths/divergences.py": ("learn/test_divergences.py",),
    "learn/maths/schedules.py": ("learn/test_schedules.py",),
    "learn/maths/signal.py": ("learn/test_signal.py", "scores/test_mining.py"),
    "leverplus_lab/selectors/setterms.py": ("learn/test_setgain.py", *POLICIES),
    "data/metrics/__init__.py": ("data/test_metrics_text.py",),
    "leverplus_lab/cider.py": ("lab/test_cider.py",),
    "data/metrics/cuts.py": ("data/test_metrics_vqa.py", "data/test_metrics_text.py"),
    "leverplus_lab/stems.py": ("lab/test_stems.py",),
    "data/metrics/text.py": ("data/test_metrics_text.py",),
    "data/metrics/vqa.py": ("data/test_metrics_vqa.py",),
    "evaluate/stats/bootstrap.py": (
        "evaluate/test_stats_bootstrap.py",
        "evaluate/test_stats_paired.py",
    ),
    "evaluate/stats/comparison.py": ("evaluate/test_stats_comparison.py",),
    "evaluate/stats/paired.py": ("evaluate/test_stats_paired.py",),
    "evaluate/stats/power.py": ("evaluate/test_stats_power.py",),
    "evaluate/stats/seeds.py": ("evaluate/test_stats_seeds.py",),
    "evaluate/stats/significance.py": ("evaluate/test_stats_significance.py",),
    "evaluate/published.py": ("evaluate/test_published.py",),
    "learn/data/search.py": ("scores/test_search.py",),
    "leverplus_lab/search/mining.py": ("scores/test_mining.py",),
    "learn/data/plan.py": ("scores/test_mining.py", "learn/test_signal.py"),
    "learn/policies/decode.py": ("learn/test_decode.py",),
    "leverplus_lab/selectors/decoders.py": POLICIES,
    "leverplus_lab/selectors/heads.py": POLICIES,
    "leverplus_lab/selectors/states.py": POLICIES,
    "learn/policies/heads.py": POLICIES,
    "learn/policies/states.py": POLICIES,
    "learn/policies/trunks.py": POLICIES,
    "learn/policies/setterms.py": POLICIES,
    "learn/policies/pointer.py": POLICIES,
    "learn/stages.py": STAGES,
    "learn/grpo.py": ("learn/test_stages.py", "learn/test_grpo.py"),
    "learn/data/from_search.py": (
        "learn/test_from_search.py",
        "learn/test_grpo.py",
    ),
    "learn/data/batch.py": (
        "learn/test_from_search.py",
        "learn/test_tried.py",
    ),
    "learn/heldout.py": ("learn/test_heldout.py",),
    "learn/data/from_labels.py": ("learn/test_from_labels.py",),
}
"""Files of the package and the tests that stand for each, the most pointed first."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mistake: `caught` by a test, `slow` (caught by the limit), or `survived`."""

    key: str
    line: int
    verdict: str
    by: str
    seconds: float


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module of the package from another source than its file's."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self.module, self.path, self.source = module, path, source

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> Any:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            self.path,
            loader=self,
            submodule_search_locations=[str(self.path.parent)]
            if self.path.name == "__init__.py"
            else None,
        )

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        if str(path).endswith(".pyc"):
            raise OSError("a changed source is never cached")
        return self.source.encode()

    def path_stats(self, path: str) -> Any:  # noqa: ARG002
        raise OSError("a changed source is never cached")


def path_of(file: str) -> Path:
    """Where a file of `TESTS` lies: in the package, unless another one is named."""
    path = ROOT / "leverplus" / file
    return path if path.exists() else ROOT / file


def all_mutants(files: Sequence[str] = tuple(TESTS)) -> list[Mutant]:
    return [
        mutant
        for file in files
        for mutant in mutants_of(path_of(file).read_text(encoding="utf-8"), file)
    ]


def try_source(file: str, source: str, cpu_s: float) -> tuple[str, str]:
    """(verdict, test that failed) of the tests of a file with another source, in a forked child."""
    if any(name.partition(".")[0] in PACKAGES for name in sys.modules):
        raise SystemExit(
            "the package is already imported here, so another source would have no effect"
        )
    with tempfile.NamedTemporaryFile("r", prefix="mutant-") as report:
        child = os.fork()
        if child == 0:
            _child(file, source, cpu_s, report.name)
        done, state, asleep = 0, 0, 0.0
        while not done:
            done, state = os.waitpid(child, os.WNOHANG)
            # a busy loop hits its CPU limit; this is for one that waits for ever. Naps in which it asked for a core do
            # not count, so that a machine that is busy with other things does not pass for a mistake that was caught
            if not done and asleep > 20 * cpu_s + 60:
                os.kill(child, signal.SIGKILL)
            elif not done:
                time.sleep(NAP)
                asleep += 0.0 if _wants_core(child) else NAP
        said = report.read()
    if os.WIFSIGNALED(state):
        return "slow", ""
    code = os.waitstatus_to_exitcode(state)
    if code == BROKEN:
        raise SystemExit(f"the tests of {file} could not be started")
    return ("survived", "") if code == 0 else ("caught", said or f"exit status {code}")


def _wants_core(child: int) -> bool:
    """Whether a process runs or waits for a core (Linux tells it); False where that cannot be known."""
    try:
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "R"


def _child(file: str, source: str, cpu_s: float, report: str) -> None:
    """Runs the tests and leaves by the exit status; never comes back."""
    code = BROKEN
    try:
        os.chdir(ROOT)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        limit = math.ceil(cpu_s + time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        path = path_of(file)
        names = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(names).removesuffix(".__init__")
        sys.meta_path.insert(0, _Changed(module, path, source))
        import pytest

        class FirstFailure:
            def pytest_runtest_logreport(self, report: Any) -> None:
                self._write(report)

            def pytest_collectreport(self, report: Any) -> None:
                self._write(report)

            def _write(self, own: Any) -> None:
                if own.failed:
                    Path(report_path).write_text(own.nodeid, encoding="utf-8")

        report_path = report
        tests = [
            f"tests/{name}" for name in TESTS[file] if (ROOT / "tests" / name).exists()
        ]
        quiet = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # hypothesis, on purpose
        given = ["-x", "-q", "-p", "no:cacheprovider", "-W", quiet, *tests]
        code = int(pytest.main(given, plugins=[FirstFailure()]))
    finally:
        os._exit(code)


def _preload() -> None:
    """What every child needs and no mistake is in, imported once."""
    import hypothesis
    import numpy
    import pytest
    import scipy.stats
    import torch

    assert all((hypothesis, numpy, pytest, scipy.stats, torch))


def baseline(file: str) -> float:
    """CPU seconds of a file's tests on the source as it is; they must pass."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict, by = try_source(file, path_of(file).read_text(encoding="utf-8"), 600.0)
    if verdict != "survived":
        raise SystemExit(
            f"the tests of {file} fail without any mistake ({verdict} {by}); mend them first"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(mutants: Sequence[Mutant], out: Path, part: tuple[int, int] = (1, 1)) -> None:
    """Try every mistake of a part (1 of 2, ...) that `out` has no outcome of; write each outcome when it is there."""
    _preload()
    known = {outcome.key for outcome in read(out)}
    # in the order they were drawn, so that what is done when somebody stops it is a random sample too
    todo = [
        mutant for mutant in mutants[part[0] - 1 :: part[1]] if mutant.key not in known
    ]
    limits: dict[str, float] = {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as kept:
        for count, mutant in enumerate(todo, start=1):
            source = path_of(mutant.file).read_text(encoding="utf-8")
            if mutant.file not in limits:
                limits[mutant.file] = 5.0 * baseline(mutant.file) + 5.0
            started = time.monotonic()
            verdict, by = try_source(
                mutant.file, mutant.applied(source), limits[mutant.file]
            )
            outcome = Outcome(
                mutant.key,
                mutant.line,
                verdict,
                by,
                round(time.monotonic() - started, 1),
            )
            kept.write(json.dumps(asdict(outcome)) + "\n")
            kept.flush()
            print(
                f"{count}/{len(todo)} {mutant.file}:{mutant.line} {verdict} {outcome.seconds} s",
                flush=True,
            )


def read(out: Path) -> list[Outcome]:
    """The last outcome of every mistake; a line that a kill cut short is left out."""
    found: dict[str, Outcome] = {}
    if out.exists():
        for line in out.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                outcome = Outcome(**json.loads(line))
                found[outcome.key] = outcome
    return list(found.values())


def equivalent() -> dict[str, str]:
    """Mistakes that change nothing anybody could see, with the reason."""
    path = KEPT / "equivalent.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson)."""
    z, share = 1.959964, hits / n
    centre, reach = (
        share + z * z / (2 * n),
        z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)),
    )
    return (centre - reach) / (1 + z * z / n), (centre + reach) / (1 + z * z / n)


def summary(outcomes: Sequence[Outcome]) -> str:
    same = equivalent()
    counted = [outcome for outcome in outcomes if outcome.key not in same]
    caught = sum(outcome.verdict != "survived" for outcome in counted)
    if not counted:
        return "nothing tried yet"
    low, high = wilson(caught, len(counted))
    return (
        f"{caught} of {len(counted)} caught: {caught / len(counted):.1%} (95 % interval {low:.1%} to {high:.1%}); "
        f"{len(outcomes) - len(counted)} more of the {len(outcomes)} tried change nothing that can be seen"
    )


def survivors(outcomes: Sequence[Outcome]) -> Iterator[str]:
    same, by_key = equivalent(), {mutant.key: mutant for mutant in all_mutants()}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.key):
        mutant = by_key.get(outcome.key)
        if outcome.verdict != "survived" or outcome.key in same or mutant is None:
            continue
        source = path_of(mutant.file).read_text(encoding="utf-8")
        yield f"leverplus/{mutant.file}:{mutant.line}  {mutant.kind}\n{mutant.diff(source)}\n{mutant.key}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=240)
    parser.add_argument(
        "--part",
        default="1/1",
        help="2/3: the second of three processes that share a sample",
    )
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--count", action="store_true")
    asked = parser.parse_args()
    number, parts = map(int, asked.part.split("/"))
    out = KEPT / f"seed{asked.seed}.jsonl"
    every = all_mutants()
    if asked.count:
        for file, count in Counter(mutant.file for mutant in every).items():
            print(f"{count:5d}  {file}")
        print(f"{len(every):5d}  in all")
        return
    if asked.survivors:
        print("\n".join(survivors(read(out))))
    elif asked.again:
        lived = {
            outcome.key for outcome in read(out) if outcome.verdict == "survived"
        } - equivalent().keys()
        kept = [outcome for outcome in read(out) if outcome.key not in lived]
        out.write_text(
            "".join(json.dumps(asdict(outcome)) + "\n" for outcome in kept),
            encoding="utf-8",
        )
        run([mutant for mutant in every if mutant.key in lived], out)
    else:
        run(
            random.Random(asked.seed).sample(every, min(asked.sample, len(every))),
            out,
            (number, parts),
        )
    print(summary(read(out)))


if __name__ == "__main__":
    main()
