"""Every arm over HTTP and through the proxy: the same demonstrations in the same order as in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from listening import Noted, listening, upstream
from served import client_of, make_bundle, vector_of

from leverplus.arms.base import Arm, ArmUnavailable
from leverplus.arms.fixed import Fixed
from leverplus.arms.spec import known_arms, open_arm
from leverplus.arms.training import Training
from leverplus.bundle.selector import Selector
from leverplus.data.tasks.answers import AnswerRules
from leverplus.encode.base import Vectors
from leverplus.web.service import read_filter

QUESTIONS = [f"word{row} thing{row % 5}" for row in range(6)]
FILTER = "tenant=shop%201"


def fitted(spec: str, folder: Path) -> Arm:
    """An arm fitted to the bundle's own examples, without asking a model."""
    arm = open_arm(spec)
    if spec == "fixed":
        return Fixed({2: [4, 1], 1: [7]})
    source = Selector.load(folder).source
    items = list(source.corpus.items(range(len(source.corpus))).values())
    text = np.stack([vector_of(item.question) for item in items])
    rules = AnswerRules("exact_match", "vqa")
    return arm.fit(Training(items, Vectors(None, text, np.zeros_like(text)), rules))


@pytest.fixture(scope="module")
def behind() -> Iterator[Noted]:
    with upstream() as noted:
        yield noted


@pytest.mark.parametrize(
    "spec",
    [
        *[n for n in known_arms() if n != "vote"],
        "vote(nearest_text, 2)",
        "fused(mmr, 2)",
    ],
)
def test_http_and_proxy_show_what_python_shows(
    spec: str, tmp_path: Path, behind: Noted
) -> None:
    plain = make_bundle(tmp_path / "plain")
    try:
        arm = fitted(spec, plain)
    except ArmUnavailable as error:
        pytest.skip(str(error))
    folder = make_bundle(tmp_path / "own", arm=arm)
    selector = Selector.load(folder)
    shots = min(2, arm.most_shots)
    passes = read_filter(FILTER)
    with client_of(folder) as client, listening(folder, upstream=behind.url) as proxy:
        for only in (None, FILTER):
            headers = {} if only is None else {"x-lever-filter": FILTER}
            allowed = None if only is None else passes
            queries = [{"question": words} for words in QUESTIONS]
            many = selector.select_many(queries, shots, allowed=allowed)
            wanted = [[demo.id for demo in own] for own in many]
            body = {"queries": queries, "shots": shots}
            found = client.post("/select_many", json=body, headers=headers).json()
            assert [
                [own["id"] for own in row["demos"]] for row in found["results"]
            ] == wanted
            for row, own in zip(found["results"], many, strict=True):
                lists = [[demo.id for demo in each] for each in own.lists]
                assert row.get("lists", []) == lists
                assert row.get("answer") == own.answer
                assert bool(lists) == (arm.combines or arm.asks_first)
            for words, own in zip(QUESTIONS[:2], wanted, strict=False):
                one = client.post(
                    "/select", json={"question": words, "shots": shots}, headers=headers
                )
                assert [demo["id"] for demo in one.json()["demos"]] == own
                chat = {"model": "m", "messages": [{"role": "user", "content": words}]}
                more = {**headers, "x-lever-shots": str(shots)}
                passed = httpx.post(
                    f"{proxy.address}/v1/chat/completions", json=chat, headers=more
                )
                assert passed.headers.get("x-lever-demos", "") == ",".join(own)
            assert json.dumps(found)
