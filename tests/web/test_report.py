"""The report: every section has content, nothing hostile runs, and what is missing is a sentence."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_run import Made

from leverplus.cli.main import main
from leverplus.errors import DataError, LeverError
from leverplus.evaluate.record import EvaluationRecord
from leverplus.evaluate.verdict import headline
from leverplus.run.recipe import load_recipe
from leverplus.web.pages import cut, mark, script_json, with_code
from leverplus.web.report import (
    Thumbnails,
    arm_rows,
    build_report,
    chosen_items,
    command,
    fates,
    usage_table,
)
from leverplus.web.runs import read_run

SECTIONS = (
    *("accuracy", "differences", "regret", "training", "rewards", "cost"),
    *("picks", "examples", "recipe"),
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


@pytest.fixture(scope="module")
def text(report_address: str) -> str:
    return Path(report_address.removeprefix("file://")).read_text(encoding="utf-8")


def built(made: Made) -> Page:
    return Page(build_report(made).read_text(encoding="utf-8"))


def test_every_section_has_content_and_every_chart_its_numbers(text: str) -> None:
    page = Page(text)
    assert tuple(page.texts) == SECTIONS
    assert all(len(body.split()) > 5 for body in page.texts.values())
    charts = [own["data-figure"] for _, own in page.elements if "data-figure" in own]
    stored = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.S)[1])
    assert sorted(charts) == sorted(stored)
    assert {"accuracy", "forest-1", "cost", "regret", "curve-0"} <= set(charts)
    for name in charts:
        after = text.split(f'data-figure="{name}"')[1].split("</figure>", maxsplit=1)[0]
        assert "the numbers</summary>" in after
        assert "<td>" in after


def test_it_opens_with_the_advice_and_tells_verdict_findings_and_origin(
    text: str,
) -> None:
    assert text.index("Use learned.") < text.index("the learned selector has")
    assert "is above it at 1 shot (" in text
    page = Page(text)
    assert "bare" in page.texts["training"]
    assert "made at grpo, epoch 2" in page.texts["training"]
    assert (
        "lever run run/resolved.toml --seed 3 --out run-again" in (page.texts["recipe"])
    )
    assert "[score]" in page.texts["recipe"]


def test_the_page_asks_for_nothing_outside_itself(text: str) -> None:
    page = Page(text)
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert attrs.get("href", "#").startswith(("#", "data:,"))
    assert "url(http" not in text
    assert "@import" not in text
    policy = next(own["content"] for _, own in page.elements if "http-equiv" in own)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_hostile_texts_make_no_element_and_no_attribute(text: str) -> None:
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 3  # the figures, plotly, the page's own
    assert "img" not in tags
    names = [name for _, attrs in page.elements for name in attrs]
    assert not [name for name in names if name.startswith("on")]
    assert "&lt;script&gt;document" in text
    examples = page.texts["examples"]
    assert "{{ 7 * 7 }}" in examples
    assert "49" not in examples.split("{{ 7 * 7 }}")[1][:20]
    assert "مرحبا" in examples
    assert "😀" in examples
    assert "(10,240 characters)" in examples


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(made: Made) -> None:
    assert build_report(made).read_bytes() == build_report(made).read_bytes()
    assert not list(made.folder.glob(".report*"))


def test_a_half_written_run_gives_a_page_of_sentences(made: Made) -> None:
    for name in ("eval.json", "predictions.parquet", "log.jsonl", "findings.json"):
        (made.folder / name).unlink()
    page = built(made)
    assert tuple(page.texts) == SECTIONS
    for name, body in page.texts.items():
        assert len(body.split()) > 5, name
    assert "lever eval makes it" in page.texts["accuracy"]
    assert "lever train makes it" in page.texts["training"]


@pytest.mark.slow
def test_a_task_out_of_reach_leaves_ids_without_pictures(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_split: str) -> None:
        raise DataError("the pictures are on another disk")

    monkeypatch.setattr(made.task, "items", gone)
    text = build_report(made).read_text(encoding="utf-8")
    assert "the pictures are on another disk" in text
    assert "url(data:image/webp" not in text
    assert "test-01" in Page(text).texts["examples"]


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_a_sentence_and_leaves_nothing(
    made: Made,
) -> None:
    (made.folder / "report.html").mkdir()
    with pytest.raises(LeverError, match=r"cannot write .*report\.html"):
        build_report(made)
    assert not list(made.folder.glob(".report*"))


def test_a_shipped_recipe_is_made_again_by_its_name(made: Made) -> None:
    shipped = replace(made, recipe=load_recipe("world"))
    assert command(shipped) == "lever run world --seed 3 --out run-again"


def test_a_whole_run_is_read_without_a_complaint(made: Made) -> None:
    files = read_run(made.folder)
    assert files.missing == {}
    assert files.record is not None
    assert files.predictions is not None
    assert files.record.n == len(files.predictions.items) == 36
    assert (len(files.log), list(files.groups)) == (7, ["sft", "grpo"])
    assert (files.findings or [])[1]["severity"] == "info"


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"\xff\xfe", b'{"arms": 3, "findings": 3}']
)
@pytest.mark.parametrize(
    "name", ["eval.json", "predictions.parquet", "findings.json", "groups-sft.json"]
)
def test_a_missing_or_damaged_file_is_a_sentence_with_what_to_type(
    made: Made, name: str, content: bytes | None
) -> None:
    path = made.folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    missing = read_run(made.folder).missing
    if name.startswith("groups") and content is None:
        assert missing == {}, "a stage may have none"
        return
    start = f"There is no {name}" if content is None else f"{name} cannot be read"
    assert missing[name].startswith(start)
    assert "`lever " in missing[name]


def test_a_cut_last_line_of_the_log_and_other_predictions_are_left_out(
    made: Made,
) -> None:
    path = made.folder / "log.jsonl"
    path.write_text(path.read_text() + '{"stage": "sft", "epo')
    found = made.folder / "eval.json"
    found.write_text(json.dumps({**json.loads(found.read_text()), "n": 99}))
    files = read_run(made.folder)
    assert len(files.log) == 7
    assert files.predictions is None
    assert "are of different evaluations" in files.missing["predictions.parquet"]


CHANGED = {
    "an interval that is none": lambda f: f["comparisons"][0].update(ci95=None),
    "a p that is a word": lambda f: f["comparisons"][0].update(p_adjusted="tiny"),
    "a difference that is no number": lambda f: f["comparisons"][0].update(
        diff=float("nan")
    ),
    "no arms": lambda f: f["arms"].clear(),
    "calls that are words": lambda f: f.update(model_calls="many"),
    "a regret of another shape": lambda f: f.update(regret=[1]),
    "accuracies by word": lambda f: f["arms"]["learned"].update(shots={"one": 0.5}),
}


@pytest.mark.parametrize("change", CHANGED)
def test_results_of_another_form_are_a_sentence(made: Made, change: str) -> None:
    path = made.folder / "eval.json"
    found = json.loads(path.read_text())
    CHANGED[change](found)
    path.write_text(json.dumps(found))
    assert "eval.json cannot be read" in read_run(made.folder).missing["eval.json"]


@pytest.mark.parametrize("value", ["</script>", "<!--", "]]>&amp;", "\u2028", "😀"])
def test_json_in_a_script_element_cannot_end_it(value: str) -> None:
    text = script_json({"x": value})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": value}


def test_words_between_backticks_are_code_and_markup_stays_text() -> None:
    said = str(with_code("type `lever plan-n --effect X` & <b>"))
    assert said == "type <code>lever plan-n --effect X</code> &amp; &lt;b&gt;"
    assert cut("abcdef", 3) == "abc… (6 characters)"
    assert [mark(score) for score in (1.0, 0.3, 0.0)] == ["right", "partly", "wrong"]


def test_a_third_of_the_examples_was_helped_and_a_third_harmed() -> None:
    items = [f"i{k}" for k in range(100)]
    kinds = ("helped", "harmed", "same")
    fate = {item: kinds[min(k // 20, 2)] for k, item in enumerate(items)}
    chosen = chosen_items(items, fate)
    assert Counter(fate[item] for item in chosen) == dict.fromkeys(kinds, 10)
    assert chosen == chosen_items(items[::-1], fate)
    few = chosen_items(items[:50], {"i0": "helped"})
    assert len(few) == len(set(few)) == 30
    assert few[0] == "i0"
    assert len(chosen_items(items[:7], {})) == 7


def test_the_fate_of_an_item_is_its_difference_at_the_headline(
    results, record: EvaluationRecord
) -> None:
    row = headline(record)
    assert row is not None
    found = fates(results, row)
    own = results.accuracy("learned", row.shots)
    base = results.accuracy(row.baseline, row.shots)
    for item, gain in zip(results.items, own - base, strict=True):
        kind = "helped" if gain > 0 else "harmed"
        assert found[item] == ("same" if gain == 0 else kind)
    assert fates(results, None) == {}


def test_an_example_shows_each_arm_with_its_own_demonstrations_in_order(
    results, task
) -> None:
    pictures = Thumbnails(task)
    item = results.items[5]
    shown = {row[0]: row for row in arm_rows(results, item, 2, pictures)}
    assert set(shown) == set(results.draws)
    assert shown["zero_shot"][1] == []
    prediction = results.first("learned", 2)[5]
    _, demos, answer, score = shown["learned"]
    assert [demo.id for demo in demos] == list(prediction.demos)
    assert (answer, score) == (prediction.answer, prediction.accuracy)
    assert demos[0].answer == task.item(demos[0].id).answer
    assert {demo.picture for demo in demos} <= set(
        re.findall(r"\.(p\d+)\{", pictures.style_sheet())
    )


def test_equal_pictures_are_embedded_once(task) -> None:
    pictures = Thumbnails(task)
    first, second, third = (pictures.card(f"test-{n:02d}").picture for n in (0, 1, 2))
    assert first == second != third
    assert pictures.style_sheet().count("background-image") == 2
    assert pictures.card("nobody").question == ""


def test_usage_counts_distinct_demonstrations_and_the_share_of_ten(results) -> None:
    rows = {row[0]: row[1:] for row in usage_table(results).rows}
    assert "zero-shot" not in rows
    shots, picks, distinct, share = rows["learned"]
    counts = Counter(demo for own in results.first("learned", 2) for demo in own.demos)
    assert (shots, picks, distinct) == ("2", "72", str(len(counts)))
    top = sum(count for _, count in counts.most_common(10))
    assert share == f"{100 * top / 72:.1f} %"


def test_the_command_writes_the_page_and_says_where(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = runs / "first" / "report.html"
    report.unlink()
    assert main(["report", str(runs / "first"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"report": str(report), "bytes": report.stat().st_size}
    assert main(["report", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err
