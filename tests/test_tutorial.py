"""The tutorial runs: the notebook is its page, and every cell works in order with the data that the package holds.

`python tests/test_tutorial.py` writes the notebook anew from docs/tutorial.md.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
CODE = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)


def notebook_of(page: str) -> dict[str, Any]:
    """The page as a notebook: blocks of Python are cells of code, everything between them is text."""
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(CODE.split(page)):
        lines = part.strip().splitlines(keepends=True)
        if not lines:
            continue
        own: dict[str, Any] = {
            "cell_type": "code" if place % 2 else "markdown",
            "metadata": {},
            "source": lines,
        }
        if place % 2:
            own |= {"execution_count": None, "outputs": []}
        cells.append({**own, "id": f"cell-{len(cells):02d}"})
    about = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        }
    }
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def written() -> str:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    return json.dumps(notebook_of(page), indent=1, ensure_ascii=False) + "\n"


def test_the_notebook_is_the_page() -> None:
    found = (DOCS / "tutorial.ipynb").read_text(encoding="utf-8")
    assert found == written(), "type `python tests/test_tutorial.py`"
    assert sum(cell["cell_type"] == "code" for cell in json.loads(found)["cells"]) >= 6


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai", reason="the openai client is not installed")
    sys.path.append(str(Path(__file__).parent / "models"))
    from speaking_server import speaking

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "scores.db"))
    names: dict[str, Any] = {}
    with speaking() as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        monkeypatch.setenv("MODEL", "speaker-1")
        for cell in json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))[
            "cells"
        ]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        path, body = served.asked[-1]
    names["client"].close()
    said = capsys.readouterr().out
    assert "400 records" in said
    assert names["made"].report["recommended"]["why"] in said
    assert path.endswith("/chat/completions")
    assert [turn["role"] for turn in body["messages"]][-1] == "user"
    assert body["messages"][-1]["content"] == names["question"]
    assert len(names["selector"]) == 249
    assert (tmp_path / "bundles" / "sample" / "report.html").is_file()


if __name__ == "__main__":
    (DOCS / "tutorial.ipynb").write_text(written(), encoding="utf-8")
