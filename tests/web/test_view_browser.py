"""The page as a visitor uses it, in a real Chromium, served by `lever view`. LEVER_SCREENSHOTS=1 keeps pictures."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from browsing import PHONE, Visitor, barriers, drawn, overflow, shot
from PIL import Image
from tiny_world import TINY, TinyRun

from leverplus.evaluate.predictions import Results, read_predictions
from leverplus.evaluate.runs import compare_runs, read_evaluated
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.train import train_run
from leverplus.web.view import create_view

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(chromium_browser: Any, runs: Path) -> Iterator[str]:
    """`lever view` on a free port, stopped afterwards; after the browser, so that nothing is served without one."""
    command = [
        sys.executable,
        "-m",
        "leverplus.cli.main",
        "view",
        str(runs),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            printed = server.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+)/ shows the runs", printed)
            assert found, printed
            yield found[1]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def results(runs: Path) -> Results:
    return read_predictions(runs / "first" / "predictions.parquet")


def press(page: Any, name: str) -> None:
    """Press a button of the page and wait for what it leads to."""
    with page.expect_navigation():
        page.get_by_role("button", name=name).click()


def test_the_list_is_searched_and_a_run_is_opened(
    visitor: Visitor, address: str
) -> None:
    page = visitor.open(address)
    names = page.locator("table.list tbody th")
    assert names.all_inner_texts() == [
        "elsewhere",
        "first",
        "half",
        "live",
        "second",
    ]
    page.get_by_label("Search").fill("FIRST")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert names.all_inner_texts() == ["first"]
    page.get_by_role("link", name="first").click()
    assert "learned selector" in page.locator(".verdict:not(#advice)").inner_text()
    assert "Advice" in page.locator("#advice").inner_text()
    assert {"accuracy", "forest-1", "curve-0"} <= set(drawn(page))


def test_two_ticked_runs_are_compared_with_paired_statistics(
    visitor: Visitor, address: str, runs: Path
) -> None:
    page = visitor.open(address)
    for name in ("first", "second"):
        page.get_by_label(f"compare {name}").check()
    assert page.get_by_label("compare half").is_disabled()
    press(page, "Compare the selected runs")
    expected = compare_runs(
        [read_evaluated(runs / name) for name in ("first", "second")]
    )
    assert drawn(page) == ["forest"]
    figure = page.locator("figure")
    figure.locator("summary").click()
    cells = []
    for row in figure.locator("tbody tr").all():
        cells.append(row.locator("td").all_inner_texts())
    for row, texts in zip(expected.comparisons, cells, strict=True):
        low, high = row.ci95
        assert texts[1] == f"{100 * row.diff:+.1f}"
        assert texts[2] == f"{100 * low:+.1f} to {100 * high:+.1f}"
        assert texts[-1] == row.verdict
    page.get_by_label("Baseline").select_option("nearest_both")
    press(page, "Compare")
    assert page.get_by_role(
        "heading", name="Differences from nearest_both"
    ).is_visible()


def shown_ids(page: Any) -> list[str]:
    return page.locator("table.queries tbody th .soft").all_inner_texts()


def test_queries_are_filtered_by_outcome_arm_and_words(
    visitor: Visitor, address: str, runs: Path, results: Results
) -> None:
    page = visitor.open(f"{address}/run/first/queries")
    page.locator("select[name=baseline]").select_option("random")
    page.locator("select[name=shots]").select_option("2")
    own, other = results.accuracy("learned", 2), results.accuracy("random", 2)
    kinds = {
        "helped": own > other,
        "harmed": own < other,
        "same": own == other,
    }
    for kind, inside in kinds.items():
        page.locator("select[name=fate]").select_option(kind)
        press(page, "Filter")
        assert shown_ids(page) == [
            item for item, wanted in zip(results.items, inside, strict=True) if wanted
        ]
        assert (
            page.get_by_role("status")
            .inner_text()
            .startswith(f"{int(inside.sum())} quer")
        )
    with page.expect_navigation():
        page.get_by_role("link", name="Clear").click()
    page.locator("select[name=arm]").select_option("zero_shot")
    press(page, "Filter")
    page.get_by_role("columnheader", name="zero-shot").wait_for()
    items = [load_run(runs / "first").task.item(item) for item in results.items]
    page.get_by_label("Search").fill(items[0].question.upper())
    press(page, "Filter")
    assert items[0].id in shown_ids(page)
    shot(page, "view-filtered")


def test_a_choice_is_explained_candidate_by_candidate(
    visitor: Visitor, address: str, results: Results
) -> None:
    page = visitor.open(f"{address}/run/first/queries?shots=2")
    page.locator("table.queries tbody a").first.click()
    shown = results.draws["learned"][2][0][0].demos
    taken = page.locator("tr.taken")
    assert taken.locator("td:nth-child(1)").all_inner_texts() == ["2", "1"]
    titles = taken.locator("td:nth-child(2)").evaluate_all(
        "all => all.map(one => one.title)"
    )
    assert tuple(titles[::-1]) == shown
    shot(page, "view-choice")


def test_a_query_of_the_task_is_asked_by_the_form_itself(
    visitor: Visitor, address: str, results: Results
) -> None:
    page = visitor.open(f"{address}/run/first/query?item={results.items[0]}&shots=2")
    page.get_by_role("link", name="Try it with another question").click()
    assert page.get_by_label("Query of the task").input_value() == results.items[0]
    press(page, "Ask")
    said = page.locator("#answer").inner_text()
    assert (
        f"With the picked demonstrations: {results.draws['learned'][2][0][0].answer}"
        in said
    )
    assert f"With none: {results.draws['zero_shot'][0][0][0].answer}" in said
    picked = page.locator("#answer > .cards .card").evaluate_all(
        "all => all.map(one => one.title)"
    )
    assert tuple(picked) == results.draws["learned"][2][0][0].demos
    shot(page, "view-answer")


def test_a_picture_of_ones_own_is_uploaded_and_answered_and_other_files_are_refused(
    visitor: Visitor, address: str, tmp_path: Path
) -> None:
    page = visitor.open(f"{address}/run/first/try")
    Image.new("RGB", (300, 200), "orange").save(tmp_path / "mine.png")
    page.get_by_label("or a picture").set_input_files(tmp_path / "mine.png")
    page.get_by_label("Question").fill("what does it fear")
    page.get_by_label("Demonstrations").fill("3")
    press(page, "Ask")
    assert re.search(
        r"With the picked demonstrations: \w+", page.locator("#answer").inner_text()
    )
    assert (
        page.get_by_alt_text("the picture that was asked about").evaluate(
            "one => one.naturalWidth"
        )
        == 300
    )
    assert page.locator("tr.taken").count() == 3
    (tmp_path / "no.png").write_text("<svg onload=alert(1)>")
    page.get_by_label("or a picture").set_input_files(tmp_path / "no.png")
    press(page, "Ask")
    assert "is not a picture" in page.get_by_role("alert").inner_text()
    refused = [said for said in visitor.problems if "422" in said]
    assert len(refused) == 1, "the browser notes the refusal, and nothing else"
    visitor.problems.remove(refused[0])


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The page on a free port of this process."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(create_view(root), log_level="warning", ws="none")
        )
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)


def points_of(page: Any, chart: str) -> int:
    return page.locator(f"[data-figure={chart}] .scatterlayer .points path").count()


def test_the_curves_and_findings_of_a_run_grow_while_it_trains(
    visitor: Visitor, runs: Path, tiny_run: TinyRun, tmp_path: Path
) -> None:
    """A real training that learns nothing and waits before every epoch until the page has shown the one before."""
    root = tmp_path / "runs"
    go, recipe = (
        Queue[None](),
        load_recipe("world", [*TINY, "sft.epochs=4", "sft.lr=1e-9"]),
    )

    def wait(what: str, _done: int, _total: int) -> None:
        if what.startswith("training"):
            go.get(timeout=60)

    run = open_run(
        recipe,
        find_recipe("world"),
        root / "growing",
        seed=0,
        store_path=tiny_run.store,
        progress=wait,
    )
    training = Thread(target=train_run, args=[run])
    training.start()
    with served(root) as address:
        page = visitor.page()
        page.clock.install()
        page.goto(f"{address}/run/growing")
        go.put(None)  # the judgement before the first epoch
        for epoch in range(1, 5):
            go.put(None)
            while f"{epoch} epoch" not in page.locator("#latest").inner_text():
                page.clock.run_for(2_000)  # the page asks every two seconds
                page.wait_for_timeout(100)
            page.locator("[data-figure=curve-0] .main-svg").first.wait_for()
            assert points_of(page, "curve-0") == epoch
            rows = page.locator(
                "figure", has=page.locator("[data-figure=curve-0]")
            ).locator("tbody tr")
            assert rows.count() == epoch, "the numbers behind a chart grow with it"
            assert page.locator("#state").inner_text() == "stopped"
            dead = page.locator(".finding", has_text="dead_updates")
            if epoch != 2:  # it is found between the second epoch and the third
                assert dead.count() == (epoch > 2), (
                    "it takes two epochs to see that nothing moves"
                )
        assert "made at sft, epoch 2" in dead.inner_text()
        training.join(timeout=60)
        assert not training.is_alive()
        badges = page.locator(
            "[data-figure=curve-0] .annotation-text"
        ).all_text_contents()
        assert dead.inner_text().split(".")[0] in badges, (
            "it is marked by its number where it fired"
        )
        shot(page, "view-live")
        shutil.copy(runs / "first" / "eval.json", root / "growing")
        with page.expect_navigation():
            page.clock.run_for(2_000)
        assert page.locator("#state").inner_text() == "finished"


LOOKS = {
    "view-list": "/",
    "view-run": "/run/first",
    "view-compare": "/compare?run=first&run=second",
    "view-queries": "/run/first/queries",
    "view-query": "/run/first/query?item={item}&shots=2",
    "view-try": "/run/first/try?item={item}",
    "view-half": "/run/half",
}
SCHEMES = {"": {}, "-phone-dark": {**PHONE, "color_scheme": "dark"}}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", LOOKS)
def test_pages_fit_their_window_and_keep_no_one_out(
    visitor: Visitor, address: str, results: Results, name: str, scheme: str
) -> None:
    page = visitor.open(
        address + LOOKS[name].format(item=results.items[0]), **SCHEMES[scheme]
    )
    if page.locator(".chart").count():
        drawn(page)
    assert overflow(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(
        "getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"
    ) is bool(scheme)
    shot(page, name + scheme)
    assert barriers(page) == []


@pytest.mark.parametrize(
    "place", ["/", "/run/first/queries", "/run/first/try", "/compare"]
)
def test_the_keyboard_reaches_every_control_in_the_order_of_the_page(
    visitor: Visitor, address: str, place: str
) -> None:
    page = visitor.open(address + place)
    page.evaluate(
        """() => [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"]')]
            .filter(one => !one.disabled && one.getClientRects().length)
            .forEach((one, place) => one.dataset.place = place)"""
    )
    count = page.locator("[data-place]").count()
    reached = []
    for _ in range(count):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.place"))
        assert (
            page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            != "none"
        )
    assert [int(place) for place in reached] == list(range(count))
    page.reload(wait_until="load")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(
        lambda url: url.endswith("#content"), timeout=10_000
    )  # the first stop skips to the content


HOSTILE = "<img src=x onerror=\"document.documentElement.dataset.pwned='1'\">"


def test_hostile_texts_in_an_address_or_a_form_are_shown_and_not_run(
    visitor: Visitor, address: str
) -> None:
    page = visitor.open(f"{address}/run/first/queries")
    page.get_by_label("Search").fill(HOSTILE)
    press(page, "Filter")
    assert page.get_by_label("Search").input_value() == HOSTILE
    page.goto(f"{address}/run/first/try")
    page.get_by_label("Query of the task").fill("\u202e" + HOSTILE + "😀")
    press(page, "Ask")
    assert HOSTILE in page.get_by_role("alert").inner_text()
    assert page.locator("html").get_attribute("data-pwned") is None
    visitor.problems = [said for said in visitor.problems if "422" not in said]
