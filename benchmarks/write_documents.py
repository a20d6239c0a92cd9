"""Write docs/documents.md: every row of the five documents with the recipe, key or command that gives it.

    python benchmarks/write_documents.py

The rows are in documents.toml beside this file; tests/test_documents.py follows every link.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from leverplus.run.recipe import find_recipe

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "documents.md"
ROWS = Path(__file__).parent / "documents.toml"

HEAD = """\
# The five documents, row by row

Lever-Plus grew out of five reports on training a selector with the earlier code. This page goes through
them: every system, setting, finding and script that they name has a row, which says how to get the same here. If you
come from the earlier code, read [migrating](migrating.md) first.

| document | is about | date |
|---|---|---|
| 000 | why a training failed | 2025-12-16 |
| 001 | diagnosis, and plans 1 to 10 | 2025-12-25 |
| 002 | advice, second version | |
| 003 | advice, first version | |
| 004 | plan 5 in detail | 2025-12-23 |

Most plans have two recipes. `documents/NAME_documents` trains as the document says: its selector, its epochs, the last
epoch kept, deviations over n - 1. `NAME` is the same plan without its mistakes. [The earlier plans](plans.md) compares
the two. `lever check NAME` shows a recipe, and `lever run NAME --ignore-findings` runs it.

`python benchmarks/write_documents.py` writes this page from `benchmarks/documents.toml`. A test follows every link.

| row | document | what the document does or says | how to get it here | tested by |
|---|---|---|---|---|
"""


class Row(NamedTuple):
    """A row: its number, the document, what that says, links that give it, and the test that tries it (or "recipe")."""

    number: int
    document: str
    says: str
    links: list[tuple[str, str]]
    tried: str


def read_rows() -> list[Row]:
    rows = tomllib.loads(ROWS.read_text(encoding="utf-8"))["rows"]
    split = [
        (n, document, says, [link.split(":", 1) for link in links], tried)
        for n, document, says, links, tried in rows
    ]
    return [
        Row(n, document, says, [(kind, name) for kind, name in links], t)
        for n, document, says, links, t in split
    ]


def title_of(page: str, anchor: str) -> str:
    """The heading of a page that an anchor leads to."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return next(
        title
        for title in titles
        if re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") == anchor
    )


def shown(kind: str, name: str) -> str:
    """A link as the page shows it."""
    if kind == "page":
        page, _, heading = name.partition("#")
        return f"[{page}: {title_of(page, heading)}]({page}.md#{heading})"
    if kind == "recipe":
        return f"recipe [`{name}`](../{find_recipe(name).relative_to(ROOT)})"
    if kind == "gallery":
        return f"recipe [`gallery/{name}`](../{find_recipe(f'gallery/{name}').relative_to(ROOT)})"
    if kind == "file":
        return f"[`{name}`](../{name})"
    if kind == "check":
        return f"doctor [`{name}`](doctor.md)"
    words = {
        "key": "",
        "command": "",
        "preset": "selector ",
        "reward": "reward ",
        "advantage": "advantage ",
    }
    return f"{words[kind]}`{name}`"


def page_text(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        gives = "; ".join(shown(kind, name) for kind, name in row.links)
        tried = f"[test](../{row.tried})"
        if row.tried == "recipe":
            tried = "[recipes](../tests/matrix/test_plan_recipes.py)"
        lines.append(
            f"| {row.number} | {row.document} | {row.says} | {gives} | {tried} |"
        )
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(read_rows()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
