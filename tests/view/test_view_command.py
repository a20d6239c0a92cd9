"""`lever view`: what it says before it serves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from leverplus.cli.main import main


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_a_port_that_is_taken_or_no_port_is_one_sentence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(runs), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert main(["view", str(runs), "--port", "70000"]) == 1
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err
