from __future__ import annotations

import json
import webbrowser

import pytest

from leverplus.cli.main import main
from leverplus.experiment.opening import open_run
from leverplus.recipe.recipe import find_recipe, load_recipe


@pytest.fixture
def folder(tmp_path):
    """A real run that was only begun."""
    path = tmp_path / "begun"
    open_run(load_recipe("world"), find_recipe("world"), path, seed=0, store_path=tmp_path / "s.db")
    return path


def test_report_prints_one_json_object(folder, capsys) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder / "report.html")
    assert told["bytes"] == (folder / "report.html").stat().st_size > 1_000_000


def test_open_shows_it_in_the_browser(folder, monkeypatch, capsys) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["report", str(folder), "--open"]) == 0
    assert opened == [(folder / "report.html").as_uri()]


def test_a_folder_that_is_no_run_is_a_sentence(tmp_path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", '{"recipe": "wor', "[]", "{}", '{"recipe": 3, "recipe_hash": "x", "seed": 0}'])
def test_a_half_written_manifest_is_a_sentence(folder, capsys, content) -> None:
    (folder / "run.json").write_text(content)
    assert main(["report", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "no whole run.json" in said
    assert "Traceback" not in said


def test_a_run_of_a_newer_version_is_a_sentence_with_what_to_type(folder, capsys) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    manifest["versions"]["leverplus"] = "9.1.0"
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "resolved.toml").write_text((folder / "resolved.toml").read_text() + "\n[unheard]\nof = 1\n")
    assert main(["report", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "was made by leverplus 9.1.0" in said
    assert "pip install --upgrade" in said
