"""What shells complete, and what editors know of recipes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from leverplus.cli.completion import bash, fish, options_of, zsh
from leverplus.cli.main import COMMANDS, main
from leverplus.recipe.jsonschema import recipe_schema
from leverplus.recipe.recipe import find_recipe, read_values, recipe_names


def test_options_and_verbs_of_a_command_are_known() -> None:
    assert "--question" in options_of("select")[""]
    assert "--limit" in options_of("demos")["list"]


def completed(line: str, tmp_path: Path) -> list[str]:
    """What bash offers after a line."""
    script = tmp_path / "lever.bash"
    script.write_text(bash())
    words = line.split(" ")
    code = (
        f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; _lever; "
    )
    done = subprocess.run(
        ["bash", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_verbs_and_options(tmp_path: Path) -> None:
    assert set(completed("lever ", tmp_path)) == set(COMMANDS)
    assert completed("lever sel", tmp_path) == ["select"]
    assert "--explain" in completed("lever select --e", tmp_path)
    assert "delete" in completed("lever demos del", tmp_path)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_the_names_of_files_also_with_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my data.jsonl").touch()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert sorted(completed("lever fit m", tmp_path)) == ["mine", "my data.jsonl"]
    assert set(completed("lever demos ", tmp_path)) >= {"add", "list", "my data.jsonl"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_json_where_it_is_asked_to(command: str) -> None:
    options = options_of(command)
    verbs = {verb: own for verb, own in options.items() if verb} or options
    assert [verb for verb, own in verbs.items() if "--json" not in own] == []


def test_the_other_shells_get_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for text in (zsh(), fish()):
        assert all(name in text for name in COMMANDS)
        assert "--explain" in text or "-l explain" in text
    assert main(["completion", "fish"]) == 0
    assert "complete -c lever" in capsys.readouterr().out


def test_every_shipped_recipe_fits_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(recipe_schema()))
    for name in recipe_names():
        for section, values in read_values(find_recipe(name), []).items():
            known = schema["properties"][section]
            for key, value in values.items() if isinstance(values, dict) else ():
                about = known["properties"][key]
                for part in value if isinstance(value, list) else [value]:
                    own = about.get("items", about)
                    assert part in own.get("enum", [part]), f"{name}: {section}.{key}"
                    assert own.get("minimum", part) <= part
    assert schema["properties"]["pool"]["properties"]["size"] == {
        "description": "candidates in a pool (K)", "default": 64, "type": "integer", "minimum": 1,
    }  # fmt: skip
