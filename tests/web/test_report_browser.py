"""The report in a real Chromium, opened from disk. LEVER_SCREENSHOTS=1 puts pictures into build/screenshots."""

from __future__ import annotations

import pytest
from browsing import PHONE, barriers, drawn, overflow, shot

pytestmark = pytest.mark.browser

LOOKS = {
    "report": {},
    "report-dark": {"color_scheme": "dark"},
    "report-phone": PHONE,
    "report-phone-dark": {**PHONE, "color_scheme": "dark"},
}


def test_the_report_draws_every_chart_and_runs_nothing_hostile(
    report_address, visitor
) -> None:
    page = visitor.open(report_address)
    charts = drawn(page)
    assert {
        "accuracy",
        "forest-1",
        "regret",
        "cost",
        "curve-0",
        "curve-3",
        "rewards-sft",
        "spread-sft",
    } <= set(charts)
    assert "advantages-grpo" in charts
    assert page.locator("html").get_attribute("data-pwned") is None
    assert page.locator(".legend").count() >= 4
    sections = page.eval_on_selector_all(
        "section", "all => all.map(one => one.innerText.trim().length)"
    )
    assert len(sections) == 9
    assert min(sections) > 40


def test_the_numbers_of_every_chart_are_behind_it(report_address, visitor) -> None:
    page = visitor.open(report_address)
    for chart in drawn(page):
        figure = page.locator("figure", has=page.locator(f'[data-figure="{chart}"]'))
        table = figure.locator("table")
        assert not table.is_visible()
        figure.locator("summary").focus()
        page.keyboard.press("Enter")
        assert table.is_visible(), chart
        assert len(table.locator("tbody td").all_inner_texts()) > 0


def test_a_name_above_a_chart_hides_and_shows_its_series_by_keyboard(
    report_address, visitor
) -> None:
    page = visitor.open(report_address)
    drawn(page)
    figure = page.locator("figure", has=page.locator('[data-figure="accuracy"]'))
    button = figure.get_by_role("button", name="learned", exact=True)
    lines = figure.locator(".scatterlayer .trace")
    shown = lines.count()
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == shown - 1
    page.keyboard.press("Space")
    assert lines.count() == shown


def test_an_example_opens_with_pictures_of_its_demonstrations(
    report_address, visitor
) -> None:
    page = visitor.open(report_address)
    example = page.locator("details.example").first
    assert page.locator("details.example").count() == 30
    example.locator("> summary").click()
    pictures = example.locator(".demos .picture")
    assert pictures.count() > 0
    grounds = pictures.evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundImage)"
    )
    assert all("data:image/webp" in ground for ground in grounds)


@pytest.mark.parametrize("name", LOOKS)
def test_it_can_be_read_wide_and_on_a_phone_in_light_and_dark(
    report_address, visitor, name
) -> None:
    page = visitor.open(report_address, **LOOKS[name])
    drawn(page)
    page.locator("details.example > summary").first.click()
    assert overflow(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is ("dark" not in name)
    shot(page, name)
    assert barriers(page) == []


def test_it_prints_in_light_colours_inside_the_margins_of_the_paper(
    report_address, visitor
) -> None:
    page = visitor.open(
        report_address, color_scheme="dark", viewport={"width": 680, "height": 960}
    )
    drawn(page)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    ink = page.evaluate("getComputedStyle(document.querySelector('.chart text')).fill")
    assert (
        max(int(part) for part in ink.removeprefix("rgb(").removesuffix(")").split(","))
        < 100
    )
    assert overflow(page) == []
    shot(page, "report-print")


def test_whatever_a_page_says_on_its_console_or_asks_of_the_network_is_noticed(
    tmp_path, chromium_browser
) -> None:
    from browsing import Visitor

    bad = tmp_path / "bad.html"
    bad.write_text(
        "<img src='http://example.invalid/x.png'><script>console.log('hello'); missing()</script>"
    )
    someone = Visitor(chromium_browser)
    someone.open(bad.as_uri())
    someone.close()
    noticed = "\n".join(someone.problems)
    assert "console log: hello" in noticed
    assert "missing is not defined" in noticed
    assert "asked for http://example.invalid/x.png" in noticed
