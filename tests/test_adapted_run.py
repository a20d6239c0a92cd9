"""A whole run on pictures with a CLIP whose adapters are trained with the selector, against a model behind a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from safetensors.numpy import load_file

from leverplus import Selector
from leverplus.cli.main import main

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("httpx")
sys.path += [str(Path(__file__).parent / room) for room in ("models", "encode")]
from speaking_server import COLOURS, speaking
from tiny_networks import save_dual_model

RECIPE = """
purpose = "p"
expected = "e"
[task]
name = "jsonl"
folder = "{folder}"
file = "{folder}/colours.jsonl"
images = "{folder}"
[embed]
name = "clip"
model = "{weights}"
device = "cpu"
[pool]
size = 6
[score]
backend = "openai"
search = "dense"
budget = 400
queries = 8
shots = 1
dev_queries = 4
dev_shots = [1]
[model]
name = "speaker-1"
url = "{url}"
prompt = "chat"
[train]
stages = ["sft", "rce"]
[sft]
epochs = 2
lora_rank = 2
[rce]
epochs = 1
[eval]
items = 6
shots = [1]
dev_items = 4
random_draws = 1
exhaustive_calls = 0
diagnostics = false
"""


def paint(folder: Path) -> None:
    """Pictures of four colours and a line of JSON for each."""
    rows = []
    for number, (name, colour) in enumerate(list(COLOURS.items()) * 9):
        Image.new(
            "RGB", (24 + number, 20), tuple(max(0, part - number) for part in colour)
        ).save(folder / f"{number}.png")
        split = ("train", "train", "dev", "test")[(number // 4) % 4]
        row = {
            "id": f"p{number}",
            "image": f"{number}.png",
            "question": "what color is it",
            "answers": [name] * 3,
        }
        rows.append({**row, "split": split})
    (folder / "colours.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


@pytest.mark.slow
def test_adapters_are_trained_saved_and_used_from_the_recipe_to_the_selector(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "scores.db"))
    paint(tmp_path)
    weights = save_dual_model(tmp_path / "weights", "clip")
    out = tmp_path / "run"
    with speaking() as served:
        text = RECIPE.format(folder=tmp_path, weights=weights, url=served.url)
        (tmp_path / "adapted.toml").write_text(text)
        run = ["run", str(tmp_path / "adapted.toml"), "--out", str(out)]
        assert main(run) == 0
        report = json.loads((out / "eval.json").read_text())
        assert "learned" in report["arms"]
        asked = len(served.asked)
        assert main(run) == 0
        assert json.loads((out / "eval.json").read_text()) == report, (
            "a second look gives the same numbers"
        )
        assert len(served.asked) <= asked + 1
        assert main(["eval", str(out), "--split", "dev"]) == 0
    tensors = {
        name: load_file(out / "checkpoints" / name / "model.safetensors")
        for name in ("sft-epoch001", "sft", "rce")
    }
    learnt = [
        key
        for key, value in tensors["sft-epoch001"].items()
        if key.startswith("adapters.up") and value.any()
    ]
    assert learnt, "the matrices that are zero at first have moved"
    adapters = [key for key in tensors["sft"] if key.startswith("adapters.")]
    assert all(
        (tensors["sft"][key] == tensors["rce"][key]).all() for key in adapters
    ), "only sft trains them"
    chosen = Selector.load(out).select(
        image=tmp_path / "2.png", question="what color is it", shots=1
    )
    assert len(chosen) == 1
    assert (
        main(
            [
                "select",
                str(out),
                "--image",
                str(tmp_path / "2.png"),
                "--question",
                "what color is it",
                "-k",
                "1",
            ]
        )
        == 0
    )
    assert (
        main(["pack", str(out), "--arm", "learned", "--out", str(tmp_path / "bundle")])
        == 1
    )
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("lever:")
    ]
    assert said == [
        "lever: arm learned cannot be packed: "
        "a selector with adapters in the embedder cannot be packed; train one with sft.lora_rank = 0"
    ]
    assert not (tmp_path / "bundle").exists()
    assert (
        main(
            [
                "pack",
                str(out),
                "--arm",
                "nearest_both",
                "--out",
                str(tmp_path / "bundle"),
            ]
        )
        == 0
    )
    near = Selector.load(tmp_path / "bundle").select(
        image=tmp_path / "2.png", question="what color is it", shots=1
    )
    assert len(near) == 1, "ways that are not learned are packed from the same run"
