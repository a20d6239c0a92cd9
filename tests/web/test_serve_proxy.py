"""The proxy under OpenAI's own client: demonstrations go in, everything else passes untouched, no call fails by us."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from listening import Listening, Noted, counted, listening, upstream
from served import BROKEN, COLOURS, SLOW, data_url, make_bundle, png

from leverplus.arms.fixed import Fixed
from leverplus.bundle.selector import Selector
from leverplus.web.proxy import NoChat, listed, read_chat

openai = pytest.importorskip(
    "openai", reason="openai not installed; pip install -e .[dev]"
)
KEY = "sk-the-clients-own-key"
ASKED = "word3 thing4"


@pytest.fixture(scope="module")
def behind() -> Iterator[Noted]:
    with upstream() as noted:
        yield noted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("proxy") / "b"
    return make_bundle(place, pictures=True, arm="nearest_image")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("proxy") / "texts")


@pytest.fixture(scope="module")
def proxy(behind: Noted, texts: Path) -> Iterator[Listening]:
    with listening(texts, upstream=behind.url, deadline_ms=800) as running:
        yield running


@pytest.fixture
def client(proxy: Listening) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{proxy.address}/v1", api_key=KEY, max_retries=0, timeout=60
    ) as made:
        yield made


def ask(client, question: str = ASKED, **more):
    before = more.pop("before", [{"role": "system", "content": "Be short."}])
    messages = [*before, {"role": "user", "content": question}]
    return client.chat.completions.with_raw_response.create(
        model="m", messages=messages, **more
    )


def test_a_chat_gets_the_chosen_demonstrations_between_the_system_and_the_last_user_turn(
    client, behind, texts
) -> None:
    raw = ask(client)
    chosen = Selector.load(texts).select(question=ASKED)
    assert raw.parse().choices[0].message.content == "answer after 6 messages"
    assert raw.headers["x-lever-demos"] == ",".join(demo.id for demo in chosen)
    assert raw.headers["x-lever-fingerprint"] == Selector.load(texts).fingerprint
    assert raw.headers["x-upstream"] == "own header"
    turns = [
        turn
        for demo in chosen
        for turn in (
            {"role": "user", "content": demo.question},
            {"role": "assistant", "content": demo.answer},
        )
    ]
    assert behind.last["messages"] == [
        {"role": "system", "content": "Be short."}, *turns, {"role": "user", "content": ASKED},
    ]  # fmt: skip
    path, headers, _ = behind.asked[-1]
    assert path == "/api/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}", "the client's key"
    assert headers["host"] == behind.url.split("/")[2]


@pytest.mark.slow
def test_the_same_fixed_demonstrations_give_the_same_first_bytes(
    behind, tmp_path
) -> None:
    """What an upstream's prefix cache needs."""
    fixed = make_bundle(tmp_path / "fixed", arm=Fixed({2: [1, 2]}))
    with listening(fixed, upstream=behind.url) as running:
        own = openai.OpenAI(
            base_url=f"{running.address}/v1", api_key=KEY, max_retries=0
        )
        with own:
            ask(own, "one question")
            first = behind.asked[-1][2]
            ask(own, "quite another")
            second = behind.asked[-1][2]
    assert first.split(b"one question")[0] == second.split(b"quite another")[0]
    assert b"word1 thing1" in first.split(b"one question")[0]


@pytest.mark.slow
def test_streaming_arrives_piece_by_piece(client) -> None:
    arrived, pieces = [], []
    with client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": ASKED}], stream=True
    ) as stream:
        for chunk in stream:
            arrived.append(time.monotonic())
            pieces.append(chunk.choices[0].delta.content)
    assert "".join(pieces) == "answer after 5 messages "
    assert arrived[-1] - arrived[0] > 0.4, "not gathered and sent at the end"


@pytest.mark.slow
def test_a_client_that_goes_away_ends_the_upstreams_work(proxy, behind) -> None:
    behind.gone.clear()
    body = json.dumps(
        {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": "a"}] * 1,
        }
    ).encode()
    asked = urllib.request.Request(
        f"{proxy.address}/v1/chat/completions",
        body,
        {"content-type": "application/json"},
    )
    answer = urllib.request.urlopen(asked, timeout=30)
    answer.read(10)
    answer.close()
    assert behind.gone.wait(10)


@pytest.mark.slow
def test_a_picture_is_looked_at_and_the_demonstrations_bring_theirs(
    behind, folder
) -> None:
    with listening(folder, upstream=behind.url) as running:
        own = openai.OpenAI(
            base_url=f"{running.address}/v1", api_key=KEY, max_retries=0
        )
        with own:
            picture = {
                "type": "image_url",
                "image_url": {"url": data_url(png(COLOURS[1])), "detail": "low"},
            }
            content = [{"type": "text", "text": "which colour"}, picture]
            raw = own.chat.completions.with_raw_response.create(
                model="m", messages=[{"role": "user", "content": content}]
            )
    assert raw.parse().choices[0].message.content == "green"
    assert [int(name[1:]) % 4 for name in raw.headers["x-lever-demos"].split(",")] == [
        1,
        1,
    ]
    shown, answered, *_, last = behind.last["messages"]
    assert shown["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert answered["role"] == "assistant"
    assert last["content"] == content, "the query's own turn is as it was"


def test_a_picture_counts_where_the_bundle_keeps_no_vectors_of_pictures(
    behind: Noted, tmp_path: Path
) -> None:
    place = make_bundle(tmp_path / "b", pictures=True, arm="random")
    selector = Selector.load(place)
    assert "image" not in selector.source.corpus.blocks
    lists = []
    with listening(place, upstream=behind.url) as running:
        for colour in COLOURS:
            url = data_url(png(colour))
            part = {"type": "image_url", "image_url": {"url": url}}
            content = [{"type": "text", "text": ASKED}, part]
            body = {"model": "m", "messages": [{"role": "user", "content": content}]}
            asked = urllib.request.Request(
                f"{running.address}/v1/chat/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=30) as answer:
                lists.append(answer.headers["x-lever-demos"])
            chosen = selector.select(question=ASKED, image=url)
            assert lists[-1] == ",".join(demo.id for demo in chosen)
    assert len(set(lists)) > 1, "the draw goes by the pixels, too"


UNTOUCHED = (
    b'{"model":"m", "temperature":1e-7,\n "big": 123456789012345678901234567890, "x": 2.50, '
    b'"tools": [{"type":"function","function":{"name":"f\\u00e4","parameters":{"z":1,"a":{}}}}], '
    b'"messages" : [ {"role":"user","content":"\\u00fc word3", "extra": [1,2 , 3]} ] , "unknown": {"deep": [null]}}'
)


def test_everything_but_the_new_turns_is_passed_on_as_it_was(proxy, behind) -> None:
    asked = urllib.request.Request(
        f"{proxy.address}/v1/chat/completions?beta=1",
        UNTOUCHED,
        {"content-type": "application/json", "x-own": "kept"},
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.headers["x-lever-demos"]
        assert len(answer.headers.get_all("date")) == 1
    path, headers, body = behind.asked[-1]
    assert path == "/api/chat/completions?beta=1"
    assert headers["x-own"] == "kept"
    sent, passed = json.loads(UNTOUCHED), json.loads(body)
    *_, last = passed["messages"]
    assert (len(passed["messages"]), last) == (5, sent["messages"][0])
    assert list(passed) == list(sent)
    assert {**passed, "messages": sent["messages"]} == sent


SAME = {
    "an assistant has spoken": (
        {"before": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, {}, "conversation",
    ),
    "the client wants none": ({}, {"x-lever-shots": "0"}, "off"),
    "the selector fails": ({"question": BROKEN}, {}, "error"),
    "the selector is too slow": ({"question": SLOW}, {}, "deadline"),
    "a number of shots that is none": ({}, {"x-lever-shots": "many"}, "error"),
    "a filter that is none": ({}, {"x-lever-filter": "shop 1"}, "error"),
    "an empty filter": ({}, {"x-lever-filter": ""}, "error"),
    "an empty question": ({"question": " "}, {}, "error"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("why", SAME)
def test_where_nothing_is_chosen_the_request_passes_as_it_came_and_is_counted(
    client, proxy, behind, why
) -> None:
    said, headers, outcome = SAME[why]
    before = counted("lever_proxy_chats_total", outcome=outcome)
    raw = ask(client, **said, extra_headers=headers)
    messages = len(said.get("before", [0])) + 1
    assert raw.parse().choices[0].message.content == f"answer after {messages} messages"
    assert raw.headers["x-lever-unchanged"] == outcome
    assert "x-lever-demos" not in raw.headers
    assert not any(name.startswith("x-lever") for name in behind.asked[-1][1])
    assert counted("lever_proxy_chats_total", outcome=outcome) == before + 1
    if why == "the selector is too slow":
        time.sleep(2.0)  # it still holds the embedder


@pytest.mark.slow
def test_a_full_queue_passes_chats_on_unchanged(behind, texts) -> None:
    with listening(
        texts, upstream=behind.url, threads=1, queue=0, deadline_ms=100
    ) as running:
        own = openai.OpenAI(
            base_url=f"{running.address}/v1", api_key=KEY, max_retries=0
        )
        with own:
            assert ask(own, SLOW).headers["x-lever-unchanged"] == "deadline"
            assert ask(own).headers["x-lever-unchanged"] == "busy", (
                "the thread is still at work"
            )


def test_a_longer_prompt_that_the_upstream_refuses_is_sent_again_as_it_came(
    client, proxy, behind
) -> None:
    behind.most_messages = 3
    try:
        raw = ask(client)
    finally:
        behind.most_messages = 1000
    assert raw.parse().choices[0].message.content == "answer after 2 messages"
    assert raw.headers["x-lever-unchanged"] == "refused"


def test_the_client_says_how_many_demonstrations_it_wants(client) -> None:
    assert (
        len(
            ask(client, extra_headers={"x-lever-shots": "5"})
            .headers["x-lever-demos"]
            .split(",")
        )
        == 5
    )


def allowed_by(proxy, *filters: str) -> list[int]:
    """Rows of the demonstrations that a chat with these headers was shown."""
    headers = [("x-lever-shots", "8"), *(("x-lever-filter", one) for one in filters)]
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": ASKED}]}
    ).encode()
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    connection.putrequest("POST", "/v1/chat/completions")
    for name, value in [
        *headers,
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
    ]:
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert "x-lever-unchanged" not in answer.headers
    return [
        int(name[1:]) for name in answer.headers["x-lever-demos"].split(",") if name
    ]


@pytest.mark.slow
def test_a_filter_by_metadata_is_exact_and_can_only_be_narrowed(proxy, behind) -> None:
    assert {row % 3 for row in allowed_by(proxy, "tenant=shop%201")} == {1}
    assert {
        row % 3 for row in allowed_by(proxy, "tenant=shop%201&tenant=shop%202")
    } == {1, 2}
    both = allowed_by(proxy, "tenant=shop%201&split=c%26d%3De")
    assert both
    assert all(row % 3 == 1 and row % 2 == 1 for row in both)
    assert {row % 2 for row in allowed_by(proxy, "split=a%2Cb")} == {0}
    assert sorted(allowed_by(proxy, "id=d3&id=d7&id=nobody")) == [3, 7]
    assert allowed_by(proxy, "tenant=shop%201", "tenant=shop%202") == [], (
        "two headers must both hold"
    )
    assert allowed_by(proxy, "tenant=shop%201, tenant=shop%202") == [], (
        "and so they must where a server joined them"
    )
    assert allowed_by(proxy, "owner=shop%201") == [], "what lacks the key is not shown"
    assert len(behind.last["messages"]) == 1
    assert not any(name.startswith("x-lever") for name in behind.asked[-1][1])


def test_what_is_no_chat_reaches_the_upstream_which_says_so(proxy, behind) -> None:
    for body in (
        b"{",
        b"[]",
        b'{"messages": 1}',
        b'{"messages": [], "messages": [1]}',
        b"\xff",
        b"",
    ):
        asked = urllib.request.Request(
            f"{proxy.address}/v1/chat/completions", body, {"content-type": "x/y"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=30)
        assert refused.value.code == 400
        refused.value.close()
        assert behind.asked[-1][2] == body


def test_other_paths_pass_through(client, proxy, behind) -> None:
    assert [model.id for model in client.models.list()] == ["stand-in"]
    asked = urllib.request.Request(
        f"{proxy.address}/v1/embeddings", b"raw \x00 bytes", {"content-type": "x/y"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.read() == b"raw \x00 bytes"
        assert answer.headers["content-type"] == "application/x-echo"
    assert behind.asked[-1][0] == "/api/embeddings"


def test_no_redirect_of_the_upstream_is_followed(proxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    connection.request("GET", "/v1/redirect")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["location"]) == (
        307,
        "http://127.0.0.1:1/elsewhere",
    )
    connection.close()


@pytest.mark.slow
def test_an_upstream_that_is_not_there_is_a_502_in_the_clients_own_form(texts) -> None:
    before = counted("lever_upstream_failures_total")
    with listening(texts, upstream="http://127.0.0.1:1/v1") as running:
        own = openai.OpenAI(
            base_url=f"{running.address}/v1", api_key=KEY, max_retries=0
        )
        with (
            own,
            pytest.raises(
                openai.InternalServerError, match="upstream cannot be reached"
            ),
        ):
            ask(own)
        assert counted("lever_upstream_failures_total") == before + 1


@pytest.mark.slow
def test_our_token_opens_the_proxy_and_is_not_given_to_the_upstream(
    behind, texts, monkeypatch, capfd
) -> None:
    monkeypatch.setenv("LEVER_TOKEN", "a-token-of-some-length")
    with listening(texts, upstream=behind.url) as running:
        url = f"{running.address}/v1"
        with (
            openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            ask(stranger)
        headers = {"x-lever-token": "a-token-of-some-length"}
        with openai.OpenAI(
            base_url=url, api_key=KEY, max_retries=0, default_headers=headers
        ) as known:
            ask(known)
        assert behind.asked[-1][1]["authorization"] == f"Bearer {KEY}"
        with openai.OpenAI(
            base_url=url, api_key="a-token-of-some-length", max_retries=0
        ) as alone:
            ask(alone)
        assert "authorization" not in behind.asked[-1][1]
        assert "a-token-of-some-length" not in str(behind.asked)
    said = capfd.readouterr()
    assert KEY not in said.out + said.err
    assert "a-token" not in said.out + said.err


def test_ids_in_the_header_are_encoded_and_cut_between_ids() -> None:
    assert listed(["a,b", "ü\r\nx: y"]) == b"a%2Cb,%C3%BC%0D%0Ax%3A%20y"
    assert len(listed(["x" * 1500] * 4)) == 2 * 1500 + 1
    assert listed(["x" * 10**6]) == b""


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"messages": []}', '{"messages": [1]}', '{"messages": [{}],}',
        '{"messages": [{"role": "user"}]} x', '{1: 2}', '{"messages": {"role": "user"}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_text_that_is_no_chat_is_known_as_none(text: str) -> None:
    with pytest.raises(NoChat):
        read_chat(text.encode())
