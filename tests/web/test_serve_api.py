"""The JSON API: the shapes of the contract, and one clear sentence for everything else."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served import BROKEN, COLOURS, SLOW, client_of, data_url, make_bundle, png
from starlette.exceptions import HTTPException

from leverplus.bundle.selector import Selector
from leverplus.web.service import WorkQueue

ASKED = "word3 thing4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mine")


@pytest.fixture
def client(folder: Path) -> TestClient:
    return client_of(folder)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A service over a bundle with pictures, which chooses by them."""
    place = tmp_path_factory.mktemp("seeing") / "b"
    return client_of(make_bundle(place, pictures=True, arm="nearest_image"))


def said(answer) -> str:
    return answer.json()["error"]["message"]


def test_select_answers_what_the_selector_chooses_in_the_shape_of_the_contract(
    folder: Path, client: TestClient
) -> None:
    found = client.post("/select", json={"question": ASKED, "shots": 3}).json()
    selector = Selector.load(folder)
    expected = []
    for one in selector.select(question=ASKED, shots=3):
        row = {"id": one.id, "question": one.question, "answer": one.answer}
        expected.append(row)
    assert set(found) == {"demos", "fingerprint", "ms"}
    assert found["demos"] == expected
    assert found["fingerprint"] == selector.fingerprint
    assert found["ms"] > 0


def test_shots_allowed_explain_and_vectors_do_what_they_do_in_python(
    folder: Path, client: TestClient
) -> None:
    selector = Selector.load(folder)
    vector = [0.0] * 15 + [1.0]
    for asked in (
        {},
        {"shots": 0},
        {"allowed": ["d5", "d7", "gone"], "shots": 4},
        {"vectors": {"text": vector}},
    ):
        found = client.post("/select", json={"question": ASKED, **asked}).json()
        chosen = selector.select(question=ASKED, **asked)
        assert [demo["id"] for demo in found["demos"]] == [one.id for one in chosen]
    asked = {"question": ASKED, "explain": True}
    explained = client.post("/select", json=asked).json()["explanation"]
    assert explained == selector.select(**asked).explanation


def test_a_picture_is_a_data_url_or_base64_and_comes_back_as_a_data_url(
    seeing: TestClient,
) -> None:
    content = png(COLOURS[2])
    for image in (data_url(content), base64.b64encode(content).decode()):
        asked = {"question": "x", "image": image, "shots": 2}
        demos = seeing.post("/select", json=asked).json()["demos"]
        assert [int(demo["id"][1:]) % 4 for demo in demos] == [2, 2]
        assert all(demo["image"].startswith("data:image/png;base64,") for demo in demos)
    without = seeing.post("/select", json={**asked, "images": False}).json()
    assert not any("image" in demo for demo in without["demos"])


def test_many_are_chosen_as_one_by_one_with_shared_options(client: TestClient) -> None:
    queries: list[dict[str, object]] = [{"question": f"word{n}"} for n in range(5)]
    queries.append({"question": "word9", "shots": 1})
    found = client.post("/select_many", json={"queries": queries, "shots": 3}).json()
    for row, query in zip(found["results"], queries, strict=True):
        alone = client.post("/select", json={"shots": 3, **query}).json()
        assert row["demos"] == alone["demos"]
    assert len(found["results"][-1]["demos"]) == 1
    body = {"queries": [{"question": "a"}, {"question": " "}]}
    wrong = client.post("/select_many", json=body)
    assert wrong.status_code == 422
    assert said(wrong) == "query 1: the question is empty; give a text"
    many = client.post("/select_many", json={"queries": [{"question": "a"}] * 257})
    assert many.status_code == 422


def test_an_added_demonstration_is_chosen_at_once_and_a_deleted_one_never_again(
    folder: Path, client: TestClient
) -> None:
    before = client.get("/info").json()
    new = {"demos": [{"question": "zebra stripes", "answer": "black", "id": "a/b ?#ü"}]}
    added = client.post("/demos", json=new).json()
    assert added["ids"] == ["a/b ?#ü"]
    assert added["count"] == before["count"] + 1
    assert added["fingerprint"] != before["fingerprint"]
    asked = {"question": "zebra stripes", "shots": 1}
    assert client.post("/select", json=asked).json()["demos"][0]["answer"] == "black"
    assert Selector.load(folder).select(**asked)[0].id == "a/b ?#ü"
    assert client.post("/demos", json=new).status_code == 409
    place = "/demos/a%2Fb%20%3F%23%C3%BC"
    assert client.delete(place).json()["fingerprint"] == before["fingerprint"]
    assert client.delete(place).status_code == 404
    alone = client.post("/demos", json={"question": "one alone", "answer": "yes"})
    assert alone.json()["ids"][0].startswith("demo-")


def test_a_path_is_never_read_as_a_picture(client: TestClient, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(COLOURS[0]))
    for image in (
        str(secret),
        f"file://{secret}",
        "http://127.0.0.1:1/x.png",
        "data:image/png," + str(secret),
    ):
        body = {"question": "x", "image": image}
        assert client.post("/select", json=body).status_code == 422, image
        added = client.post("/demos", json={**body, "answer": "y"})
        assert added.status_code == 422, image
    assert client.get("/info").json()["count"] == 40


BAD = {
    "no JSON": (b"{question: 1", 400, "JSON"),
    "empty": (b"", 422, "Field required"),
    "nested deeply": (b'{"question": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, ""),
    "a long number": (b'{"shots": ' + b"9" * 9000 + b"}", 400, ""),
    "half a character": (b'{"question": "\\ud800"}', 422, "half of a character"),
    "no Unicode": (b'{"question": "\xff"}', 400, ""),
    "a list": (b"[1]", 422, "dictionary"),
    "no question": (b"{}", 422, "question: Field required"),
    "a number": (b'{"question": 7}', 422, "question: Input should be a valid string"),
    "an unknown key": (b'{"question": "a", "shot": 2}', 422, "shot: Extra inputs"),
    "too many shots": (b'{"question": "a", "shots": 65}', 422, "0 to 64"),
    "negative shots": (b'{"question": "a", "shots": -1}', 422, "0 to 64"),
    "true as shots": (b'{"question": "a", "shots": true}', 422, "shots"),
    "blanks": (b'{"question": "  "}', 422, "the question is empty"),
    "no base64": (b'{"question": "a", "image": "%%%"}', 422, "base64"),
    "no picture": (b'{"question": "a", "image": "aGFsbG8="}', 422, "not a picture"),
    "another width": (b'{"question": "a", "vectors": {"text": [1.0]}}', 422, "16 numb"),
    "no number": (b'{"question": "a", "vectors": {"text": [NaN]}}', 422, "numbers"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_is_wrong_is_a_4xx_with_a_sentence(
    client: TestClient, what: str
) -> None:
    body, status, words = BAD[what]
    kind = {"content-type": "application/json"}
    answer = client.post("/select", content=body, headers=kind)
    assert answer.status_code == status, answer.text
    assert words in said(answer)
    assert "Traceback" not in answer.text


def test_unknown_routes_and_methods_are_json_too(client: TestClient) -> None:
    assert "nothing at this address" in said(client.get("/nothing"))
    assert client.get("/select").status_code == 405
    redirected = client.post("/select/", json={"question": "a"})
    assert redirected.status_code == 404
    assert client.get("/v1/models").status_code == 404, "there is no upstream"
    assert client.get("/assets/..%2fserve.py").status_code == 404


def test_a_read_only_service_changes_nothing(folder: Path) -> None:
    client = client_of(folder, read_only=True)
    new = {"question": "a", "answer": "b"}
    assert client.post("/demos", json=new).status_code == 403
    assert client.delete("/demos/d1").status_code == 403
    info = client.get("/info").json()
    assert (info["writable"], info["count"]) == (False, 40)


@pytest.mark.slow
def test_work_that_takes_too_long_is_given_up(folder: Path) -> None:
    client = client_of(folder, seconds=0.5)
    started = time.monotonic()
    assert client.post("/select", json={"question": SLOW}).status_code == 504
    assert time.monotonic() - started < 1.5
    given = {"question": ASKED, "vectors": {"text": [1.0] * 16}}
    assert client.post("/select", json=given).status_code == 200, "the other thread"


def test_a_fault_of_ours_is_a_500_and_neither_answer_nor_log_repeats_the_question(
    client: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = client.post("/select", json={"question": f"{BROKEN} hunter2"})
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    logged = capfd.readouterr().err
    assert "hunter2" not in logged
    assert json.loads(logged.splitlines()[-1])["error"] == "RuntimeError"
    assert client.post("/select", json={"question": ASKED}).status_code == 200


DESTROYED = {
    "noise": lambda path: path.write_bytes(b"noise" * 4096),
    "cut short": lambda path: os.truncate(path, 4096),
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("how", sorted(DESTROYED))
def test_a_bundle_that_is_destroyed_while_it_serves_is_a_503_until_a_whole_one_stands_there(
    tmp_path: Path, how: str
) -> None:
    folder, spare = make_bundle(tmp_path / "mine"), make_bundle(tmp_path / "spare")
    client = client_of(folder)
    asked = {"question": ASKED, "shots": 2}
    before = client.post("/select", json=asked).json()["demos"]
    DESTROYED[how](folder / "demos.sqlite")
    requests = {
        "/select": asked,
        "/select_many": {"queries": [asked]},
        "/demos": {"question": "one more", "answer": "red"},
    }
    for path, body in requests.items():
        answer = client.post(path, json=body)
        assert answer.status_code == 503, (path, answer.text)
        assert "put a whole copy of the bundle in its place" in said(answer)
        assert str(tmp_path) not in answer.text
        assert answer.headers["retry-after"] == "1"
    assert client.get("/info").status_code == 503
    assert client.delete("/demos/d1").status_code == 503
    assert client.get("/healthz").status_code == 200  # the process answers
    assert client.get("/metrics").status_code == 200
    (spare / "demos.sqlite").replace(folder / "demos.sqlite")
    assert client.post("/select", json=asked).json()["demos"] == before


def test_the_log_holds_one_line_per_request_and_nothing_of_its_content(
    client: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client.post("/select?token=hunter2", json={"question": "my secret question"})
    client.delete("/demos/hunter2")
    client.get("/hunter2")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/select", 200),
        ("DELETE", "/demos/{id:path}", 404),
        ("GET", "other", 404),
    ]
    assert "hunter2" not in str(lines)
    assert "secret" not in str(lines)
    counters = client.get("/metrics").text
    assert "hunter2" not in counters
    assert 'lever_requests_total{route="/select",status="200"}' in counters
    assert "lever_demonstrations 40.0" in counters


def test_the_api_describes_itself_and_every_reference_in_it_resolves(
    client: TestClient,
) -> None:
    described = client.get("/openapi.json").json()
    paths = {"/select", "/select_many", "/demos", "/demos/{id}", "/info", "/metrics"}
    assert paths | {"/healthz", "/readyz"} <= set(described["paths"])
    text = json.dumps(described)
    assert "$defs" not in text
    names = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert names
    for name in names:
        found = described
        for key in name.removeprefix("#/").split("/"):
            found = found[key]
    body = described["components"]["schemas"]["SelectQuery"]
    assert body["required"] == ["question"]


def test_slow_work_keeps_its_place_and_waiting_work_is_never_begun() -> None:
    begun: list[str] = []
    queue = WorkQueue(1, 1)
    hold = threading.Event()

    def slow(_: float) -> str:
        begun.append("slow")
        hold.wait(10)
        return "done"

    async def scene() -> None:
        first = asyncio.create_task(queue.run(slow, 0.3))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(queue.run(lambda _: begun.append("second"), 0.1))
        await asyncio.sleep(0.02)
        with pytest.raises(HTTPException) as full:
            await queue.run(lambda _: None, 1.0)
        assert full.value.status_code == 503
        assert full.value.headers == {"retry-after": "1"}
        for late in (second, first):
            with pytest.raises(HTTPException) as given_up:
                await late
            assert given_up.value.status_code == 504
        assert queue.under_way == 2, "the slow one still has its thread"
        hold.set()
        deadline = time.monotonic() + 5
        while queue.under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert await queue.run(lambda until: until > time.monotonic(), 1.0)

    asyncio.run(scene())
    queue.close()
    assert begun == ["slow"], "what nobody waits for is not begun"
