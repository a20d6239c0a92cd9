"""Names of an earlier version are still read: recipes, overrides, logs, seeds and hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leverplus.catalog import STAGES as CATALOG_STAGES
from leverplus.cli.main import main
from leverplus.errors import RecipeError
from leverplus.recipe.recipe import load_recipe
from leverplus.renamed import STAGES, first_name, stage_today
from leverplus.rundir import read_log
from leverplus.training.seeds import derive_seed

RECIPE = """
[train]
stages = ["{name}", "listwise"]
[{name}]
epochs = 3
queries = 50
"""


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("old", STAGES)
def test_a_recipe_with_an_old_name_is_the_same_recipe(old: str, tmp_path: Path) -> None:
    today = STAGES[old]
    first = load_recipe(written(tmp_path / "old.toml", RECIPE.format(name=old)))
    second = load_recipe(written(tmp_path / "new.toml", RECIPE.format(name=today)))
    assert first.values() == second.values()
    assert first.given == second.given
    assert first.hash == second.hash
    assert list(first.stages) == [today, "listwise"]
    assert first.old_names == (
        f"[{old}] is called [{today}] since 0.2; the old name is still read",
        f"train.stages: {old} is called {today} since 0.2; the old name is still read",
    )
    assert second.old_names == ()


def test_old_names_in_overrides_and_in_a_recipe_that_extends_another_are_read(tmp_path: Path) -> None:
    own = load_recipe("best", ["label_pretraining.epochs=2", 'train.stages=["label_pretraining","listwise"]'])
    told = load_recipe("best", ["agreement.epochs=2", 'train.stages=["agreement","listwise"]'])
    assert told.values() == own.values()
    assert told.hash == own.hash
    assert told.old_names[0].startswith("--set agreement.epochs: agreement is called label_pretraining since 0.2")
    heir = load_recipe(written(tmp_path / "heir.toml", 'extends = "best"\n[agreement]\nepochs = 2\n'))
    assert heir.values() == own.values()


def test_both_names_in_one_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "both.toml", RECIPE.format(name="agreement") + "[label_pretraining]\nepochs = 2\n")
    with pytest.raises(RecipeError, match=r"is the old name of \[label_pretraining\]"):
        load_recipe(path)


def test_check_says_the_name_of_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "old.toml", RECIPE.format(name="agreement"))
    assert main(["check", path]) == 0
    assert "note: [agreement] is called [label_pretraining] since 0.2" in capsys.readouterr().out


def test_problems_are_said_with_the_name_of_today(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"label_pretraining\.epoch: there is no such key"):
        load_recipe(written(tmp_path / "old.toml", "[agreement]\nepoch = 3\n"))


def test_the_lines_of_an_old_log_belong_to_the_stage_of_today(tmp_path: Path) -> None:
    lines = [{"stage": "agreement", "epoch": 1}, {"stage": "listwise", "epoch": 1}, {"epoch": 2}]
    written(tmp_path / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    found = read_log(tmp_path / "log.jsonl")[0]
    assert [line.get("stage") for line in found] == ["label_pretraining", "listwise", None]


def test_a_renamed_stage_draws_the_random_numbers_that_it_drew_before() -> None:
    assert derive_seed(0, "label_pretraining", 3, "order") == derive_seed(0, "agreement", 3, "order")
    assert derive_seed(0, "agreement", 1) == 2219430564077070990
    assert derive_seed(0, "listwise", 1) != derive_seed(0, "agreement", 1)


def test_every_stage_has_a_name_of_today_and_names_go_both_ways() -> None:
    for old, today in STAGES.items():
        assert today in CATALOG_STAGES
        assert old not in CATALOG_STAGES
        assert stage_today(f"{old}-epoch001") == f"{today}-epoch001"
        assert first_name(f"{today}-epoch001") == f"{old}-epoch001"
    assert stage_today("sft") == first_name("sft") == "sft"


def test_no_code_compares_with_a_stage_name_of_an_earlier_version() -> None:
    """Such a comparison would never be true again: names are translated before anybody compares them."""
    package = Path(__file__).parent.parent / "leverplus"
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.name}: {name}" for name in STAGES if re.search(rf'[=!]= "{name}"', text)]
    assert found == []
