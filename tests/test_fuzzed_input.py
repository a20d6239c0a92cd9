"""Whatever a user brings ends as a result or as one sentence: seeded random data files, queries and logs.

What such a search finds is kept as a case in the tests of its part; this one goes on looking, a few hundred cases.
"""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_world import TinyRun

from leverplus.bundle.selector import Selector
from leverplus.data.tasks.jsonl import jsonl, labels
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.tasks.splits import SPLITS
from leverplus.errors import LeverError
from leverplus_doctor.check import examine
from leverplus_doctor.read import read_target
from leverplus_lab.legacy.imports import import_file

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("nan"), 10**400, "", " ", "a", "\0", "\ud800", "é" * 300, "../x.png", "/etc/passwd",
    "x.png", ".", "n" * 300, [], [[]], {}, {"a": None}, ["a", ""], ["", "", "c"], [None], "train", "dev", "world: 1",
)  # fmt: skip
BREAKS = (
    b"\n",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xff",
    b"{",
    b"]",
    b'"',
    b"null\n",
    b"\0",
    b"[" * 3000,
    b"9" * 5000,
)


def spoiled(content: bytes, rng: random.Random) -> bytes:
    """The content with a few bytes cut, doubled or put in."""
    for _ in range(rng.choice((0, 0, 1, 1, 3))):
        place = rng.randrange(len(content) + 1)
        end = min(len(content), place + rng.choice((0, 0, 1, 20)))
        content = content[:place] + rng.choice((b"", *BREAKS)) + content[end:]
    return content


def records(rng: random.Random, kind: str) -> bytes:
    """Lines of a task file, most of them right."""
    lines = []
    for number in range(rng.choice((0, 1, 3, 12, 40))):
        row: dict[str, Any] = {
            "id": number,
            "question": f"What is {number}?",
            "answers": ["a"] * rng.choice((1, 4)),
        }
        if kind == "labels":
            row = {"text": f"text {number}", "label": rng.choice(("good", "bad"))}
        if rng.random() < 0.3:
            row["image"] = rng.choice(("x.png", "broken.png", "no.png"))
        if rng.random() < 0.05:
            row[rng.choice((*row, "split", "meta", "image", "image_id", "other"))] = (
                rng.choice(ODD)
            )
        lines.append(json.dumps(row))
    return spoiled("\n".join(lines).encode(), rng)


def check_sentence(error: LeverError, seed: int) -> None:
    text = str(error)
    assert text.strip(), seed
    assert len(text) < 20_000, seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "labels"])
def test_a_data_file_is_a_task_or_a_sentence(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "x.png").read_bytes()[:40])
    path, load, outcomes = (
        tmp_path / "a.jsonl",
        {"jsonl": jsonl, "labels": labels}[kind],
        [0, 0],
    )
    for seed in range(250):
        rng = random.Random(f"{kind} {seed}")
        path.write_bytes(records(rng, kind))
        section = TaskSection(
            name=kind,
            file=str(path),
            skip_empty=rng.random() < 0.5,
            limit=rng.choice((0, 0, 2)),
        )
        try:
            task = load(section)
            assert all(task.items(split) for split in SPLITS), seed
            assert len(task.version) == 16
            outcomes[0] += 1
        except LeverError as error:
            check_sentence(error, seed)
            outcomes[1] += 1
    assert min(outcomes) >= 10, outcomes


@pytest.mark.slow
def test_a_query_is_answered_or_refused_with_a_sentence(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    selector = Selector.load(tiny_run.folder)
    out = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(out, "PNG")
    good, outcomes = out.getvalue(), [0, 0]
    (tmp_path / "good.png").write_bytes(good)
    for seed in range(200):
        rng = random.Random(seed)
        content = spoiled(good, rng)
        (tmp_path / "odd.png").write_bytes(content)
        url = "data:image/png;base64," + base64.b64encode(content).decode()
        image = rng.choice(
            (
                content,
                url,
                url[: rng.randrange(60)],
                tmp_path / "odd.png",
                good,
                good,
                rng.choice(ODD),
            )
        )
        question = rng.choice(
            (
                "what does it like",
                "what  does it fear ",
                "what does it like",
                rng.choice(ODD),
            )
        )
        shots = rng.choice((1, 2, 2, 4, rng.choice(ODD)))
        try:
            chosen = selector.select(question=question, image=image, shots=shots)
            assert len({item.id for item in chosen}) == shots, seed
            outcomes[0] += 1
        except LeverError as error:
            check_sentence(error, seed)
            outcomes[1] += 1
    assert min(outcomes) >= 20, outcomes


@pytest.mark.slow
def test_the_doctor_and_the_import_read_or_say_why_not(tmp_path: Path) -> None:
    candidates = [
        {"pointer": [n, n + 1], "vqa_acc_score": n / 4, "gen_method": "beam"}
        for n in range(4)
    ]
    rl = json.dumps(
        {
            "7": {"pointer_candidates": candidates},
            "8": {"pointer_candidates": candidates},
        }
    ).encode()
    beam = json.dumps(
        {"7": {"id_list": [[1, 2, 7], [3, 4, 7]], "score_list": [0.1, 0.2]}}
    ).encode()
    log = b"".join(
        json.dumps({"stage": "sft", "epoch": n, "train/reward": n / 9}).encode() + b"\n"
        for n in range(5)
    )
    outcomes = [0, 0]
    for seed in range(250):
        rng = random.Random(seed)
        name, content = rng.choice(
            (("a.json", rl), ("a.json", beam), ("a.jsonl", log), ("a.md", log))
        )
        if rng.random() < 0.5 and name == "a.json":
            values = json.loads(content)
            entry = rng.choice(list(values.values()))
            entry[rng.choice(list(entry))] = rng.choice(ODD)
            content = json.dumps(values).encode()
        path = tmp_path / name
        path.write_bytes(spoiled(content, rng))
        for read in (lambda path: examine(read_target(path)), import_file):
            try:
                read(path)
                outcomes[0] += 1
            except LeverError as error:
                check_sentence(error, seed)
                outcomes[1] += 1
    assert min(outcomes) >= 20, outcomes
