"""The page of the five documents: it is what the command writes, and every link of every row leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmarking import load_benchmark

from leverplus import catalog
from leverplus.cli.main import parse
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.settings import SECTIONS
from leverplus.run.recipe import PLAIN, load_recipe, recipe_names

ROOT = Path(__file__).parent.parent
PAGES = load_benchmark("write_documents")
ROWS = PAGES.read_rows()
RUN = {
    *recipe_names("documents"),
    *(
        name.removeprefix("documents/").removesuffix("_documents")
        for name in recipe_names("documents")
    ),
}
TABLES = {
    "reward": catalog.REWARDS, "advantage": catalog.ADVANTAGES, "preset": catalog.POLICIES, "check": catalog.CHECKS,
}  # fmt: skip


def headings(page: str) -> set[str]:
    """The anchors of a page as GitHub makes them."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


def require(kind: str, name: str) -> None:
    """Fails unless a link leads somewhere."""
    if kind == "recipe":
        assert load_recipe(name).stages
    elif kind == "gallery":
        assert load_recipe(f"gallery/{name}").stages
    elif kind == "key":
        section, _, key = name.partition(".")
        owner = {**PLAIN, **SECTIONS, "select": PolicyConfig}[section]
        assert key in owner.__dataclass_fields__, name
    elif kind == "command":
        command, *words = shlex.split(name)
        assert command == "lever"
        parse(words)
    elif kind == "page":
        page, _, heading = name.partition("#")
        assert heading in headings(page), (
            f"{name}: the page has {sorted(headings(page))}"
        )
    elif kind == "file":
        assert (ROOT / name).is_file(), name
    else:
        assert name in TABLES[kind], name


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGES.PAGE.read_text(encoding="utf-8") == PAGES.page_text(ROWS), (
        "type: python benchmarks/write_documents.py"
    )


def test_all_rows_are_there_once() -> None:
    assert [row.number for row in ROWS] == list(range(1, 126))
    assert {row.document for row in ROWS} == {"000", "001", "002", "003", "004", "all"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_every_link_of_a_row_leads_somewhere(row: Any) -> None:
    assert row.links
    for kind, name in row.links:
        require(kind, name)
    if row.tried == "recipe":
        named = [name for kind, name in row.links if kind == "recipe"]
        assert named, "tried by running a recipe, so it names one"
        assert set(named) <= RUN, (
            "tests/matrix/test_plan_recipes.py runs the plans in both forms, and no other recipe"
        )
    else:
        assert (ROOT / row.tried).is_file(), row.tried


@pytest.mark.parametrize("name", recipe_names("documents"))
def test_a_plan_in_the_form_of_the_documents_keeps_its_last_epoch(name: str) -> None:
    recipe = load_recipe(name)
    mended = load_recipe(name.removeprefix("documents/").removesuffix("_documents"))
    assert recipe.select.preset == "cross_attention_faithful"
    assert recipe.hash != mended.hash
    assert list(recipe.stages) == list(mended.stages)
    for stage in ("rce", "grpo"):
        own = recipe.stages.get(stage)
        assert own is None or own.keep == "last" or own.patience, (
            "where stopping early was advised the best is kept"
        )
    grpo = recipe.stages.get("grpo")
    assert getattr(grpo, "advantage", "") != "zscore", (
        "the earlier code divided by n - 1"
    )


def test_every_plan_has_both_forms() -> None:
    from leverplus_lab.plans import PLANS

    assert {f"documents/{name}_documents" for name in PLANS} == set(
        recipe_names("documents")
    )
