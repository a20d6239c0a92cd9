"""The page as a visitor asks for it: every address, and what it says when it cannot answer."""

from __future__ import annotations

import io
import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from viewed import client_of, sentence

from leverplus.data.rundir import lock_folder
from leverplus.data.types import ItemId
from leverplus.errors import MissingFile
from leverplus.evaluate.predictions import (
    Prediction,
    Results,
    read_predictions,
    write_predictions,
)
from leverplus.evaluate.runs import compare_runs, read_evaluated
from leverplus.run.run import load_run
from leverplus.web.runs import RunsFolder

HOSTILE = "<script>document.documentElement.dataset.pwned='1'</script>"


@pytest.fixture(scope="module")
def first(runs: Path) -> Results:
    return read_predictions(runs / "first" / "predictions.parquet")


def listed(text: str) -> list[str]:
    return re.findall(r'<a href="/run/([^"]+)"', text)


def test_the_list_shows_every_run_with_its_numbers_and_state(
    client: TestClient, runs: Path
) -> None:
    with lock_folder(runs / "live"):
        text = client.get("/").text
    assert listed(text) == ["elsewhere", "first", "half", "live", "second"]
    report = json.loads((runs / "first" / "eval.json").read_text())
    rows = {}
    for name in listed(text):
        rows[name] = text.split(f'href="/run/{name}"')[1].split("</tr>")[0]
    learned = 100 * report["arms"]["learned"]["mean"]
    assert f'<td data-label="n">{report["n"]}</td>' in rows["first"]
    assert f'<td data-label="Learned">{learned:.1f}</td>' in rows["first"]
    assert "finished" in rows["first"]
    assert "at work" in rows["live"]
    assert "damaged" in rows["half"]
    assert "eval.json cannot be read" in rows["half"]
    assert "stopped" in client.get("/?q=live").text


def test_the_list_is_filtered_by_words_and_state(client: TestClient) -> None:
    assert listed(client.get("/?q=SEC").text) == ["second"]
    assert "live" not in listed(client.get("/?state=finished").text)
    assert "No run fits." in client.get("/?q=nowhere").text


def test_a_run_folder_is_a_folder_of_one_and_none_says_what_to_type(
    runs: Path, tmp_path: Path
) -> None:
    alone = RunsFolder(runs / "first")
    assert alone.names() == ["first"]
    assert alone.folder("first") == (runs / "first").resolve()
    with pytest.raises(MissingFile, match=r"there is no folder .*lever run --out"):
        RunsFolder(tmp_path / "none")
    assert RunsFolder(tmp_path).names() == []
    assert "There is no run here yet." in client_of(tmp_path).get("/").text


def test_a_run_has_its_advice_verdict_curves_and_findings(
    client: TestClient, runs: Path
) -> None:
    text = unescape(client.get("/run/first").text)
    assert text.index("Advice.") < text.index("the learned selector has")
    for chart in ("accuracy", "forest-1", "regret", "cost", "curve-0", "rewards-sft"):
        assert f'data-figure="{chart}"' in text
    assert "view.js" not in text, "a finished run is not asked again and again"
    found = json.loads((runs / "first" / "findings.json").read_text())
    for finding in found["findings"]:
        assert finding["code"] in text


def test_a_live_run_is_followed_epoch_by_epoch(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "live", tmp_path / "runs" / "live")
    client = client_of(tmp_path / "runs")
    assert 'data-live="/run/live/live.json"' in client.get("/run/live").text
    with lock_folder(folder):
        before = client.get("/run/live/live.json").json()
    assert (before["state"], before["epochs"]) == ("at work", 1)
    shutil.copy(runs / "first" / "log.jsonl", folder)
    after = client.get("/run/live/live.json").json()
    lines = (runs / "first" / "log.jsonl").read_text().splitlines()
    assert (after["state"], after["epochs"]) == ("stopped", len(lines))
    assert len(after["tables"]["curve-0"]) == len(lines)
    drawn = after["figures"]["curve-0"]["series"][0]["x"]
    assert len(drawn) > len(before["figures"]["curve-0"]["series"][0]["x"])
    shutil.copy(runs / "first" / "eval.json", folder)
    assert client.get("/run/live/live.json").json()["state"] == "finished"


def test_runs_are_compared_by_the_same_numbers_as_on_the_command_line(
    client: TestClient, runs: Path
) -> None:
    answer = client.get("/compare", params={"run": ["first", "second"]})
    read = [read_evaluated(runs / name) for name in ("first", "second")]
    cells = re.findall(
        r"<td>([+-][\d.]+)</td><td>([+-][\d.]+) to ([+-][\d.]+)</td>", answer.text
    )
    expected = []
    for row in compare_runs(read).comparisons:
        values = (row.diff, *row.ci95)
        expected.append(tuple(f"{100 * value:+.1f}" for value in values))
    assert cells == expected
    arm = client.get("/compare", params={"run": ["first"], "baseline": "nearest_both"})
    assert "Differences from nearest_both" in arm.text
    other = client.get("/compare", params={"run": ["first", "elsewhere"]})
    assert other.status_code == 422
    assert "cannot be compared, because they differ in the items" in other.text


def test_one_run_may_be_compared_with_any_of_its_arms(client: TestClient) -> None:
    text = client.get("/compare?run=first").text
    assert "Choose two runs or more" in text
    offered = set(re.findall(r'<option value="([^"]+)"', text))
    assert {"nearest_both", "random", "zero_shot"} <= offered
    assert client.get("/compare?run=half").status_code == 422


def test_queries_are_filtered_searched_and_turned(
    client: TestClient, runs: Path, first: Results
) -> None:
    place = "/run/first/queries"
    own, other = first.accuracy("learned", 2), first.accuracy("random", 2)
    kinds = {"helped": own > other, "harmed": own < other, "same": own == other}
    for fate, wanted in kinds.items():
        asked = {"baseline": "random", "shots": 2, "fate": fate}
        text = client.get(place, params=asked).text
        ids = []
        for item, inside in zip(first.items, wanted, strict=True):
            if inside:
                ids.append(item)
        assert re.findall(r"query\?item=([\w-]+)&amp;shots=2", text) == ids
    question = load_run(runs / "first").task.item(first.items[3]).question
    assert first.items[3] in client.get(place, params={"q": question.upper()}).text
    assert "0 queries fit" in client.get(f"{place}?q=nobodysaidthis").text
    assert "page 1 of 1" in client.get(f"{place}?page=9").text
    assert client.get(f"{place}?page=0").status_code == 422


@pytest.mark.slow
def test_any_two_arms_can_be_compared_whatever_the_address_left_open(
    client: TestClient, first: Results
) -> None:
    """As the form sends it: an arm that shows none stands beside the numbers of shots of the other."""
    for arm in first.draws:
        for baseline in first.draws:
            asked = {"arm": arm, "baseline": baseline, "shots": 2, "fate": "helped"}
            answer = client.get("/run/first/queries", params=asked)
            assert answer.status_code == 200, (arm, baseline, sentence(answer.text))
    asked |= {"arm": "zero_shot", "baseline": "random"}
    text = client.get("/run/first/queries", params=asked).text
    gain = first.accuracy("zero_shot", 0) - first.accuracy("random", 2)
    helped, harmed = int((gain > 0).sum()), int((gain < 0).sum())
    assert f"zero-shot helped {helped}, harmed {harmed} and" in text
    assert "against random at 2 shots" in text
    assert client.get("/run/first/queries?arm=nobody").status_code == 422


def test_a_query_shows_every_arm_in_order_and_why_the_selector_chose(
    client: TestClient, first: Results
) -> None:
    place = {"item": first.items[0], "shots": 2}
    text = client.get("/run/first/query", params=place).text
    learned = text.split('class="arm learned"')[1].split('class="answer"')[0]
    shown = first.first("learned", 2)[0].demos
    assert tuple(re.findall(r'class="card" title="([^"]+)"', learned)) == shown
    taken = re.findall(r'class="taken"><td>(\d)</td><td [^>]*title="([^"]+)"', text)
    assert [demo for _, demo in sorted(taken)] == list(shown)
    picture = client.get("/run/first/picture", params={"item": first.items[0]})
    with Image.open(io.BytesIO(picture.content)) as image:
        assert image.size == (32, 32)
    assert client.get("/run/first/query?item=nobody").status_code == 404


def answers(text: str) -> list[str]:
    part = text.split('id="answer"')[1].split("<h3>", maxsplit=1)[0]
    return re.findall(r'class="words">([^<]*)</span>', part)


def test_a_query_of_the_task_is_answered_as_it_was_in_the_evaluation(
    client: TestClient, first: Results
) -> None:
    for row in (0, 4):
        form = {"item": first.items[row], "question": "", "shots": "2"}
        text = client.post("/run/first/try", data=form).text
        learned, alone = first.first("learned", 2), first.first("zero_shot", 0)
        assert answers(text) == [learned[row].answer, alone[row].answer]


def test_a_picture_of_ones_own_is_answered(client: TestClient) -> None:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "orange").save(out, "PNG")
    files = {"image": ("mine.png", out.getvalue(), "image/png")}
    form = {"question": "what does it fear", "shots": "3"}
    answer = client.post("/run/first/try", data=form, files=files)
    assert answer.status_code == 200
    assert len(answers(answer.text)) == 2
    assert answer.text.count('class="taken"') == 3


@pytest.mark.parametrize(
    ("data", "upload", "said"),
    [
        ({"question": "what is it"}, b"<svg onload=alert(1)>", "is not a picture"),
        ({"question": ""}, None, "choose a query of the task or a picture"),
        ({"item": "no-such-item"}, None, "no-such-item"),
        ({"item": "test-0002-a", "shots": "99"}, None, "0 to 8"),
        ({"item": "test-0002-a", "question": "why " * 600}, None, "at most 2,000"),
    ],
)
def test_what_cannot_be_tried_is_said_in_a_sentence(
    client: TestClient, data: dict[str, str], upload: bytes | None, said: str
) -> None:
    files = {"image": ("x.png", upload)} if upload else None
    answer = client.post("/run/first/try", data=data, files=files)
    assert answer.status_code == 422
    assert said in unescape(answer.text)


@pytest.mark.parametrize("name", ["half", "live"])
def test_a_run_that_is_not_whole_is_shown_with_sentences(
    client: TestClient, name: str
) -> None:
    assert client.get(f"/run/{name}").status_code == 200
    for place in ("queries", "query?item=x", "try", "picture?item=x"):
        answer = client.get(f"/run/{name}/{place}")
        assert answer.status_code in (200, 404, 422)
        assert "Traceback" not in answer.text
        if answer.status_code != 200:
            assert len(sentence(answer.text)) > 20


@pytest.mark.parametrize(
    "name",
    ["%2e%2e", "..%2f..%2fetc", "notes", "first%2f..%2fsecond", "%00", ".hidden"],
)
def test_only_runs_of_the_list_are_opened(client: TestClient, name: str) -> None:
    for place in ("", "/queries", "/live.json"):
        assert client.get(f"/run/{name}{place}").status_code == 404
    assert client.get("/assets/..%2fview.py").status_code == 404
    assert client.get("/assets/view.py").status_code == 404


@pytest.mark.slow
def test_hostile_texts_are_text(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = root / HOSTILE.replace("/", "")
    shutil.copytree(runs / "first", folder)
    old = read_predictions(folder / "predictions.parquet")
    made = Results([ItemId(HOSTILE), *old.items[1:]], old.images)
    nasty = (HOSTILE, "é" * 10_000, "\u202eright to left", "😀")
    for arm, shots, draw in old:
        rows = []
        for row, (item, own) in enumerate(zip(made.items, draw, strict=True)):
            demos = (ItemId(HOSTILE), *own.demos[1:]) if own.demos else ()
            rows.append(Prediction(item, demos, nasty[row % 4], own.accuracy))
        made.add(arm, shots, rows)
    write_predictions(made, folder / "predictions.parquet")
    found = {"findings": [{"code": HOSTILE, "title": "\ud800" + HOSTILE}]}
    (folder / "findings.json").write_text(json.dumps(found))
    client, name = client_of(root), folder.name
    for place in (
        "",
        "/queries",
        f"/query?item={HOSTILE}",
        "/try",
        f"/queries?q={HOSTILE}",
    ):
        text = client.get(f"/run/{name}{place}").text
        assert "Lever-Plus" in text
        assert "<script>d" not in text
    assert "<script>d" not in client.get("/", params={"q": HOSTILE}).text
    asked = {"run": HOSTILE, "baseline": HOSTILE}
    assert "<script>d" not in client.get("/compare", params=asked).text


def test_what_nobody_foresaw_is_a_sentence_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("leverplus.web.view.run_values", broken)
    answer = client.get("/run/first")
    assert answer.status_code == 500
    assert "Something went wrong here (RuntimeError)" in answer.text
    assert "secret detail" not in answer.text


def test_every_control_is_labelled_and_every_picture_described(
    client: TestClient,
) -> None:
    for place in ("/", "/compare?run=first", "/run/first/queries", "/run/first/try"):
        text = client.get(place).text
        for control in re.finditer(r"<(?:input|select)[^>]*>", text):
            before = text[: control.start()]
            inside = before.rfind("<label") > before.rfind("</label")
            assert inside or "aria-label=" in control[0], control[0]
        for picture in re.findall(r"<img[^>]*>", text):
            assert "alt=" in picture
