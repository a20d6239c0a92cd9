"""Write what `lever bench plans` measured into the recipes, docs/plans.json and the table of docs/plans.md.

    lever bench plans
    python benchmarks/write_plans.py runs/bench-plans/bench.json

Every plan must be there, and not at quick sizes; tests/bench compares the three places afterwards.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from leverplus.lab.plans import PLANS, markdown, sentence
from leverplus.recipe.recipe import find_recipe

DOCS = Path(__file__).parents[1] / "docs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="bench.json of `lever bench plans`")
    found = json.loads(parser.parse_args().results.read_text(encoding="utf-8"))
    rows = {row["recipe"]: row for row in found["recipes"]}
    missing = [name for name in PLANS if name not in rows]
    if found["quick"] or missing:
        print(f"not everything was measured: {'quick sizes' if found['quick'] else ', '.join(missing)}")
        return 1
    for name, row in rows.items():
        path = find_recipe(name)
        line = f"expected = {json.dumps(sentence(row, found))}"
        path.write_text(re.sub(r"^expected = .*$", lambda _, line=line: line, path.read_text(), count=1, flags=re.M))
    (DOCS / "plans.json").write_text(json.dumps(found, indent=1) + "\n")
    page = DOCS / "plans.md"
    table = f"<!-- measured -->\n{markdown(found)}<!-- /measured -->"
    page.write_text(re.sub(r"<!-- measured -->.*<!-- /measured -->", lambda _: table, page.read_text(), flags=re.S))
    print(f"{len(rows)} recipes, docs/plans.json and docs/plans.md were written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
