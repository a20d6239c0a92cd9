"""Every recipe that ships is run from start to end by a test, smaller: those of the best method and with pictures here.

`ELSEWHERE` names the tests of the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from leverplus.cli.main import main
from leverplus.run.recipe import recipe_names

sys.path.append(str(Path(__file__).parent / "models"))
sys.path.append(str(Path(__file__).parent / "encode"))
from speaking_server import COLOURS, MODEL, speaking
from tiny_networks import save_dual_model

TESTS = Path(__file__).parent
BEST = ("best_8k", "best", "best_32k")
ELSEWHERE = {
    **dict.fromkeys(("world",), "tiny_world.py"),
    **dict.fromkeys(
        ("trec_few", "trec_smollm", "own_labels", "okvqa_captions_smollm"),
        "test_real_runs.py",
    ),
    **dict.fromkeys(("sst2_smollm",), "test_smollm_run.py"),
}
"""The plans are run by tests/matrix/test_plan_recipes.py, the gallery by tests/lab/test_lab_gallery.py."""

SMALL = (
    "pool.size=6", "score.budget=160", "score.dev_queries=2", "score.dev_shots=[1]", "score.rounds=1", "eval.items=4",
    "eval.shots=[1]", "eval.dev_items=2", "eval.random_draws=1", "eval.diagnostic_items=2", "eval.exhaustive_calls=0",
    "label_pretraining.epochs=1", "listwise.epochs=2",
)  # fmt: skip

PLAIN_REWARD = (
    "label_pretraining.queries=64",
    "reward.components=[]",
    "reward.component_weights=[]",
)
"""The reward is the plain one: learning what labels let expect of 8,000 items takes half a minute."""


def run(name: str, folder: Path, *settings: str) -> dict[str, Any]:
    """What `lever run` leaves in eval.json."""
    words = [
        "run",
        name,
        "--out",
        str(folder / "run"),
        "--store",
        str(folder / "scores.db"),
        "--ignore-findings",
    ]
    assert main([*words, "--set", *settings]) == 0
    found: dict[str, Any] = json.loads((folder / "run" / "eval.json").read_text())
    assert found["n"] == 4
    assert found["arms"]["learned"]["shots"].keys() == {"1"}
    assert found["advice"]["why"]
    return found


def test_every_recipe_has_a_test() -> None:
    plans = {
        name.removeprefix("documents/").removesuffix("_documents")
        for name in recipe_names("documents")
    }
    here = {*BEST, "own_pictures", "okvqa_table", "mtop_table"}
    here.add("fit")  # every fit of tests/run/test_fit.py extends it
    assert set(recipe_names()) == plans | here | set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        assert f'"{name}"' in (TESTS / file).read_text(), f"{file} does not run {name}"
    assert recipe_names("gallery")


@pytest.mark.slow
@pytest.mark.parametrize("name", BEST)
def test_the_recipes_of_the_best_method_run_to_their_end(
    name: str, tmp_path: Path
) -> None:
    run(name, tmp_path, *SMALL, *PLAIN_REWARD)


def write_colours(folder: Path) -> Path:
    """24 plain pictures of four colours with a question each, as a user lays them beside a file."""
    rows = []
    for number in range(24):
        colour = list(COLOURS)[number % 4]
        red, green, blue = COLOURS[colour]
        Image.new("RGB", (20 + number, 24), (red - number // 4, green, blue)).save(
            folder / f"photo {number}.png"
        )
        split = "train" if number < 12 else "dev" if number < 16 else "test"
        rows.append(
            {
                "image": f"photo {number}.png",
                "question": "What colour is it?",
                "answers": [colour],
                "split": split,
            }
        )
    (folder / "mine.jsonl").write_text(
        "\n".join(json.dumps({"id": str(n), **row}) for n, row in enumerate(rows))
    )
    return folder / "mine.jsonl"


@pytest.mark.slow
def test_own_pictures_run_against_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "transformers",
        reason="transformers is not installed: CLIP reads pictures with it",
    )
    file, encoder = write_colours(tmp_path), save_dual_model(tmp_path / "clip", "clip")
    with speaking() as served:
        server = (
            f"model.url={served.url}",
            f"model.name={MODEL}",
            f"embed.model={encoder}",
        )
        found = run("own_pictures", tmp_path, *SMALL, f"task.file={file}", *server)
    assert (
        found["arms"]["zero_shot"]["mean"] < found["arms"]["learned"]["mean"]
    )  # some colours need to be shown
    assert any("image_url" in json.dumps(body) for _, body in served.asked)
    said = capsys.readouterr().out
    assert "who chooses" in said
    assert "Advice: " in said


@pytest.mark.slow
def test_the_recorded_table_is_replayed(tmp_path: Path) -> None:
    """Pools stay whole: they are what was recorded."""
    found = run(
        "okvqa_table",
        tmp_path,
        "score.queries=20",
        "score.dev_queries=4",
        "eval.items=4",
        "eval.dev_items=2",
    )
    assert found["arms"]["oracle"]["mean"] >= found["arms"]["learned"]["mean"]


@pytest.mark.slow
def test_the_recorded_table_of_parses_is_replayed(tmp_path: Path) -> None:
    found = run(
        "mtop_table",
        tmp_path,
        "score.queries=20",
        "score.dev_queries=4",
        "eval.items=4",
        "eval.dev_items=2",
    )
    arms = found["arms"]
    assert arms["oracle"]["mean"] >= arms["by_answer"]["mean"]
    assert arms["zero_shot"]["shots"] == {"0": 0.0}
