"""`lever serve` as a process: what it says, several workers on one bundle, changes on disk, and a clean end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import SLOW, make_bundle, serving

from leverplus.arms.fixed import Fixed
from leverplus.cli.main import main


def ask(address: str, path: str, body: object = None, method: str | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        address + path, content, {"content-type": "application/json"}, method=method
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        text = answer.read().decode()
    return text if path == "/metrics" else json.loads(text)


def chosen(address: str, question: str) -> str:
    return ask(address, "/select", {"question": question, "shots": 1})["demos"][0]["id"]


def choices_counted(address: str, least: int) -> int:
    """Choices in the metrics; a request is counted after its answer was sent, so this waits a while for `least`."""
    deadline = time.monotonic() + 20
    while True:
        lines = [
            line
            for line in ask(address, "/metrics").splitlines()
            if 'lever_requests_total{route="/select",status="200"' in line
        ]
        if (
            found := int(float(lines[0].split()[-1]))
        ) >= least or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@pytest.mark.slow
def test_a_stop_lets_the_request_under_way_finish_and_takes_no_new_one(
    tmp_path: Path,
) -> None:
    folder = make_bundle(tmp_path / "b")
    with serving(folder, tmp_path / "log") as running:
        found: list[Any] = []
        under_way = threading.Thread(
            target=lambda: found.append(
                ask(running.address, "/select", {"question": SLOW})
            )
        )
        under_way.start()
        time.sleep(1.0)
        running.process.send_signal(signal.SIGTERM)
        under_way.join(60)
        assert len(found[0]["demos"]) == 2
        assert running.process.wait(60) == 0
        with pytest.raises(OSError):
            ask(running.address, "/healthz")
    lines = running.log.read_text().splitlines()
    assert json.loads(lines[0])["status"] == 200
    assert lines[-1] == "lever: stopped; requests under way were finished"
    assert SLOW not in running.log.read_text()


@pytest.mark.slow
def test_workers_share_a_bundle_see_its_changes_count_together_and_are_replaced(
    tmp_path: Path,
) -> None:
    folder = make_bundle(tmp_path / "b")
    other = make_bundle(tmp_path / "other", count=3, arm=Fixed({2: [0, 1]}), shots=2)
    with serving(folder, tmp_path / "log", "--workers", "2") as running:
        address = running.address
        assert {chosen(address, "word3 thing3") for _ in range(8)} == {"d3"}

        assert (
            main(
                [
                    "demos",
                    "add",
                    str(folder),
                    "--question",
                    "zebra",
                    "--answer",
                    "a",
                    "--id",
                    "new",
                ]
            )
            == 0
        )
        assert {chosen(address, "zebra") for _ in range(8)} == {"new"}, (
            "added by another program"
        )
        ask(address, "/demos", {"question": "okapi", "answer": "b", "id": "newer"})
        assert {chosen(address, "okapi") for _ in range(8)} == {"newer"}, (
            "added through one worker, seen by both"
        )
        ask(address, "/demos/newer", method="DELETE")
        assert "newer" not in {chosen(address, "okapi") for _ in range(8)}

        assert choices_counted(address, 32) == 32

        workers = [
            child
            for child in psutil.Process(running.process.pid).children()
            if "spawn" in str(child.cmdline())
        ]
        assert len(workers) == 2
        workers[0].kill()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if {chosen(address, "zebra") for _ in range(8)} == {"new"}:
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        assert choices_counted(address, 40) >= 40, (
            "what the dead worker had counted is not lost"
        )

        folder.rename(tmp_path / "old")
        shutil.copytree(other, folder)
        while time.monotonic() < deadline:
            time.sleep(0.6)
            if {chosen(address, "zebra") for _ in range(8)} == {"d1"}:
                break
        assert {chosen(address, "zebra") for _ in range(8)} == {"d1"}, (
            "another bundle in the same place"
        )


def test_what_cannot_be_served_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEVER_TOKEN", raising=False)
    folder = str(make_bundle(tmp_path / "b"))

    def said(*words: str, code: int = 1) -> str:
        assert main(["serve", *words]) == code
        err = capsys.readouterr().err
        assert "Traceback" not in err
        return err

    assert "none" in said(str(tmp_path / "none"), "--port", "0")
    assert "export LEVER_TOKEN=" in said(folder, "--host", "0.0.0.0", "--port", "0")
    assert "such as http://127.0.0.1:8000/v1" in said(
        folder, "--upstream", "localhost:8000", "--port", "0"
    )
    assert "clients send their own keys" in said(
        folder, "--upstream", "http://me:pw@host/v1", "--port", "0"
    )
    assert "must be more than 0" in said(folder, "--workers", "0", code=2)
    assert "must be more than 0" in said(folder, "--seconds", "nan", code=2)
    assert "--shots belongs to --upstream" in said(folder, "--shots", "2", code=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen" in said(folder, "--port", str(taken.getsockname()[1]))


@pytest.mark.slow
def test_a_script_reads_the_address_from_one_line_of_json(tmp_path: Path) -> None:
    with serving(make_bundle(tmp_path / "b"), tmp_path / "log", "--json") as running:
        facts = running.said
        assert set(facts) == {"url", "bundle", "upstream", "pid"}
        assert facts["pid"] == running.process.pid
        assert ask(facts["url"], "/healthz") == {"status": "ok"}
