"""All adapters: a missing framework is named, each has its page and its extra, pictures come in any usual form."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, ROOT, colour_at, make_bundle, page_of, png, rgb

from leverplus.adapters.opening import MissingFramework, apart_from, as_picture, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.selector import Selector

FRAMEWORKS = {
    "langchain": "langchain_core",
    "dspy": "dspy",
    "lm_eval": "lm_eval",
    "inspect": "inspect_ai",
    "llama_index": "llama_index",
    "litellm": "litellm",
    "sklearn": "sklearn",
}
"""The framework that each adapter imports; lmms_eval needs none."""

MODULES = sorted(path.stem for path in (ROOT / "leverplus" / "adapters").glob("*.py") if path.stem[0] != "_")


@pytest.mark.parametrize(("adapter", "framework"), FRAMEWORKS.items())
def test_a_missing_framework_is_one_sentence_with_what_to_type(
    adapter: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"leverplus.adapters.{adapter}", raising=False)
    with pytest.raises(MissingFramework) as told:
        importlib.import_module(f"leverplus.adapters.{adapter}")
    assert f"type `pip install 'leverplus[{adapter.replace('_', '-')}]'`" in str(told.value)
    assert "\n" not in str(told.value)
    assert isinstance(told.value, ImportError), "so that frameworks and pytest.importorskip see what it is"
    assert isinstance(told.value, LeverError)


def test_a_framework_that_is_there_but_broken_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_framework.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingFramework, match="is installed but cannot be imported"):
        require_framework("broken_framework", "broken")


def test_importing_the_package_imports_no_framework() -> None:
    names = tuple(FRAMEWORKS.values())
    ask = f"import leverplus.adapters, leverplus.adapters.opening, sys; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_adapter_has_a_page_of_few_lines_an_extra_and_a_test() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    adapters = [name for name in MODULES if name != "opening"]
    assert sorted([*FRAMEWORKS, "lmms_eval"]) == adapters
    for name in adapters:
        assert len(page_of(name).splitlines()) <= 20
        assert (ROOT / "tests" / "adapters" / f"test_{name}.py").is_file()
        assert name.replace("_", "-") in extras or name == "lmms_eval"
    crooked = [name for name in extras if re.sub(r"[-_.]+", "-", name).lower() != name]
    assert not crooked, "wheels spell extras in this way, and pip before 23.3 takes no other spelling"


@pytest.mark.skipif("LEVER_EVERY_ADAPTER" not in os.environ, reason="only `make test-adapters` installs all frameworks")
@pytest.mark.parametrize("framework", [*FRAMEWORKS.values(), "lmms_eval", "mlflow", "wandb", "tensorboard"])
def test_no_framework_is_missing_where_all_were_installed(framework: str) -> None:
    assert importlib.util.find_spec(framework) is not None, "its tests would be left out without a word"


@pytest.mark.parametrize("form", ["bytes", "mapping", "base64", "data_url", "path", "path_of_mapping"])
def test_a_picture_comes_in_the_forms_of_all_frameworks(form: str, tmp_path: Path) -> None:
    content, path = png("red"), tmp_path / "a.png"
    path.write_bytes(content)
    text = base64.b64encode(content).decode()
    given: Any = {
        "bytes": content,
        "mapping": {"bytes": content, "path": None},
        "base64": text,
        "data_url": "data:image/png;base64," + text,
        "path": str(path),
        "path_of_mapping": {"bytes": None, "path": str(path)},
    }[form]
    from leverplus.selector.query import clean_picture

    picture = clean_picture(as_picture(given))
    assert picture is not None
    assert colour_at(picture) == rgb("red")


def test_what_is_no_picture_stays_what_it_is() -> None:
    assert as_picture(None) is None
    assert as_picture("") is None
    assert as_picture({"bytes": None, "path": None}) is None
    assert as_picture("there/is/no/such/file/" + "a" * 80) == "there/is/no/such/file/" + "a" * 80
    with pytest.raises(LeverError, match="'bytes' or 'path'"):
        as_picture({"url": "a"})


def test_a_folder_is_opened_once_per_process(folder: Path, selector: Selector) -> None:
    assert open_selector(folder) is open_selector(str(folder))
    assert open_selector(selector) is selector
    with pytest.raises(LeverError, match="not int"):
        open_selector(3)  # type: ignore[arg-type]


def test_a_query_is_kept_apart_from_itself_by_its_picture_and_without_one_by_its_words(tmp_path: Path) -> None:
    rows = [
        {"id": "same picture", "question": "something else", "answer": "a", "image": png("red")},
        {"id": "same words", "question": ASKED, "answer": "b", "image": png("blue")},
        {"id": "no picture", "question": ASKED, "answer": "c"},
    ]
    demos = {str(demo.id): demo for _, demo in Selector.load(make_bundle(tmp_path / "b", rows)).source.all()}
    seen = apart_from(ASKED, png("red", size=8))
    assert {name: seen(demo) for name, demo in demos.items()} == {
        "same picture": False, "same words": True, "no picture": True,
    }  # fmt: skip
    blind = apart_from(f"  {ASKED}  ", None)
    assert {name: blind(demo) for name, demo in demos.items()} == {
        "same picture": True, "same words": True, "no picture": False,
    }  # fmt: skip
