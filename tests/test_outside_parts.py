"""Parts from outside: one file of the user, no file of the package, and `package.module:attribute` in the recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_world import TINY

from leverplus import catalog
from leverplus.cli.main import main
from leverplus.data.metrics import metric_named
from leverplus.errors import UnknownName
from leverplus.run.recipe import load_recipe

MINE = """
from leverplus_lab.world.backend import WorldBackend
from leverplus_doctor.check import Finding
from leverplus_lab.world.embedder import WorldEmbedder
from leverplus.learn.maths.advantages import centred
from leverplus.learn.maths.losses import listwise
from leverplus.data.metrics.vqa import vqa_accuracy
from leverplus.learn.policies.heads import Cosine
from leverplus.data.tasks.answers import AnswerRules
from leverplus_lab.world.task import WorldTask

USED = set()

def reward(evidence, weights):
    USED.add("reward")
    return weights.soft * evidence.score.accuracy

def loss(log_p, targets, temperature, among):
    USED.add("loss")
    return listwise(log_p, targets, temperature, among)

def advantage(rewards, mask, floor):
    return centred(rewards, mask, floor)

def pool(search):
    USED.add("pool")
    return search.nearest(1.0, search.section.size)

class Head(Cosine):
    def forward(self, h, encoded):
        USED.add("head")
        return 2 * super().forward(h, encoded)

def metric(answer, references):
    USED.add("metric")
    return vqa_accuracy(answer, references)

class Task(WorldTask):
    name, answers, version = "mine", AnswerRules("mine:metric"), "1"

def task(section):
    USED.add("task")
    return Task(section.world_seed)

def backend(task, model):
    USED.add("backend")
    return WorldBackend(task)

def embedder(section):
    USED.add("embedder")
    return WorldEmbedder()

def check(record):
    USED.add("check")
    return [Finding("my_check", "info", "It was looked at.", {}, "None.", "Nothing.")]
"""
KEYS = {
    "reward": "reward.mode=mine:reward",
    "loss": "listwise.loss=mine:loss",
    "pool": "pool.kind=mine:pool",
    "head": "select.head=mine:Head",
    "metric": "task.metric=mine:metric",
    "task": "task.name=mine:task",
    "backend": "score.backend=mine:backend",
    "embedder": "embed.name=mine:embedder",
    "check": "train.checks=['mine:check']",
}
STAGES = ("train.stages=['listwise']", "listwise.epochs=1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's file, in which commands are typed."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("mine", None)


def test_every_kind_that_the_contract_names_can_come_from_outside() -> None:
    assert {
        "reward",
        "loss",
        "pool",
        "head",
        "metric",
        "task",
        "backend",
        "embedder",
        "check",
    } <= dict(catalog.KINDS).keys()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", KEYS)
def test_a_part_in_a_file_of_the_user_passes_the_check(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        ["embed.name=mine:embedder", "score.backend=mine:backend"]
        if kind == "task"
        else []
    )
    assert main(["check", "world", "--json", "--set", *STAGES, *more, KEYS[kind]]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert (
        load_recipe("world", [*STAGES, *more, KEYS[kind]]).hash
        != load_recipe("world", [*STAGES, *more]).hash
    )


@pytest.mark.slow
def test_one_run_uses_parts_of_every_kind(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [
        value for kind, value in KEYS.items() if kind != "metric"
    ]  # the task names its metric
    sizes = [value for value in TINY if not value.startswith("sft.")]
    words = [
        "run",
        "world",
        "--out",
        "out",
        "--store",
        "scores.db",
        "--ignore-findings",
        "--json",
    ]
    assert main([*words, "--set", *sizes, *STAGES, *keys]) == 0
    capsys.readouterr()
    assert set(KEYS) == sys.modules["mine"].USED
    codes = [
        entry["code"]
        for entry in json.loads((here / "out" / "findings.json").read_text())[
            "findings"
        ]
    ]
    assert "my_check" in codes


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:rewrad", "module mine has no 'rewrad'"),
        (
            "nowhere_at_all:reward",
            r"cannot be imported \(ModuleNotFoundError.*type the command in the folder that holds",
        ),
        (
            "broken:reward",
            r"cannot be imported \(ZeroDivisionError: division by zero\)",
        ),
    ],
)
def test_a_part_that_is_not_there_is_told_in_one_sentence(
    name: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(UnknownName, match=said):
        catalog.load(catalog.REWARDS, name, "reward")
    assert main(["check", "world", "--set", f"reward.mode={name}"]) == 1
    assert "reward.mode" in capsys.readouterr().err
    assert main(["run", "world", "--out", "out", "--set", f"reward.mode={name}"]) == 1
    assert not (here / "out").exists(), (
        "nothing was asked or written for a part that cannot be used"
    )


def test_reading_a_recipe_runs_no_code_of_others(here: Path) -> None:
    (here / "trap.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    assert (
        load_recipe("world", ["reward.mode=trap:reward"]).reward.mode == "trap:reward"
    )


@pytest.mark.usefixtures("here")
def test_an_advantage_in_a_file_of_the_user_passes_the_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train.stages=['sft','grpo']", "grpo.advantage=mine:advantage"]
    assert main(["check", "world", "--set", *words]) == 0
    assert "no problems" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_metric_from_outside_judges_answers() -> None:
    assert metric_named("mine:metric")("red", ["red"] * 10) == 1.0


@pytest.mark.usefixtures("here")
def test_the_doctor_makes_a_check_of_the_users_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "log.jsonl").write_text(
        '{"stage": "sft", "epoch": 1, "train/loss/total": 1.0}\n', encoding="utf-8"
    )
    assert main(["doctor", "log.jsonl", "--check", "mine:check", "--json"]) in (0, 1)
    assert "my_check" in capsys.readouterr().out


def test_a_name_with_a_colon_is_refused_where_no_part_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "world", "--set", "reward.normalise=mine:own"]) == 1
    assert "allowed" in capsys.readouterr().err


def test_checking_a_recipe_runs_its_parts_and_reading_it_does_not_as_the_security_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_stranger.py").write_text(
        "print('it ran')\n\n\ndef reward(evidence, weights):\n    return 0.0\n"
    )
    Path("theirs.toml").write_text(
        'extends = "world"\n\n[reward]\nmode = "a_stranger:reward"\n'
    )
    load_recipe("theirs.toml")
    assert "it ran" not in capsys.readouterr().out
    assert main(["check", "theirs.toml"]) == 0
    assert "it ran" in capsys.readouterr().out
    page = " ".join(
        (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8").split()
    )
    assert "`lever check RECIPE` or `lever run RECIPE`: both import such parts" in page
