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

from leverplus.evaluation.predictions import Prediction, Results, read_predictions, write_predictions
from leverplus.evaluation.runs import compare_runs, read_evaluated
from leverplus.experiment.opening import load_run
from leverplus.types import ItemId

HOSTILE = "<script>document.documentElement.dataset.pwned='1'</script>"


def test_the_list_shows_every_run_with_its_numbers_and_state(client: TestClient, runs: Path) -> None:
    (runs / "live" / "log.jsonl").touch()  # a run is training while its files change, and these were made long ago
    text = client.get("/").text
    assert re.findall(r'<a href="/run/([^"]+)"', text) == ["elsewhere", "first", "half", "live", "newer", "second"]
    report = json.loads((runs / "first" / "eval.json").read_text())
    row = text.split('href="/run/first"')[1].split("</tr>")[0]
    assert f'<td data-label="n">{report["n"]}</td>' in row
    assert f'<td data-label="Learned">{100 * report["arms"]["learned"]["mean"]:.1f}</td>' in row
    assert "finished" in row
    assert "training" in text.split('href="/run/live"')[1].split("</tr>")[0]


def test_the_list_is_filtered_by_words_and_state(client: TestClient) -> None:
    assert re.findall(r'<a href="/run/([^"]+)"', client.get("/?q=SEC").text) == ["second"]
    assert "live" not in re.findall(r'<a href="/run/([^"]+)"', client.get("/?state=finished").text)
    assert "No run fits." in client.get("/?q=nowhere").text


def test_a_run_has_its_verdict_curves_and_findings(client: TestClient, runs: Path) -> None:
    text = unescape(client.get("/run/first").text)
    assert "learned selector" in text
    assert 'data-figure="curve-loss"' in text
    assert "view.js" not in text, "a finished run is not asked again and again"
    for finding in json.loads((runs / "first" / "findings.json").read_text())["findings"]:
        assert finding["code"] in text
    report = client.get("/run/first/report")
    assert "Lever-Plus report" in report.text
    assert "sandbox" in report.headers["content-security-policy"]


def test_a_live_run_is_followed_epoch_by_epoch(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "live", tmp_path / "runs" / "live")
    (tmp_path / "runs" / "live" / "log.jsonl").touch()
    client = client_of(tmp_path / "runs")
    assert 'data-live="/run/live/live.json"' in client.get("/run/live").text
    before = client.get("/run/live/live.json").json()
    assert (before["state"], before["epochs"]) == ("training", 1)
    shutil.copy(runs / "first" / "log.jsonl", tmp_path / "runs" / "live")
    after = client.get("/run/live/live.json").json()
    assert after["epochs"] == len((runs / "first" / "log.jsonl").read_text().splitlines())
    assert len(after["figures"]["curve-loss"]["data"][0]["x"]) > len(before["figures"]["curve-loss"]["data"][0]["x"])
    shutil.copy(runs / "first" / "eval.json", tmp_path / "runs" / "live")
    assert client.get("/run/live/live.json").json()["state"] == "finished"


def test_runs_are_compared_by_the_same_numbers_as_on_the_command_line(client: TestClient, runs: Path) -> None:
    answer = client.get("/compare", params={"run": ["first", "second"]})
    expected = compare_runs([read_evaluated(runs / name, lambda _: ()) for name in ("first", "second")])
    cells = re.findall(r"<td>([+-][\d.]+)</td><td>([+-][\d.]+) to ([+-][\d.]+)</td>", answer.text)
    rows = [(row["diff"], *row["ci95"]) for row in expected["comparisons"]]
    assert cells == [tuple(f"{100 * value:+.1f}" for value in row) for row in rows]
    arm = client.get("/compare", params={"run": ["first"], "baseline": "nearest_both"})
    assert "Differences from nearest_both" in arm.text


def test_runs_on_other_items_are_refused_with_a_sentence(client: TestClient) -> None:
    answer = client.get("/compare", params={"run": ["first", "elsewhere"]})
    assert answer.status_code == 422
    assert "first and elsewhere cannot be compared, because they differ in the items" in answer.text


def test_one_run_may_be_compared_with_any_of_its_arms(client: TestClient) -> None:
    text = client.get("/compare?run=first").text
    assert "Choose two runs or more, or one run and a way of choosing as the baseline." in text
    offered = re.findall(r'<option value="([^"]+)"', text)
    assert {"nearest_both", "random", "zero_shot"} <= set(offered)
    for arm in offered[1:]:
        assert client.get("/compare", params={"run": ["first"], "baseline": arm}).status_code == 200
    assert client.get("/compare?run=half").status_code == 200


def test_seeds_of_one_recipe_are_combined_against_the_best_nearest_arm(runs: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        shutil.copytree(runs / "first", tmp_path / name)
        manifest = json.loads((tmp_path / name / "run.json").read_text())
        (tmp_path / name / "run.json").write_text(json.dumps({**manifest, "seed": seed}))
    answer = client_of(tmp_path).get("/compare?run=a&run=b")
    assert answer.status_code == 200
    assert "Differences from nearest" in answer.text
    assert "<td>0, 1</td>" in answer.text


def test_queries_are_filtered_searched_and_turned(client: TestClient, runs: Path) -> None:
    results = read_predictions(runs / "first" / "predictions.parquet")
    own, other = results.accuracy("learned", 2), results.accuracy("random", 2)
    for fate, wanted in (("helped", own > other), ("harmed", own < other), ("flipped", (own > 0) != (other > 0))):
        text = client.get("/run/first/queries", params={"baseline": "random", "shots": 2, "fate": fate}).text
        ids = [item for item, inside in zip(results.items, wanted, strict=True) if inside]
        assert re.findall(r"query\?item=([\w-]+)&amp;shots=2", text) == ids
    task = load_run(runs / "first").task
    relation = task.item(results.items[0]).meta["relation"]
    text = client.get("/run/first/queries", params={"trait": f"relation={relation}"}).text
    alike = [item for item in results.items if task.item(item).meta["relation"] == relation]
    assert re.findall(r"query\?item=([\w-]+)&amp;", text) == alike
    found = client.get("/run/first/queries", params={"q": task.item(results.items[3]).question.upper()}).text
    assert results.items[3] in found
    assert "0 queries fit" in client.get("/run/first/queries?q=nobodysaidthis").text


def test_any_two_arms_can_be_compared_whatever_the_address_left_open(client: TestClient, runs: Path) -> None:
    """As the form sends it: an arm that shows none stands beside the numbers of shots of the other."""
    results = read_predictions(runs / "first" / "predictions.parquet")
    for arm in results.draws:
        for baseline in results.draws:
            asked = {"arm": arm, "baseline": baseline, "shots": 2, "fate": "helped"}
            answer = client.get("/run/first/queries", params=asked)
            assert answer.status_code == 200, (arm, baseline, sentence(answer.text))
    text = client.get("/run/first/queries", params={**asked, "arm": "zero_shot", "baseline": "random"}).text
    gain = results.accuracy("zero_shot", 0) - results.accuracy("random", 2)
    assert f"zero-shot helped {int((gain > 0).sum())}, harmed {int((gain < 0).sum())} and" in text
    assert "against random at 2 shots" in text


def test_a_query_shows_every_arm_in_order_and_the_choice_step_by_step(client: TestClient, runs: Path) -> None:
    results = read_predictions(runs / "first" / "predictions.parquet")
    text = client.get("/run/first/query", params={"item": results.items[0], "shots": 2}).text
    learned = text.split('class="arm learned"')[1].split('class="answer"')[0]
    assert tuple(re.findall(r'class="card" title="([^"]+)"', learned)) == results.draws["learned"][2][0][0].demos
    assert text.count('data-figure="step-') == 2
    taken = re.findall(r"Step \d: took ([\w-]+) with probability", text)
    assert tuple(taken) == results.draws["learned"][2][0][0].demos
    assert "likeliest lists" in text
    picture = client.get("/run/first/picture", params={"item": results.items[0]})
    with Image.open(io.BytesIO(picture.content)) as image:
        assert image.size == (32, 32)


def test_a_query_of_the_task_is_answered_as_it_was_in_the_evaluation(client: TestClient, runs: Path) -> None:
    results = read_predictions(runs / "first" / "predictions.parquet")
    for row in (0, 4):
        item = results.items[row]
        text = client.post("/run/first/try", data={"item": item, "question": "", "shots": "2"}).text
        answers = re.findall(r'(?:demonstrations|none): <b dir="auto">([^<]+)</b>', text)
        expected = [results.draws[arm][n][0][row].answer for arm, n in (("learned", 2), ("zero_shot", 0))]
        assert answers == expected


def test_a_picture_of_ones_own_is_answered(client: TestClient) -> None:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "orange").save(out, "PNG")
    files = {"image": ("mine.png", out.getvalue(), "image/png")}
    answer = client.post("/run/first/try", data={"question": "what does it fear", "shots": "3"}, files=files)
    assert answer.status_code == 200
    assert re.search(r'demonstrations: <b dir="auto">\w', answer.text)
    assert answer.text.count('data-figure="step-') == 3


@pytest.mark.parametrize(
    ("data", "upload", "said"),
    [
        ({"question": "what is it"}, b"<svg onload=alert(1)>", "is not a picture"),
        ({"question": ""}, None, "choose a query of the task or a picture"),
        ({"item": "no-such-item"}, None, "no-such-item"),
        ({"item": "test-0002-a", "shots": "99"}, None, "chooses 1 to 8 demonstrations, not 99"),
        ({"item": "test-0002-a", "question": "why " * 600}, None, "at most 2,000 are taken"),
    ],
)
def test_what_cannot_be_tried_is_said_in_a_sentence(client: TestClient, data, upload, said) -> None:
    files = {"image": ("x.png", upload)} if upload else None
    answer = client.post("/run/first/try", data=data, files=files)
    assert answer.status_code == 422
    assert said in unescape(answer.text)


@pytest.mark.parametrize("name", ["half", "newer", "live"])
def test_a_run_that_is_not_whole_is_shown_with_sentences(client: TestClient, name: str) -> None:
    assert client.get(f"/run/{name}").status_code == 200
    for place in ("queries", "query?item=x", "try", "report", "picture?item=x"):
        answer = client.get(f"/run/{name}/{place}")
        assert answer.status_code in (200, 404, 422)
        assert "Traceback" not in answer.text
        if answer.status_code != 200:
            assert len(sentence(answer.text)) > 20


def test_a_run_of_a_newer_version_says_so(client: TestClient) -> None:
    for place in ("", "/try"):
        assert "was made by leverplus 9.1.0" in client.get(f"/run/newer{place}").text
    assert "eval.json is not of a form this version knows" in client.get("/run/newer").text


@pytest.mark.parametrize("name", ["%2e%2e", "..%2f..%2fetc", "notes", "first%2f..%2fsecond", "%00", ".hidden"])
def test_only_runs_of_the_list_are_opened(client: TestClient, name: str) -> None:
    for place in ("", "/report", "/queries", "/live.json"):
        assert client.get(f"/run/{name}{place}").status_code == 404
    assert client.get("/assets/..%2fapp.py").status_code == 404
    assert client.get("/assets/app.py").status_code == 404


def test_hostile_texts_are_text(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = root / HOSTILE.replace("/", "")
    shutil.copytree(runs / "first", folder)
    old = read_predictions(folder / "predictions.parquet")
    made = Results([ItemId(HOSTILE), *old.items[1:]], old.images)
    nasty = (HOSTILE, "é" * 10_000, "\u202eright to left", "😀")
    for arm, shots, draw in old:
        rows = [
            Prediction(item, (ItemId(HOSTILE), *own.demos[1:]) if own.demos else (), nasty[row % 4], own.accuracy)
            for row, (item, own) in enumerate(zip(made.items, draw, strict=True))
        ]
        made.add(arm, shots, rows)
    write_predictions(made, folder / "predictions.parquet")
    (folder / "findings.json").write_text(json.dumps({"findings": [{"code": HOSTILE, "title": "\ud800" + HOSTILE}]}))
    client = client_of(root)
    name = folder.name
    for place in ("", "/queries", f"/query?item={HOSTILE}", "/try", f"/queries?q={HOSTILE}&trait={HOSTILE}={HOSTILE}"):
        text = client.get(f"/run/{name}{place}").text
        assert "Lever-Plus" in text
        assert "<script>d" not in text
    assert "<script>d" not in client.get("/", params={"q": HOSTILE}).text
    assert "<script>d" not in client.get("/compare", params={"run": HOSTILE, "baseline": HOSTILE}).text


def test_what_nobody_foresaw_is_a_sentence_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("leverplus.view.app.read_files", broken)
    answer = client.get("/run/first")
    assert answer.status_code == 500
    assert "Something went wrong here (RuntimeError)" in answer.text
    assert "secret detail" not in answer.text


def test_every_control_is_labelled_and_every_picture_described(client: TestClient) -> None:
    for place in ("/", "/compare?run=first&run=second", "/run/first/queries", "/run/first/try"):
        text = client.get(place).text
        for control in re.finditer(r"<(?:input|select)[^>]*>", text):
            before = text[: control.start()]
            labelled = before.rfind("<label") > before.rfind("</label") or "aria-label=" in control[0]
            assert labelled, control[0]
        assert all('alt="' in picture for picture in re.findall(r"<img[^>]*>", text))
        assert '<html lang="en">' in text
