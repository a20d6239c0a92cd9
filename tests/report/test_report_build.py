from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from leverplus.errors import DataError, LeverError
from leverplus.recipe.recipe import load_recipe
from leverplus.report.build import build_report, command, script_json, with_code

SECTIONS = (
    "accuracy",
    "differences",
    "helpharm",
    "regret",
    "training",
    "rewards",
    "cost",
    "picks",
    "examples",
    "recipe",
)


class Page(HTMLParser):
    """What a browser would make of the page: elements with attributes, and the text of each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.texts: dict[str, str] = {}
        self.quiet = False
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        self.quiet = tag in ("script", "style", "title")
        if tag == "h2":
            self.section = dict(attrs)["id"]

    def handle_endtag(self, tag) -> None:
        if tag == "h2":
            self.texts[self.section] = ""
        self.quiet = False

    def handle_data(self, data) -> None:
        if self.section in self.texts and not self.quiet:
            self.texts[self.section] += data


@pytest.fixture
def text(made) -> str:
    return build_report(made).read_text(encoding="utf-8")


def test_every_section_has_content_and_every_chart_its_numbers(text) -> None:
    page = Page(text)
    assert tuple(page.texts) == SECTIONS
    assert all(len(body.split()) > 5 for body in page.texts.values())
    charts = [attrs["data-figure"] for tag, attrs in page.elements if "data-figure" in attrs]
    stored = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.S)[1])
    assert sorted(charts) == sorted(stored)
    assert {"accuracy", "forest", "cost", "regret", "curve-loss", "curve-flat"} <= set(charts)
    for name in charts:
        after = text.split(f'data-figure="{name}"')[1]
        assert "the numbers</summary>" in after


def test_the_page_asks_for_nothing_outside_itself(text) -> None:
    page = Page(text)
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert attrs.get("href", "#").startswith(("#", "data:,"))
    assert "url(http" not in text
    assert "@import" not in text
    policy = next(attrs["content"] for tag, attrs in page.elements if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_hostile_texts_make_no_element_and_no_attribute(text) -> None:
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 3  # the figures, plotly, the page's own
    assert not [tag for tag, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert "&lt;script&gt;document" in text
    assert "{{ 7 * 7 }}" in page.texts["examples"]
    assert "49" not in page.texts["examples"].split("{{ 7 * 7 }}")[1][:20]
    assert "مرحبا" in page.texts["examples"]
    assert "😀" in page.texts["examples"]
    assert "(10,240 characters)" in page.texts["examples"]


def test_verdict_findings_and_origin_are_told(text, made) -> None:
    assert "is above it at 1 shot (" in text
    assert "Try:" not in text  # no finding here says what to try
    assert "bare" in Page(text).texts["training"]
    origin = Page(text).texts["recipe"]
    assert made.recipe.hash in origin
    assert "lever run run/resolved.toml --seed 3 --out run-again" in origin
    assert "[score]" in origin


def test_the_same_run_gives_the_same_bytes(made) -> None:
    assert build_report(made).read_bytes() == build_report(made).read_bytes()
    assert [path.name for path in made.folder.iterdir() if path.name.startswith(".report")] == []


def test_a_half_written_run_gives_a_page_of_sentences(made) -> None:
    for name in ("eval.json", "predictions.parquet", "log.jsonl", "findings.json"):
        (made.folder / name).unlink()
    page = Page(build_report(made).read_text(encoding="utf-8"))
    assert tuple(page.texts) == SECTIONS
    for name, body in page.texts.items():
        assert len(body.split()) > 5, name
    assert "lever eval makes it" in page.texts["accuracy"]
    assert "lever train makes it" in page.texts["training"]


def test_results_of_an_older_form_are_shown_as_far_as_they_go(made) -> None:
    path = made.folder / "eval.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({key: known[key] for key in ("n", "arms", "comparisons")}))
    page = Page(build_report(made).read_text(encoding="utf-8"))
    assert "Regret was not measured" in page.texts["regret"]
    assert "does not say what training cost" in page.texts["cost"]


def test_a_task_out_of_reach_leaves_ids_without_pictures(made, monkeypatch) -> None:
    def gone(_split):
        raise DataError("the pictures are on another disk")

    monkeypatch.setattr(made.task, "items", gone)
    text = build_report(made).read_text(encoding="utf-8")
    assert "the pictures are on another disk" in text
    assert "url(data:image/webp" not in text
    assert "test-1" in Page(text).texts["examples"]


def test_a_page_that_cannot_be_written_is_a_sentence_and_leaves_nothing(made) -> None:
    (made.folder / "report.html").mkdir()
    with pytest.raises(LeverError, match=r"cannot write .*report\.html"):
        build_report(made)
    assert not [path for path in made.folder.iterdir() if path.name.startswith(".report")]


def test_a_shipped_recipe_is_made_again_by_its_name(made) -> None:
    assert command(replace(made, recipe=load_recipe("world"))) == "lever run world --seed 3 --out run-again"


@pytest.mark.parametrize("value", ["</script>", "<!--", "]]>&amp;", "\u2028", "😀"])
def test_json_in_a_script_element_cannot_end_it(value) -> None:
    text = script_json({"x": value})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": value}


def test_words_between_backticks_are_code_and_markup_stays_text() -> None:
    said = str(with_code("type `lever plan-n --effect X` & <b>"))
    assert said == "type <code>lever plan-n --effect X</code> &amp; &lt;b&gt;"
