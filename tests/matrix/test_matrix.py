"""Whatever a user brings runs, or is refused with the reason: a hundred drawn cases, and those that once failed.

`python benchmarks/matrix.py` goes on where this stops; `--seed N` shows one case with its recipe and data.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from matrix_case import Outcome, draw_case, forget, run_case, write_case
from matrix_models import Asked
from matrix_recipes import Values
from matrix_tasks import DrawnTask

from leverplus.cli.main import main

CASES = 100
FAILED_ONCE = (249, 262)
"""Seeds beyond those that `benchmarks/matrix.py` found failing: nothing was counted as the answer "A"."""


QUICK = 8
"""Seeds that are tried where `-m "not slow"` asks for a quick look."""


@pytest.mark.parametrize(
    "seed",
    [
        *range(QUICK),
        *(
            pytest.param(seed, marks=pytest.mark.slow)
            for seed in (*range(QUICK, CASES), *FAILED_ONCE)
        ),
    ],
)
def test_a_drawn_case_is_evaluated_or_refused_with_the_key(
    seed: int, tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    case = draw_case(seed, tmp_path, tiny_models)
    outcome = run_case(case, asked)
    assert outcome.end != "failed", (
        f"{outcome.message}\npython benchmarks/matrix.py --seed {seed}"
    )
    forget(case)


def test_the_same_seed_draws_the_same_case(tmp_path: Path) -> None:
    models = {kind: kind for kind in ("language", "vision", "sentence", "clip")}
    first, second = (
        draw_case(7, tmp_path / "one", models).describe() for _ in range(2)
    )
    assert first == second
    assert first != draw_case(8, tmp_path / "one", models).describe()


# -- what failed once, by name


def labelled(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"text": text, "label": label, "split": split} for text, label, split in rows
    ]


def small_recipe(models: dict[str, str], **more: dict[str, Any]) -> Values:
    """The smallest recipe that runs on texts, with sections changed or added."""
    values: Values = {
        "embed": {"name": "sentence", "model": models["sentence"]},
        "model": {"name": models["language"], "untrained": True, "max_new_tokens": 2},
        "pool": {"size": 2},
        "score": {
            "backend": "hf",
            "budget": 40,
            "search": "dense",
            "dev_queries": 1,
            "dev_shots": [1],
        },
        "select": {
            "hidden": 8,
            "query_fields": ["text"],
            "demo_fields": ["text", "answer"],
        },
        "train": {"stages": ["sft"]},
        "sft": {"epochs": 1},
        "eval": {
            "shots": [1],
            "random_draws": 1,
            "exhaustive_calls": 0,
            "dev_items": 2,
            "diagnostic_items": 2,
        },
    }
    return {
        key: {**values.get(key, {}), **more.get(key, {})} for key in (*values, *more)
    }


def run_rows(
    folder: Path,
    asked: Asked,
    rows: list[dict[str, Any]],
    values: Values,
    name: str = "labels",
) -> Outcome:
    """Run a recipe on the rows of one file."""
    file = folder / "data.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    task = DrawnTask(name, {"name": name, "file": str(file)}, rows=rows)
    return run_case(
        write_case(0, folder, task, {"task": task.section, **values}), asked
    )


@pytest.mark.slow
def test_labels_that_are_an_article_or_a_mark_are_labels(
    tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    """The letter A of a multiple choice normalises to nothing, as an article does."""
    splits = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2
    rows = labelled(
        *((f"question {n}", "AB"[n % 2], split) for n, split in enumerate(splits))
    )
    outcome = run_rows(tmp_path, asked, rows, small_recipe(tiny_models))
    assert outcome.end == "evaluated", outcome.message


@pytest.mark.slow
def test_one_item_on_dev_and_test_is_evaluated(
    tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    rows = labelled(
        ("one", "yes", "train"), ("two", "no", "train"), ("three", "yes", "train")
    )
    rows += labelled(("four", "yes", "dev"), ("five", "yes", "test"))
    outcome = run_rows(tmp_path, asked, rows, small_recipe(tiny_models))
    assert outcome.end == "evaluated", outcome.message


@pytest.mark.slow
def test_free_answers_that_are_all_the_same_are_evaluated(
    tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    splits = ("train",) * 4 + ("dev", "test")
    rows = [
        {"id": n, "question": f"what {n}", "answer": "yes", "split": split}
        for n, split in enumerate(splits)
    ]
    outcome = run_rows(tmp_path, asked, rows, small_recipe(tiny_models), name="jsonl")
    assert outcome.end == "evaluated", outcome.message


def test_a_text_too_long_for_the_model_is_refused_before_anything_is_asked(
    tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    splits = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2
    rows = labelled(
        *((f"text {n}", "AB"[n % 2], split) for n, split in enumerate(splits))
    )
    rows[9]["text"] += " word" * 4000
    before = asked.count
    outcome = run_rows(tmp_path, asked, rows, small_recipe(tiny_models))
    assert outcome.end == "refused", outcome.message
    assert "the longest text, data.jsonl, line 10, takes 20,0" in outcome.message
    assert asked.count == before


def test_demonstrations_that_are_too_long_together_are_refused_with_the_keys(
    tmp_path: Path, tiny_models: dict[str, str], asked: Asked
) -> None:
    splits = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2
    rows = labelled(
        *(
            (f"text {n}" + " word" * 600, "AB"[n % 2], split)
            for n, split in enumerate(splits)
        )
    )
    before = asked.count
    outcome = run_rows(tmp_path, asked, rows, small_recipe(tiny_models))
    assert outcome.end == "refused", outcome.message
    assert "a prompt with 2 demonstrations of typical length takes" in outcome.message
    assert (
        "room for 4,096, which is enough for none; show fewer (`lever fit --shots`; eval.shots and score.dev_shots"
        in outcome.message
    )
    assert asked.count == before


@pytest.mark.slow
def test_a_relative_model_folder_is_found_from_another_folder(
    tmp_path: Path,
    tiny_models: dict[str, str],
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are kept under the name that was given, so that nothing is asked again from elsewhere."""
    home = tmp_path / "home"
    shutil.copytree(tiny_models["language"], home / "weights" / "mine")
    rows = labelled(
        *(
            (f"text {n}", "AB"[n % 2], split)
            for n, split in enumerate(["train"] * 6 + ["dev", "test"])
        )
    )
    (home / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    values = small_recipe(
        tiny_models,
        model={"name": "weights/mine"},
        task={"name": "labels", "file": "data.jsonl"},
    )
    (home / "mine.toml").write_text(tomli_w.dumps(values))
    monkeypatch.chdir(home)
    store = ["--store", str(tmp_path / "scores.db")]
    assert main(["run", "mine.toml", "--out", "run", *store]) == 0
    before, report = asked.count, (home / "run" / "eval.json").read_text()
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "home/run", *store]) == 0
    assert (home / "run" / "eval.json").read_text() == report
    assert asked.count == before
