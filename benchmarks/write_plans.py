"""Write what `lever bench plans` measured into the recipes, docs/plans.json and the table of docs/plans.md.

    lever bench plans
    python benchmarks/write_plans.py runs/bench-plans/bench.json

Every plan must be there, and not at quick sizes; tests/lab compares the three places afterwards.

    lever bench plans --recipes plan5,documents/baseline_documents,documents/plan5_documents --seeds 1 --out runs/forms
    python benchmarks/write_plans.py --forms runs/forms/bench.json

writes plans beside their form of the documents into docs/plans_documents.json and the second table of docs/plans.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from leverplus.run.recipe import find_recipe
from leverplus_lab.plans import DOCUMENTS, PLANS, plan_sentence, plans_markdown

DOCS = Path(__file__).parents[1] / "docs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="bench.json of `lever bench plans`")
    parser.add_argument(
        "--forms",
        action="store_true",
        help="plans in both forms: write only their own table",
    )
    asked = parser.parse_args()
    found = json.loads(asked.results.read_text(encoding="utf-8"))
    if asked.forms:
        return write_forms(found)
    rows = {row["recipe"]: row for row in found["recipes"]}
    missing = [name for name in PLANS if name not in rows]
    if found["quick"] or missing:
        print(
            f"not everything was measured: {'quick sizes' if found['quick'] else ', '.join(missing)}"
        )
        return 1
    for name, row in rows.items():
        path = find_recipe(name)
        line = f"expected = {json.dumps(plan_sentence(row, found))}"
        path.write_text(
            re.sub(
                r"^expected = .*$",
                lambda _, line=line: line,
                path.read_text(),
                count=1,
                flags=re.M,
            )
        )
    (DOCS / "plans.json").write_text(json.dumps(found, indent=1) + "\n")
    page = DOCS / "plans.md"
    table = f"<!-- measured -->\n{plans_markdown(found)}<!-- /measured -->"
    page.write_text(
        re.sub(
            r"<!-- measured -->.*<!-- /measured -->",
            lambda _: table,
            page.read_text(),
            flags=re.S,
        )
    )
    print(f"{len(rows)} recipes, docs/plans.json and docs/plans.md were written")
    return 0


def write_forms(found: dict[str, Any]) -> int:
    """The table of both forms, and the file it is made from."""
    if found["quick"] or not any(
        row["recipe"].startswith(DOCUMENTS) for row in found["recipes"]
    ):
        print(
            "these are quick sizes, or no plan in the form of the documents was measured"
        )
        return 1
    (DOCS / "plans_documents.json").write_text(json.dumps(found, indent=1) + "\n")
    page = DOCS / "plans.md"
    table = f"<!-- forms -->\n{plans_markdown(found)}<!-- /forms -->"
    page.write_text(
        re.sub(
            r"<!-- forms -->.*<!-- /forms -->",
            lambda _: table,
            page.read_text(),
            flags=re.S,
        )
    )
    print(
        f"{len(found['recipes'])} rows, docs/plans_documents.json and docs/plans.md were written"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
