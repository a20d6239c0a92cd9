"""Write every generated page anew: `make pages`, or `python benchmarks/write_pages.py`.

docs/documents.md from benchmarks/documents.toml, the table of docs/plans.md from docs/plans.json, the handbook of
checks in docs/doctor.md from the doctor's own texts, docs/reference from parsers and settings, README's table from the
records of `lever bench real`. A test compares what stands there with what this would write.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from write_documents import page_text, read_rows  # beside this file, like the next two
from write_readme import readme
from write_reference import commands_page, recipe_page

from leverplus_doctor.check import handbook
from leverplus_lab.plans import plans_markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"


def documents() -> str:
    return page_text(read_rows())


def plans() -> str:
    measured = plans_markdown(
        json.loads((DOCS / "plans.json").read_text(encoding="utf-8"))
    )
    table = f"<!-- measured -->\n{measured}<!-- /measured -->"
    page = (DOCS / "plans.md").read_text(encoding="utf-8")
    return re.sub(
        r"<!-- measured -->.*<!-- /measured -->", lambda _: table, page, flags=re.S
    )


def doctor() -> str:
    """The page up to the first heading of the handbook, and the handbook."""
    table = handbook()
    first = table.split("\n", 1)[0]
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    return page[: page.index(f"\n{first}\n") + 1] + table


PAGES = {
    "documents.md": documents,
    "plans.md": plans,
    "doctor.md": doctor,
    "reference/commands.md": commands_page,
    "reference/recipe.md": recipe_page,
    "../README.md": readme,
}


def main() -> int:
    for name, write in PAGES.items():
        text = write()
        changed = text != (DOCS / name).read_text(encoding="utf-8")
        if changed:
            (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}: {'written' if changed else 'as it was'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
