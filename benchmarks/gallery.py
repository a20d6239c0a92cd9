"""The gallery of known mistakes: is every failure found where it was put, and nothing in healthy runs?

    python benchmarks/gallery.py                    every recipe at full size, a minute or two each
    python benchmarks/gallery.py --quick            at the sizes of the tests
    python benchmarks/gallery.py stale_policy ...   only these

Healthy runs come first; the recipe `world` is one of them. All runs share one store.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from leverplus.run.recipe import recipe_names
from leverplus.run.sweep import Workshop
from leverplus_lab.gallery import QUICK, SMALL, case, run_case

HEALTHY = ("world", "gallery/healthy", "gallery/healthy_listwise")


def row(name: str, workshop: Workshop, sizes: tuple[str, ...]) -> dict[str, Any]:
    """One case: what was expected and not found, and what else was found."""
    own, started = case(name, sizes), time.process_time()
    outcome = run_case(own, workshop, evaluate=own.needs_test)
    grave = {finding.code for finding in outcome.findings if finding.severity != "info"}
    codes = () if name in HEALTHY else own.codes
    return {
        "recipe": name,
        "missing": sorted(set(codes) - outcome.codes),
        "beside": sorted(grave - set(codes)),
        "cpu_s": round(time.process_time() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="recipes of the gallery (default all)")
    parser.add_argument("--quick", action="store_true", help="the sizes of the tests")
    parser.add_argument(
        "--out", type=Path, help="folder of runs and store (default a temporary one)"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [f"gallery/{name}" for name in args.names] or [
        *HEALTHY,
        *(n for n in recipe_names("gallery") if n not in HEALTHY),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary)
        workshop = Workshop(folder, folder / "scores.db")
        rows = []
        for name in names:
            rows.append(
                row(
                    name,
                    workshop,
                    () if not args.quick else SMALL if name in HEALTHY else QUICK,
                )
            )
            if not args.json:
                print(
                    "{recipe}: missing {missing}, beside {beside}, {cpu_s} s of CPU".format(
                        **rows[-1]
                    ),
                    flush=True,
                )
    if args.json:
        print(json.dumps({"cases": rows}))


if __name__ == "__main__":
    main()
