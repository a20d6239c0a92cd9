"""The JSON API: the shapes of the contract, and one clear sentence for everything else."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served import BROKEN, COLOURS, SLOW, client_of, data_url, make_bundle, png

from leverplus.selector.selector import Selector
from leverplus.serve.served import LOOK_SECONDS

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
    bundle = make_bundle(tmp_path_factory.mktemp("seeing") / "b", pictures=True, arm="nearest_image", text_weight=0.0)
    return client_of(bundle)


def said(answer) -> str:
    return answer.json()["error"]["message"]


def test_select_answers_what_the_selector_chooses_in_the_shape_of_the_contract(folder: Path, client) -> None:
    found = client.post("/select", json={"question": ASKED, "shots": 3}).json()
    expected = Selector.load(folder).select(question=ASKED, shots=3)
    assert set(found) == {"demos", "fingerprint", "ms"}
    assert found["demos"] == [{"id": one.id, "question": one.question, "answer": one.answer} for one in expected]
    assert found["fingerprint"] == Selector.load(folder).fingerprint
    assert found["ms"] > 0


def test_shots_allowed_explain_and_vectors_do_what_they_do_in_python(folder: Path, client) -> None:
    def ids(**body: object) -> list[str]:
        return [demo["id"] for demo in client.post("/select", json={"question": ASKED, **body}).json()["demos"]]

    selector = Selector.load(folder)
    assert ids() == [one.id for one in selector.select(question=ASKED)]
    assert ids(shots=0) == []
    assert ids(allowed=["d5", "d7", "gone"], shots=4) == [
        one.id for one in selector.select(question=ASKED, allowed=["d5", "d7"], shots=4)
    ]
    vector = [0.0] * 15 + [1.0]
    assert ids(vectors={"text": vector}) == [
        one.id for one in selector.select(question=ASKED, vectors={"text": vector})
    ]
    explained = client.post("/select", json={"question": ASKED, "explain": True}).json()["explanation"]
    assert explained == selector.select(question=ASKED, explain=True).explanation


def test_a_picture_is_a_data_url_or_base64_and_comes_back_as_a_data_url(seeing) -> None:
    for image in (data_url(png(COLOURS[2])), base64.b64encode(png(COLOURS[2])).decode()):
        demos = seeing.post("/select", json={"question": "x", "image": image, "shots": 2}).json()["demos"]
        assert [int(demo["id"][1:]) % 4 for demo in demos] == [2, 2]
        assert all(demo["image"].startswith("data:image/png;base64,") for demo in demos)
    without = seeing.post("/select", json={"question": "x", "image": image, "images": False}).json()
    assert not any("image" in demo for demo in without["demos"])


def test_many_are_chosen_as_one_by_one_with_shared_options(client) -> None:
    queries = [{"question": f"word{row}"} for row in range(5)] + [{"question": "word9", "shots": 1}]
    found = client.post("/select_many", json={"queries": queries, "shots": 3}).json()
    alone = [client.post("/select", json={"shots": 3, **query}).json()["demos"] for query in queries]
    assert [row["demos"] for row in found["results"]] == alone
    assert len(found["results"][-1]["demos"]) == 1
    wrong = client.post("/select_many", json={"queries": [{"question": "a"}, {"question": " "}]})
    assert wrong.status_code == 422
    assert said(wrong) == "query 1: the question is empty; give a text"


def test_an_added_demonstration_is_chosen_at_once_and_a_deleted_one_never_again(folder: Path, client) -> None:
    before = client.get("/info").json()
    new = {"demos": [{"question": "zebra stripes", "answer": "black", "id": "a/b ?#ü"}]}
    added = client.post("/demos", json=new).json()
    assert added["ids"] == ["a/b ?#ü"]
    assert added["count"] == before["count"] + 1
    assert added["fingerprint"] != before["fingerprint"]
    chosen = client.post("/select", json={"question": "zebra stripes", "shots": 1}).json()
    assert chosen["demos"][0]["answer"] == "black"
    assert [one.id for one in Selector.load(folder).select(question="zebra stripes", shots=1)] == ["a/b ?#ü"]
    again = client.post("/demos", json=new)
    assert again.status_code == 409
    gone = client.delete("/demos/a%2Fb%20%3F%23%C3%BC")
    assert gone.json()["fingerprint"] == before["fingerprint"]
    assert client.delete("/demos/a%2Fb%20%3F%23%C3%BC").status_code == 404
    assert client.post("/demos", json={"question": "one alone", "answer": "yes"}).json()["ids"][0].startswith("demo-")


def test_a_path_is_never_read_as_a_picture(client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(COLOURS[0]))
    for image in (str(secret), f"file://{secret}", "http://127.0.0.1:1/x.png", "data:image/png," + str(secret)):
        answer = client.post("/select", json={"question": "x", "image": image})
        assert answer.status_code == 422, image
        added = client.post("/demos", json={"question": "x", "answer": "y", "image": image})
        assert added.status_code == 422, image
    assert client.get("/info").json()["count"] == 40


BAD = {
    "no JSON": (b"{question: 1", 400, "the body is not JSON"),
    "empty": (b"", 400, "it is empty"),
    "nested deeply": (b'{"question": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "nested"),
    "a long number": (b'{"shots": ' + b"9" * 9000 + b"}", 400, "digits"),
    "half a character": (b'{"question": "\\ud800"}', 400, "half of a character"),
    "no Unicode": (b'{"question": "\xff"}', 400, "UTF-8"),
    "a list": (b"[1]", 422, "the body"),
    "no question": (b"{}", 422, "question: Field required"),
    "a number as question": (b'{"question": 7}', 422, "question: Input should be a valid string"),
    "an unknown key": (b'{"question": "a", "shot": 2}', 422, "shot: Extra inputs"),
    "too many shots": (b'{"question": "a", "shots": 65}', 422, "0 to 64"),
    "negative shots": (b'{"question": "a", "shots": -1}', 422, "0 to 64"),
    "true as shots": (b'{"question": "a", "shots": true}', 422, "shots"),
    "blanks": (b'{"question": "  "}', 422, "the question is empty"),
    "no base64": (b'{"question": "a", "image": "%%%"}', 422, "base64"),
    "base64 of no picture": (b'{"question": "a", "image": "aGFsbG8="}', 422, "not a picture"),
    "vectors of another width": (b'{"question": "a", "vectors": {"text": [1.0]}}', 422, "16 numbers"),
    "vectors with no number": (b'{"question": "a", "vectors": {"text": [NaN]}}', 422, "numbers"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_is_wrong_is_a_4xx_with_a_sentence(client, what) -> None:
    body, status, words = BAD[what]
    answer = client.post("/select", content=body)
    assert answer.status_code == status
    assert words in said(answer)
    assert "Traceback" not in answer.text


def test_unknown_routes_and_methods_are_json_too(client) -> None:
    assert client.get("/nothing").status_code == 404
    assert client.get("/select").status_code == 405
    assert client.post("/select/", json={"question": "a"}).status_code == 404, "nothing is redirected"
    assert client.get("/v1/models").status_code == 404, "there is no upstream"
    assert client.get("/assets/..%2fserve.html").status_code == 404


def test_more_queries_than_are_taken_are_refused(client) -> None:
    answer = client.post("/select_many", json={"queries": [{"question": "a"}] * 257})
    assert answer.status_code == 422


def test_a_read_only_service_changes_nothing(folder: Path) -> None:
    client = client_of(folder, read_only=True)
    assert client.post("/demos", json={"question": "a", "answer": "b"}).status_code == 403
    assert client.delete("/demos/d1").status_code == 403
    assert client.get("/info").json()["writable"] is False
    assert client.get("/info").json()["count"] == 40


def test_work_that_takes_too_long_is_given_up(folder: Path) -> None:
    client = client_of(folder, seconds=0.5)
    started = time.monotonic()
    answer = client.post("/select", json={"question": SLOW})
    assert answer.status_code == 504
    assert time.monotonic() - started < 1.5
    given = {"question": ASKED, "vectors": {"text": [1.0] * 16}}
    assert client.post("/select", json=given).status_code == 200, "the other thread is free"


def test_a_fault_of_ours_is_a_500_and_neither_answer_nor_log_repeats_the_question(client, capfd) -> None:
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
    time.sleep(LOOK_SECONDS)
    assert client.post("/select", json=asked).json()["demos"] == before


def test_the_log_holds_one_line_per_request_and_nothing_of_its_content(client, capfd) -> None:
    client.post("/select?token=hunter2", json={"question": "my secret question"})
    client.delete("/demos/hunter2")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/select", 200),
        ("DELETE", "/demos/{id}", 404),
    ]
    assert "hunter2" not in str(lines)
    assert "secret" not in str(lines)


def test_the_api_describes_itself(client) -> None:
    described = client.get("/openapi.json").json()
    assert {"/select", "/select_many", "/demos", "/demos/{name}", "/info", "/metrics", "/healthz"} <= set(
        described["paths"]
    )
    schema = described["paths"]["/select"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "question" in schema["required"]
