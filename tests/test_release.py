"""What is released: one version everywhere, files that a stranger looks for, and a wheel that works on its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_world import TINY

from leverplus import __version__

ROOT = Path(__file__).parent.parent
MEGABYTE = 1_000_000
PACKAGES = ("leverplus", "leverplus_lab", "leverplus_doctor")
DATA = ("leverplus/tables", "leverplus_lab/world/weights")
SMALL_TABLE = (
    "score.budget=1500",
    "score.dev_queries=20",
    "eval.items=40",
    "eval.dev_items=20",
    "eval.random_draws=1",
)


def test_the_version_has_one_home_and_the_citation_repeats_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "leverplus/version.py"
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(
        encoding="utf-8"
    )


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert headings[0] == __version__


def test_the_workflow_does_what_the_ci_script_does_for_every_python_that_is_claimed() -> (
    None
):
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "- run: .ci/run" in workflow
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    claimed = [
        line.split(":: ")[-1]
        for line in project["classifiers"]
        if "Python :: 3." in line
    ]
    assert json.dumps(claimed) in workflow
    assert project["requires-python"] == f">={claimed[0]}"
    targets = set(
        re.findall(
            r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert set(re.findall(r"make ([a-z]+)", workflow)) <= targets


def test_every_shipped_file_of_data_has_a_word_about_its_licence() -> None:
    notes = "".join((ROOT / place / "README.md").read_text() for place in DATA)
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for suffix in ("npz", "parquet", "safetensors", "gz"):
        for path in [
            path
            for package in PACKAGES
            for path in (ROOT / package).rglob(f"*.{suffix}")
        ]:
            named = (
                path.name in notes
                or f"...{path.stem[-5:]}.{suffix}" in notes
                or f"{path.parent.name}/*" in notes
            )
            assert named, f"none of the READMEs in {DATA} says anything of {path.name}"
            assert str(path.parent.relative_to(ROOT)) in notice


def test_the_source_archive_holds_whatever_the_tests_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    always = {
        "pyproject.toml",
        ".mypy_cache",
    }  # a build adds the first, a run the second
    for path in (ROOT / "tests").rglob("*.py"):
        for name in re.findall(r'\bROOT / "([^"/]+)', path.read_text(encoding="utf-8")):
            assert name in always or any(
                fnmatch(f"/{name}", pattern) for pattern in included
            ), f"{name} of {path}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree, built without the network."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed; type `make test`, which installs it")
    into = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(into.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_is_small_and_holds_weights_tables_recipes_and_types(
    wheel: Path,
) -> None:
    assert wheel.name == f"leverplus-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 25 * MEGABYTE
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    package = [
        path.relative_to(ROOT)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file()
    ]
    wanted = {str(path) for path in package if path.suffix != ".pyc"}
    assert wanted <= names
    assert {
        "leverplus/py.typed",
        "leverplus_lab/world/weights/model.safetensors",
    } <= wanted
    assert any(name.endswith("licenses/NOTICE") for name in names)


@pytest.mark.slow
def test_the_wheel_alone_runs_a_fit_the_world_and_the_recorded_table_in_an_empty_place(
    wheel: Path, tmp_path: Path
) -> None:
    """Environment, folder and home are empty; a .pth file borrows the heavy dependencies, leverplus is the wheel's."""
    place = tmp_path / "env"
    venv.create(place, with_pip=False)
    python = str(place / "bin" / "python")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
    ]
    subprocess.run([*install, str(wheel)], check=True)
    site = next((place / "lib").glob("python3*")) / "site-packages"
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in ("PATH", "LANG", "OMP_NUM_THREADS", "TMPDIR")
    }

    def type_in(*words: str) -> str:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**kept, "HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = type_in(python, "-c", "import leverplus; print(leverplus.__file__)")
    assert where.startswith(str(site))
    lever = str(place / "bin" / "lever")
    assert type_in(lever, "--version") == f"lever {__version__}\n"
    for recipe, settings in (("world", TINY), ("okvqa_table", SMALL_TABLE)):
        found: dict[str, Any] = json.loads(
            type_in(lever, "run", recipe, "--json", "--out", recipe, "--set", *settings)
        )
        assert found["n"] in (10, 40)
        assert (folder / recipe / "report.html").is_file()
    sample = [
        "tables:okvqa-sample.jsonl",
        "--model",
        "tables:okvqa-sample",
        "--embed",
        "tables:okvqa-vectors.npz",
    ]
    fitted = json.loads(type_in(lever, "fit", *sample, "--out", "sample", "--json"))
    assert fitted["recommended"]["why"]
    assert (folder / "sample" / "demos.sqlite").is_file()
