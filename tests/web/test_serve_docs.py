"""docs/serve.md: its Python runs, and it names every flag; docs/reference/http.md names every route and metric."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import pytest
from listening import listening, upstream
from prometheus_client import Counter, Gauge, Histogram
from served import ROOT, client_of, make_bundle

from leverplus.cli.main import add_command
from leverplus.web import metrics, proxy

PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_of_the_page_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai", reason="openai not installed; pip install -e .[dev]")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    with (
        upstream() as noted,
        listening(
            make_bundle(tmp_path / "b"), upstream=noted.url, log=False
        ) as running,
    ):
        for code in blocks:
            assert "http://127.0.0.1:8766" in code
            exec(
                compile(
                    code.replace("http://127.0.0.1:8766", running.address),
                    "serve.md",
                    "exec",
                ),
                {},
            )
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"d\d+,d\d+", said[0])
    assert said[1] == "answer after 5 messages"
    assert said[2].startswith("[('d")


def test_the_page_names_every_flag_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_command(parser, "serve")
    rows = dict(re.findall(r"^\| `(--[a-z-]+)[^`]*` \|([^|]*)\|", PAGE, re.MULTILINE))
    flags = {
        action.option_strings[-1]: action.default
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    }
    assert set(rows) == set(flags)
    for flag, default in flags.items():
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            assert float(rows[flag]) == default, flag


OUTCOMES = (
    *("chosen", "none", "conversation", "off", "deadline", "busy", "error"),
    *("unreadable", "refused"),
)


def test_the_reference_names_every_route_metric_and_outcome(tmp_path: Path) -> None:
    described = client_of(make_bundle(tmp_path / "b")).get("/openapi.json").json()
    routes = [*described["paths"], "/v1/chat/completions"]
    assert [route for route in routes if f"{route}`" not in REFERENCE] == []
    for own in vars(metrics).values():
        if isinstance(own, (Counter, Gauge, Histogram)):
            assert f"`{own._name}" in REFERENCE
    source = inspect.getsource(proxy)
    for name in OUTCOMES:
        assert f'"{name}"' in source
        assert f"`{name}`" in PAGE + REFERENCE
