"""All adapters: a missing framework is named, each has its page and its extra, one mapping of fields serves all."""

from __future__ import annotations

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
from adapted import ASKED, ROOT, by_hand, make_bundle, page_of, png

from leverplus.adapters.opening import Columns, apart_from, open_selector
from leverplus.bundle.selector import Selector
from leverplus.errors import EXTRAS, LeverError, MissingExtra

ADAPTERS = sorted(
    path.stem for path in (ROOT / "leverplus" / "adapters").glob("[a-z]*.py")
)
ADAPTERS.remove("opening")
FRAMEWORKS = [
    name for name, extra in EXTRAS.items() if extra.replace("-", "_") in ADAPTERS
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_one_sentence_with_what_to_type(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = EXTRAS[framework]
    adapter = f"leverplus.adapters.{extra.replace('-', '_')}"
    for name in [name for name in sys.modules if name.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    with pytest.raises(MissingExtra) as told:
        importlib.import_module(adapter)
    assert f'type `pip install -e ".[{extra}]"`' in str(told.value)
    assert isinstance(told.value, ImportError), "so that frameworks see what it is"


@pytest.mark.slow
def test_importing_the_package_imports_no_framework() -> None:
    ask = f"import leverplus.adapters.opening, sys; print([n for n in {FRAMEWORKS} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_adapter_has_a_page_of_few_lines_an_extra_and_a_test() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name in ADAPTERS:
        assert len(page_of(name).splitlines()) <= 20
        assert (ROOT / "tests" / "adapters" / f"test_{name}.py").is_file()
        assert name.replace("_", "-") in extras or name == "lmms_eval"
    assert len(FRAMEWORKS) == len(ADAPTERS) - 1, "lmms_eval needs none"
    crooked = [name for name in extras if re.sub(r"[-_.]+", "-", name).lower() != name]
    assert not crooked, (
        "wheels spell extras in this way, and pip before 23.3 takes no other spelling"
    )


@pytest.mark.skipif(
    "LEVER_EVERY_ADAPTER" not in os.environ,
    reason="only `make test-adapters` installs all frameworks",
)
@pytest.mark.parametrize(
    "framework", [*FRAMEWORKS, "lmms_eval", "mlflow", "wandb", "tensorboard"]
)
def test_no_framework_is_missing_where_all_were_installed(framework: str) -> None:
    assert importlib.util.find_spec(framework) is not None, (
        "its tests would be left out without a word"
    )


def test_a_folder_is_opened_once_per_process(folder: Path, selector: Selector) -> None:
    assert open_selector(folder) is open_selector(str(folder))
    assert open_selector(selector) is selector
    for nothing in (3, None, ""):
        with pytest.raises(LeverError, match="set the environment variable LEVER_BUND"):
            open_selector(nothing)  # type: ignore[arg-type]


def test_fields_go_by_name_and_a_bundles_own_inputs_before_its_question(
    selector: Selector, tmp_path: Path
) -> None:
    columns = Columns(selector, "text", order="nearest_first")
    asked = {"text": ASKED, "image": png("red"), "Context": "a farm"}
    assert columns.asked(asked) == {"question": ASKED, "image": asked["image"]}
    chosen = [demo.id for demo in columns.choose(asked, 3)]
    assert chosen == by_hand(ASKED, 3)[::-1]
    assert "dog" not in [demo.id for demo in columns.choose(asked, 3, apart=True)]
    for wrong in ({}, {"question": ASKED}, {"text": None}):
        with pytest.raises(LeverError, match="there is no 'text'"):
            columns.asked(wrong)
    with pytest.raises(LeverError, match="nearest_last, nearest_first"):
        Columns(selector, order="random")
    fields = {"context": "the dog is here", "number": "3"}
    row = {"id": "1", "fields": fields, "answer": "here"}
    named = Columns(Selector.load(make_bundle(tmp_path / "named", [row])))
    values = {"Context": "a cat", "NUMBER": 4, "question": "where"}
    assert named.asked(values)["fields"] == {"context": "a cat", "number": "4"}
    (demo,) = named.choose(values, 1)
    assert named.example(demo).items() >= {**fields, "answer": "here"}.items()


def test_a_query_is_kept_apart_from_itself_by_its_picture_and_without_one_by_its_words(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "something else", "answer": "a", "image": png("red")},
        {"question": ASKED, "answer": "b", "image": png("blue")},
        {"question": ASKED, "answer": "c"},
    ]
    for number, row in enumerate(rows):
        row["id"] = str(number)
    selector = Selector.load(make_bundle(tmp_path / "b", rows))
    demos = [demo for _, demo in selector.source.all()]
    seen = apart_from(ASKED, png("red", size=8))
    assert [seen(demo) for demo in demos] == [False, True, True]
    blind = apart_from(f"  {ASKED}  ", None)
    assert [blind(demo) for demo in demos] == [True, True, False]
