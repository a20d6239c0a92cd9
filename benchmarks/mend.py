"""Mending recipes with known mistakes by the doctor's fixes alone, and how far the mended run is from the healthy one.

python benchmarks/mend.py           four recipes, 4,000 test items; the promise: the paired 95 % interval against
                                    the healthy run includes 0 and is under 4 points wide
python benchmarks/mend.py --quick   the sizes of the tests for training; the same items
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from leverplus.experiment.workshop import Workshop
from leverplus.lab.gallery import SMALL, case, run_case
from leverplus.lab.mend import compare_learned, mend

MISTAKEN = ("modulo_labels", "lost_tensors", "dropout_in_ratio", "every_mistake")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=MISTAKEN, help="recipes of the gallery (default four)")
    parser.add_argument("--quick", action="store_true", help="train at the sizes of the tests")
    parser.add_argument("--items", type=int, default=4000, help="test items (default 4000, all)")
    parser.add_argument("--out", type=Path, help="folder of runs and store (default a temporary one)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sizes = SMALL if args.quick else ()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary)
        workshop = Workshop(folder, folder / "scores.db")
        healthy = run_case(case("gallery/healthy", sizes), workshop, evaluate=False).run
        found = {}
        for name in (f"gallery/{name}" for name in args.names):
            mistaken = run_case(case(name, sizes), workshop, healthy, evaluate=False).run
            before = compare_learned(mistaken, healthy, args.items)
            mended = mend(name, workshop, sizes, healthy)
            result = compare_learned(mended.outcome.run, healthy, args.items)
            low, high = result.ci95
            found[name] = {"fixes": mended.fixes, "mistaken": before.as_json(), "mended": result.as_json()}
            if not args.json:
                print(f"{name}: mistaken {100 * before.diff:+.2f} points from healthy, mended {100 * result.diff:+.2f}")
                width = 100 * (high - low)
                print(f"  95 % interval {100 * low:+.2f} to {100 * high:+.2f}, {width:.2f} wide, n = {result.n}")
                for code, setting in mended.fixes:
                    print(f"  {code}: --set {setting}")
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
