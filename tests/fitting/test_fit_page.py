"""The transcript in docs/fit.md is what the program prints today, as far as that follows from the sizes in it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from leverplus.fitting.fit import SHOTS, _few_items
from leverplus.fitting.plan import SELF_TEST, SeenData, divide, model_values, recipe_values
from leverplus.recipe.forecast import DataSizes, forecast, line
from leverplus.recipe.recipe import build_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "fit.md").read_text(encoding="utf-8")
(TRANSCRIPT,) = [block for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if block.startswith("data: ")]
LINES = TRANSCRIPT.splitlines()


def number(pattern: str, text: str = TRANSCRIPT) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1].replace(",", ""))


def only(beginning: str) -> list[str]:
    return [own for own in LINES if own.startswith(beginning)]


def test_rules_and_forecast_follow_from_the_sizes() -> None:
    command = re.search(
        r"^lever fit questions.jsonl --model (\S+) --calls (\d+) --out bundles/first$", PAGE, re.MULTILINE
    )
    assert command
    calls = int(command[2])
    sizes = {split: number(rf"splits: .*?([\d,]+) {split}") for split in ("train", "dev", "test")}
    labels = tuple(re.search(r"the instruction is: Answer with one of: (.*)\.", TRANSCRIPT)[1].split(", "))
    assert sum(sizes.values()) == number(r"data: ([\d,]+) texts with labels")
    seen = SeenData("labels", **sizes, labels=labels, pictures=False, shown=False, weighs=False, texts=True)
    shares = divide(calls, seen, SHOTS)
    model = model_values(f"{command[1]}#smollm2")
    model["model"] |= {"prompt": "chat", "logprobs": "never"}
    data, embed = {"name": "labels", "file": "questions.jsonl"}, {"name": "sentence"}
    values, rules = recipe_values({"task": data, "embed": embed, "model": model}, seen, shares, SHOTS)
    encoder = "vectors of the texts by a sentence encoder (MiniLM)"
    assert only("rule: ") == [f"rule: {own}" for own in (encoder, shares.rule(calls), shares.pilot_rule(), *rules)]
    parts = forecast(build_recipe("fit", values, "fit"), DataSizes(**sizes, pictures=False))
    assert only("forecast: ") == [f"forecast: self-test at most {SELF_TEST}, then {line(parts)}"]
    asked = [number(rf"calls: .*?([\d,]+) {what}") for what in ("training", "dev", "test")]
    assert asked[0] <= shares.training
    assert sum(asked) + SELF_TEST <= calls
    assert f"together at most {sum(asked) + SELF_TEST:,} of {calls:,}" in TRANSCRIPT


def test_notices_and_warnings_are_worded_as_today() -> None:
    pytest.importorskip("httpcore", reason="the extra `api` is not installed")
    from leverplus.backends.api.backend import OpenAIBackend

    told = SimpleNamespace(weighs=False, section=SimpleNamespace(url="http://127.0.0.1:8123/v1"))
    assert OpenAIBackend.notice.fget(told) in LINES
    dev = number(r"Recommendation: .*? on (\d+) dev items")
    assert only("warning: the choice") == [
        f"warning: {own}" for own in _few_items(dev, number(r"splits: .*?([\d,]+) dev"))
    ]


def test_the_transcript_is_whole() -> None:
    assert LINES[0].startswith("data: ")
    assert LINES[-1] == 'next: lever select bundles/first --question "..." --explain'
    assert len(only("Recommendation: Use ")) == 1
    assert not [own for own in LINES if own.strip() == "..."], "nothing is left out"
    assert number(r"(\d+) s; calls") == number(r"then ([\d,]+) s for the fit", PAGE)
