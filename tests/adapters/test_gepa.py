"""An instruction that GEPA finds, from the page of DSPy, is compared by `lever fit` alone and with demonstrations.

The model behind the address is a stand-in: it knows capitals, and names one only where it is told to. DSPy's client,
GEPA's reflection and `lever fit` ask it as they would ask any server.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from adapted import ROOT, page_of

pytest.importorskip("dspy", reason="dspy is not installed; type `make test-adapters`")

import dspy

from leverplus import catalog
from leverplus.cli.main import main

sys.path += [str(ROOT / "tests" / "backends")]
from speaking_server import CAPITALS, Handler, Served, serving

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend
FOUND = "Name the capital city of the country."
PAGE_URL, PAGE_MODEL = "http://127.0.0.1:8000/v1", "NAME"


class Told(Handler):
    """Names the capital only where the instruction tells it to; asked for a better instruction, it writes that one."""

    def _chat(self, body: Mapping[str, Any]) -> None:
        said = " ".join(_text(message["content"]) for message in body["messages"])
        last = _text(body["messages"][-1]["content"])
        land = re.findall(r"capital of ([a-z]+)", last)
        if "`new_instruction`" in said:
            answer = json.dumps({"new_instruction": FOUND})
        elif land and FOUND in said:
            answer = CAPITALS[land[-1]]
        else:
            answer = "dunno"
        if "[[ ## answer ## ]]" in said:  # the form that DSPy asks for
            answer = f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"
        message = {"role": "assistant", "content": answer}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self._send(200, {"id": "1", "object": "chat.completion", "model": "m", "choices": choices, "usage": usage})


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def shell_of_page() -> list[str]:
    text = (ROOT / "docs" / "adapters" / "dspy.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^```sh\n(.*?)\n```", text, re.DOTALL | re.MULTILINE)
    return line.split()


@pytest.mark.slow
def test_the_page_finds_an_instruction_and_the_fit_says_what_it_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dspy, "cache", dspy.cache)  # put back at the end
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    monkeypatch.setitem(catalog.EMBEDDERS, "sentence", "plain_words:WordEmbedder")
    lands = list(CAPITALS.items())
    rows = [{"question": f"capital of {land}, {n}?", "answer": city} for n in range(10) for land, city in lands]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    served = Served(weighs=False)
    with serving(Told, served):
        here = (PAGE_URL, served.url), (PAGE_MODEL, "speaker-1")
        names: dict[str, Any] = {"__name__": "a_page"}
        exec(compile(swapped(page_of("dspy", 1), *here), "docs/adapters/dspy.md", "exec", dont_inherit=True), names)
        assert names["found"].signature.instructions == FOUND
        asked_by_gepa = {_text(body["messages"][-1]["content"]) for _, body in served.asked}
        command = [swapped(word, *here) for word in shell_of_page()]
        assert command[0] == "lever"
        more = ["--calls", "900", "--shots", "1", "--store", "scores.db", "--json"]
        served.asked.clear()
        capsys.readouterr()  # DSPy's bars
        assert main([*command[1:], *more]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["arms"]["zero_shot"]["dev"] == 1.0, "the instruction alone"
    shown = [body["messages"] for path, body in served.asked if path.endswith("/chat/completions")]
    told = [messages for messages in shown if messages[0] == {"role": "system", "content": FOUND}]
    assert {len(messages) for messages in told} >= {2, 4}, "alone, and with a demonstration"
    assert len(told) > 0.9 * len(shown), "all but what asks the server what it can"
    training = {row["question"] for row in names["rows"]}
    assert training
    assert all(any(question in asked for question in training) for asked in asked_by_gepa), "nothing of dev and test"


def swapped(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text
