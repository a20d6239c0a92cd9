"""docs/doctor.md lists every check of the catalog with its cause, evidence and cure."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from leverplus import catalog
from leverplus.doctor.examine import handbook, text_of
from leverplus.doctor.findings import read_texts
from leverplus.parsing import parse_toml

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
DOCTOR = Path(__file__).parents[2] / "leverplus" / "doctor"


def test_the_handbook_lists_exactly_the_checks_of_the_catalog():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [code for code, _ in rows] == list(catalog.CHECKS)
    assert [severity for _, severity in rows] == [text_of(code).severity for code in catalog.CHECKS]


def test_the_handbook_says_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8").endswith(handbook())


def test_checks_say_every_sentence_of_the_texts_and_no_other():
    """By reading the modules: `TEXTS["code"]`, or `text` where a function begins with it, `.say("name", ...)`."""
    for module in sorted({place.split(":")[0].rsplit(".", 1)[-1] for place in catalog.CHECKS.values()}):
        source = (DOCTOR / f"{module}.py").read_text(encoding="utf-8")
        said = set()
        for function in [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]:
            body = ast.unparse(function)
            own = re.findall(r"text(?:, \w+)? = \(?TEXTS\['(\w+)'\]", body)
            calls = re.findall(r"(text|TEXTS\['\w+'\])\.say\('(\w+)'", body)
            said |= {(own[0] if name == "text" else name.split("'")[1], sentence) for name, sentence in calls}
        written = {(code, name) for code, text in read_texts(module).items() for name in text.sentences}
        assert said == written
        assert said, f"{module} says nothing"


def test_every_shared_word_is_said_somewhere():
    modules = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCTOR.glob("*.py")))
    words = parse_toml((DOCTOR / "texts" / "words.toml").read_bytes())
    assert set(words) == {"metrics", "phrases", "overview", "unprinted"}
    assert [name for name in (*words["phrases"], *words["overview"]) if f'"{name}"' not in modules] == []


def test_pages_that_count_the_checks_count_right() -> None:
    root = PAGE.parents[1]
    for page in (root / "README.md", root / "docs" / "decisions.md"):
        assert f"{len(catalog.CHECKS)} checks" in page.read_text(encoding="utf-8"), page.name
