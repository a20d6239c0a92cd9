"""The site, not built: every page is in the menu, every link and anchor leads somewhere, nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def menu() -> list[str]:
    """The pages of `nav`, in order."""
    return re.findall(
        r"^\s+- (?:[^:\n]+: )?(\S+\.md)$",
        SETTINGS.split("\nnav:\n", 1)[1],
        re.MULTILINE,
    )


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    text = re.sub(
        r"^```.*?^```",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        name, number = slug(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)), 0
        while name in found:  # the second heading of one name gets _1
            number += 1
            name = f"{slug(heading)}_{number}"
        found.add(name)
    return found | set(re.findall(r'id="([^"]+)"', text))


def test_the_menu_holds_every_page_once() -> None:
    listed = menu()
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in PAGES}, (
        "add the page to nav in mkdocs.yml"
    )


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_anchor_a_page_points_to_is_a_heading_there(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if anchor and not re.match(r"[a-z]+:", link):
            target = page.parent / file if file else page
            assert anchor in anchors(target), f"{page.name} points to {link}"


def test_the_contents_of_the_results_have_a_line_for_every_section() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    contents = text.split("\n## Contents\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\) \| \S", contents, re.MULTILINE)
    sections = [
        slug(name)
        for name in re.findall(r"^## (.+)$", text, re.MULTILINE)
        if name != "Contents"
    ]
    assert sorted(listed) == sorted(sections), (
        "give the section a line in Contents: what was found"
    )


def test_a_missing_anchor_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n## What's `lever fit`?\n\n## One\n\n```\n# no heading\n```\n"
    )
    assert anchors(page) == {"one", "whats-lever-fit", "one_1"}


def test_nothing_is_fetched_from_elsewhere_and_pages_open_from_disk() -> None:
    for line in (
        "use_directory_urls: false",
        "font: false",
        "- offline",
        "polyfills: [assets/iframe-worker.js]",
    ):
        assert line in SETTINGS
    assert re.findall(r"https?://\S+", SETTINGS) == []
    for asset in (DOCS / "assets").iterdir():
        assert "http" not in asset.read_text(encoding="utf-8").replace(
            "http://www.w3.org", ""
        )


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip(
            "mkdocs is not installed; `make docs` installs it and builds the site"
        )
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, check=False, env=quiet
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "search" / "search_index.js").is_file(), (
        "search from disk reads a script, not JSON"
    )
    for page in (tmp_path / "site").rglob("*.html"):
        assert (
            re.findall(
                r'<(?:script|img|iframe)[^>]* src="https?:[^"]*"',
                page.read_text(encoding="utf-8"),
            )
            == []
        )
