"""The matrix without end: drawn tasks and recipes through `lever run`, until a number of cases or Ctrl-C.

python benchmarks/matrix.py                       # from seed 0 on, until it is stopped
python benchmarks/matrix.py --cases 2000 --from 0 # so many, then a summary; exit code 1 if any failed
python benchmarks/matrix.py --cases 2000 --jobs 8 # the same in eight processes
python benchmarks/matrix.py --seed 17             # one case again, with its recipe and data
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS / "matrix"), str(TESTS / "encode"), str(TESTS.parent)]

from matrix_case import Outcome, draw_case, forget, run_case  # noqa: E402
from matrix_models import loaded_once, make_models  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, help="how many (default: without end)")
    parser.add_argument(
        "--from",
        dest="start",
        type=int,
        default=0,
        metavar="SEED",
        help="the first seed (default 0)",
    )
    parser.add_argument(
        "--seed", type=int, help="one case again: print what it is and what came of it"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="write cases below this folder and keep the failed",
    )
    parser.add_argument(
        "--every",
        type=int,
        default=0,
        metavar="N",
        help="run each N-th case as processes of its own",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="share --cases out among so many processes",
    )
    args = parser.parse_args()
    if args.jobs > 1:
        if not args.cases:
            parser.error("--jobs shares out a number of cases; give --cases")
        return run_shared(args)
    with tempfile.TemporaryDirectory() as temporary:
        place = args.keep or Path(temporary)
        if args.seed is not None:
            return show_one(args.seed, place)
        seeds = (
            range(args.start, args.start + args.cases)
            if args.cases
            else itertools.count(args.start)
        )
        return run_many(seeds, place, args.every)


def run_shared(args: argparse.Namespace) -> int:
    """Every process has its own seeds, models and folder; what each says is printed when it is done, then the sum."""
    bounds = [
        args.start + args.cases * job // args.jobs for job in range(args.jobs + 1)
    ]
    started, jobs = time.monotonic(), []
    for first, last in itertools.pairwise(bounds):
        words = [
            sys.executable,
            __file__,
            "--from",
            str(first),
            "--cases",
            str(last - first),
            "--every",
            str(args.every),
        ]
        if args.keep:
            words += ["--keep", str(args.keep / f"from{first}")]
        jobs.append(
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
    ends, prompts, failed = Counter[str](), 0, list[str]()
    for job in jobs:
        try:
            said = job.communicate()[0]
        except KeyboardInterrupt:
            for other in jobs:
                other.terminate()
            raise
        summary = re.search(
            r"cases in .*: (.*); ([0-9,]+) prompts\nfailed seeds: (.*)", said
        )
        print(said, flush=True)
        if summary is None:
            failed.append(f"a process that ended with {job.returncode} and no summary")
            continue
        ends.update(
            {end: int(count) for count, end in re.findall(r"(\d+) (\w+)", summary[1])}
        )
        prompts += int(summary[2].replace(",", ""))
        failed += [seed for seed in summary[3].split() if seed != "none"]
    shown = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(
        f"together {sum(ends.values())} cases in {time.monotonic() - started:.0f} s: {shown}; {prompts:,} prompts"
    )
    print("failed: " + (", ".join(failed) or "none"))
    return int(bool(failed))


def show_one(seed: int, place: Path) -> int:
    """One case with its recipe, its data and all that it said."""
    models = make_models(place / "models")
    with loaded_once() as asked:
        case = draw_case(seed, place / f"case{seed}", models)
        print(case.describe(), flush=True)
        outcome = run_case(case, asked)
    print(
        f"\nseed {seed}: {outcome.end}, {outcome.asked} prompts, {outcome.seconds:.2f} s\n{outcome.message}"
    )
    return int(outcome.end == "failed")


def run_many(seeds: range | itertools.count[int], place: Path, every: int) -> int:
    """Case after case; failures are printed as they come, a summary at the end."""
    models = make_models(place / "models")
    started, ends, failed = time.monotonic(), Counter[str](), list[Outcome]()
    with loaded_once() as asked:
        try:
            for seed in seeds:
                case = draw_case(seed, place / f"case{seed}", models)
                outcome = run_case(
                    case, asked, subprocesses=bool(every) and seed % every == 0
                )
                ends[outcome.end] += 1
                if outcome.end == "failed":
                    failed.append(outcome)
                    print(
                        f"seed {seed} ({outcome.seconds:.1f} s): {outcome.message}\n",
                        flush=True,
                    )
                if outcome.end != "failed" or place.parent == Path(
                    tempfile.gettempdir()
                ):
                    forget(case)
        except KeyboardInterrupt:
            print("stopped")
    total, seconds = sum(ends.values()), time.monotonic() - started
    shown = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(
        f"{total} cases in {seconds:.0f} s ({seconds / max(1, total):.2f} s each): {shown}; {asked.count:,} prompts"
    )
    print(
        "failed seeds: " + (" ".join(str(outcome.seed) for outcome in failed) or "none")
    )
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
