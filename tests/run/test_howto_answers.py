"""The how-to pages about answers of every kind: their commands run as they stand, against a stand-in for the server."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from leverplus.cli.main import main
from leverplus.data.rundir import read_json

PAGES = Path(__file__).parents[2] / "docs" / "howto"
ADDRESS = "http://127.0.0.1:8000/v1"
CITIES = ("Lisbon", "Porto", "Ulm", "Bern", "Oslo", "Rome", "Turin", "Nice")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
COUNT = 90

pytestmark = pytest.mark.slow


class StandIn(ThreadingHTTPServer):
    """A chat server that repeats what it is shown for the same question or picture, else the last answer it is shown."""

    daemon_threads = True

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = models
        self.pictures: list[tuple[int, int, int]] = []
        self.systems: set[str] = set()

    def reply(self, model: str, messages: Sequence[Mapping[str, Any]]) -> str:
        if model == "judge":
            return self.verdict(str(messages[-1]["content"]))
        shown: list[tuple[str, tuple[int, ...], str]] = []
        asked = ("", ())
        for message in messages:
            if message["role"] == "system":
                self.systems.add(str(message["content"]))
            elif message["role"] == "assistant":
                shown.append((*asked, str(message["content"])))
            else:
                asked = self.question(message["content"])
        for text, colour, answer in shown:
            if (text, colour) == asked:
                return answer
        if asked[1] and shown:
            return min(shown, key=lambda own: distance(own[1], asked[1]))[2]
        return shown[-1][2] if shown else "I do not know"

    def question(self, content: Any) -> tuple[str, tuple[int, ...]]:
        if isinstance(content, str):
            return content, ()
        (picture,) = [own for own in content if own["type"] == "image_url"]
        (text,) = [own for own in content if own["type"] == "text"]
        url = picture["image_url"]["url"]
        assert url.startswith("data:image/png;base64,")
        data = base64.b64decode(url.partition(",")[2], validate=True)
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert image.size == (16, 12)
            colour = image.convert("RGB").getpixel((0, 0))
        self.pictures.append(colour)
        return text["text"], colour

    def verdict(self, text: str) -> str:
        right, _, judged = text.partition("Answer to judge:")
        return "Yes" if any(c in right and c in judged for c in CITIES) else "No."


def distance(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        rows = [{"id": name, "object": "model"} for name in self.server.models]
        self.send(200 if self.path == "/v1/models" else 404, {"data": rows})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            self.send(404, {"error": {"message": "not here"}})
            return
        text = self.server.reply(body["model"], body["messages"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        self.send(200, {"choices": [choice], "usage": usage})

    def send(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def stand_in(models: Sequence[str]) -> Iterator[StandIn]:
    server = StandIn(models)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def lines(path: Path, make: Callable[[int], Any]) -> None:
    rows = [json.dumps(make(number)) for number in range(COUNT)]
    path.write_text("\n".join(rows) + "\n")


def sql(folder: Path) -> None:
    database = sqlite3.connect(folder / "shop.sqlite")
    database.execute("CREATE TABLE orders (id INTEGER, city TEXT, amount REAL)")
    for number in range(40):
        city = CITIES[number % len(CITIES)]
        database.execute(
            "INSERT INTO orders VALUES (?, ?, ?)", (number, city, 3.5 * number)
        )
    database.commit()
    database.close()
    (folder / "schema.txt").write_text("CREATE TABLE orders (id, city, amount);\n")

    def make(number: int) -> Any:
        city = CITIES[number % len(CITIES)]
        answer = f"SELECT COUNT(*) FROM orders WHERE city = '{city}' AND id > {number}"
        question = f"How many orders after {number} came from {city}?"
        return {"question": question, "answer": answer}

    lines(folder / "questions.jsonl", make)


def tickets(folder: Path) -> None:
    def make(number: int) -> Any:
        intent = ("missing_parcel", "invoice")[number % 2]
        answer = {"intent": intent, "parcel": number, "angry": number % 3 == 0}
        return {"question": f"About {intent} {number}, please", "answer": answer}

    lines(folder / "tickets.jsonl", make)


def calls(folder: Path) -> None:
    def make(number: int) -> Any:
        city = CITIES[number % len(CITIES)]
        given = {
            "name": "weather",
            "arguments": json.dumps({"city": city, "day": number}),
        }
        call = {"type": "function", "function": given}
        asked = {"role": "user", "content": f"Will it rain in {city} on day {number}?"}
        return {
            "messages": [
                asked,
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
        }

    lines(folder / "calls.jsonl", make)


def helping(folder: Path) -> None:
    def make(number: int) -> Any:
        city = CITIES[number % len(CITIES)]
        answer = f"The office of {city} helps you with number {number}, ask there."
        return {"question": f"Who helps in {city} with {number}?", "answer": answer}

    lines(folder / "help.jsonl", make)


def sheet(folder: Path) -> None:
    rows = ["Nr,Anfrage,Absicht"]
    for number in range(COUNT):
        what, intent = (("Paket", "Versand"), ("Geld", "Erstattung"))[number % 2]
        rows.append(f'{number},"Wo ist mein {what}, Nummer {number}?",{intent}')
    (folder / "sheet.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def receipts(folder: Path) -> None:
    (folder / "receipts").mkdir()
    for number in range(COUNT):
        red, green = number * 2, 255 - number * 2
        picture = Image.new("RGB", (16, 12), (red, green, 90))
        picture.save(folder / "receipts" / f"{number}.png")

    def make(number: int) -> Any:
        shop = COLOURS[number // 16]
        picture = f"receipts/{number}.png"
        answer = {"shop": shop, "total": 12.5 + number // 16}
        return {"question": "Read the receipt.", "image": picture, "answer": answer}

    lines(folder / "receipts.jsonl", make)


DATA = {
    "sql": sql,
    "json": tickets,
    "tools": calls,
    "judge": helping,
    "spreadsheet": sheet,
    "pictures_json": receipts,
}
"""The pages, and who writes their data."""


def commands_of(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += [own for own in block.splitlines() if own.startswith("lever ")]
    found += re.findall(r"`(lever fit [^`]*--no-model)`", text)
    return found


@pytest.mark.parametrize("page", DATA)
def test_the_commands_of_a_page_run(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "scores.db"))
    DATA[page](tmp_path)
    commands = commands_of(page)
    assert sum(" fit " in own for own in commands) >= 2
    models = ("small", "judge") if page == "judge" else ("small",)
    with stand_in(models) as server:
        address = f"http://127.0.0.1:{server.server_port}/v1"
        for command in commands:
            words = shlex.split(command.replace(ADDRESS, address))[1:]
            if "--no-model" in words:
                words += ["--out", "bundles/no-model"]
            code = main(words)
            said = capsys.readouterr()
            assert code == 0, said.err
            if "--try" in words:
                assert said.out.count("the model wrote:") == 3
    bundle = next(
        own
        for own in Path("bundles").iterdir()
        if (own / "fit.json").is_file() and own.name != "no-model"
    )
    report = read_json(bundle / "fit.json")
    assert report["arms"]["nearest_text"]["test"] is not None
    assert len(report["examples_seen"]) == 5
    if page == "pictures_json":
        assert len(set(server.pictures)) > 40, "every picture came as it lies there"
        assert max(own["test"] for own in report["arms"].values()) > 0.2
    if page == "sql":
        assert server.systems == {"CREATE TABLE orders (id, city, amount);"}
    if page == "judge":
        assert report["calls"]["judge"] > 0
        assert (
            report["arms"]["nearest_text"]["test"] > report["arms"]["zero_shot"]["test"]
        )


def test_the_metric_of_the_page_about_json_scores(tmp_path: Path) -> None:
    text = (PAGES / "json.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(re.sub(r"^    ", "", code, flags=re.MULTILINE), scope)
    from leverplus.data.metrics.base import Example

    example = Example(['{"intent": "a", "n": 1}'])
    assert [
        scope["score"](own, example)
        for own in ('{"n": 1, "intent": "a"}', '{"intent": "a"}', "?")
    ] == [1.0, 0.5, 0.0]
