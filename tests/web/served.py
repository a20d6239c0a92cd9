"""Small bundles with pictures and without, and the service over them: inside the test, or as the command."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from PIL import Image

from leverplus.arms.base import Arm
from leverplus.arms.spec import open_arm
from leverplus.bundle.bundle import TRUST, BundlePlan, write_bundle
from leverplus.bundle.demo import clean_picture, pixel_digest
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.encode.settings import EmbedSection
from leverplus.web.serve import create_app
from leverplus.web.service import ServeSettings

HERE = Path(__file__).parent
os.environ[TRUST] = "served"  # these bundles name an embedder of their own
ROOT = HERE.parents[1]
WIDTH = 16
COLOURS = ((220, 30, 30), (30, 200, 40), (30, 40, 220), (240, 240, 240))
FINGERPRINT = {"embedder": "words-and-colours"}
SLOW = "takes its time"
"""A question with these words takes two seconds to embed."""
BROKEN = "breaks the embedder"


def vector_of(text: str) -> NDArray[np.float32]:
    """A unit vector that follows from a text: the sum of one random direction per word."""
    total = np.full(WIDTH, 1e-3)
    for word in text.split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(WIDTH)
    return (total / np.linalg.norm(total)).astype(np.float32)


class WordsAndColours:
    """Embeds texts by their words and pictures by their mean colour."""

    def fingerprint(self) -> Mapping[str, str]:
        return FINGERPRINT

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        import time

        for item in items:
            if SLOW in item.question:
                time.sleep(2.0)
            if BROKEN in item.question:
                raise RuntimeError(f"the secret is {item.question}")
        text = np.stack([vector_of(item.question) for item in items])
        answer = np.stack(
            [vector_of(item.answer if item.answers else "none") for item in items]
        )
        pictures = [task.image(item) for item in items]
        if any(picture is None for picture in pictures):
            return Vectors(None, text, answer)
        return Vectors(
            np.stack(
                [colour_vector(picture) for picture in pictures if picture is not None]
            ),
            text,
            answer,
        )


def colour_vector(picture: Image.Image) -> NDArray[np.float32]:
    mean = np.asarray(picture.convert("RGB"), np.float32).mean(axis=(0, 1)) + 1.0
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def embedder(_section: EmbedSection) -> WordsAndColours:
    """What `embed.name = "served:embedder"` names."""
    return WordsAndColours()


def png(colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def make_bundle(
    folder: Path,
    count: int = 40,
    *,
    pictures: bool = False,
    arm: str | Arm = "nearest_text",
    **plan: Any,
) -> Path:
    """Questions `wordN thingM` with the answers red and blue, nearest by text unless told otherwise."""
    entries: list[tuple[Item, bytes | None]] = []
    vectors: dict[str, list[NDArray[np.float32]]] = {"text": []}
    for row in range(count):
        question, answer = f"word{row} thing{row % 7}", ("red", "blue")[row % 2]
        content, name = None, None
        if pictures:
            content = png(COLOURS[row % 4], (8 + row, 8))
            decoded = clean_picture(content)
            assert decoded is not None
            name = pixel_digest(decoded)
            vectors.setdefault("image", []).append(colour_vector(decoded))
        meta = {"tenant": f"shop {row % 3}", "split": ("a,b", "c&d=e")[row % 2]}
        own = Item(ItemId(f"d{row}"), question, (answer,), "train", name, name, meta)
        entries.append((own, content))
        vectors["text"].append(vector_of(question))
    section = {"name": "served:embedder", "fingerprint": FINGERPRINT}
    how = BundlePlan(**{"shots": 2, "embedder": section, **plan})
    way = arm if isinstance(arm, Arm) else open_arm(arm)
    blocks = {}
    for name, block in vectors.items():
        if name == "text" or name in way.vector_fields:
            blocks[name] = np.stack(block)
    return write_bundle(folder, how, way, entries, blocks)


def client_of(folder: Path, **settings: Any) -> TestClient:
    """The service inside this process."""
    made = ServeSettings(bundle=str(folder), **settings)
    return TestClient(
        create_app(made),
        base_url="http://127.0.0.1:8766",
        raise_server_exceptions=False,
    )


@dataclass(frozen=True)
class Running:
    """`lever serve` in a process of its own."""

    address: str
    process: subprocess.Popen[str]
    log: Path
    said: Mapping[str, Any] = field(default_factory=dict)
    """What it printed with --json."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@contextmanager
def serving(
    folder: Path, log: Path, *flags: str, **environment: str
) -> Iterator[Running]:
    """The command as a user types it; stopped as an operator stops it."""
    own = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{HERE}",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "leverplus", "serve", str(folder), "--port", "0", *flags],
            stdout=subprocess.PIPE, stderr=out, text=True, env=own,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        if "--json" in flags:
            facts = json.loads(said)
            yield Running(facts["url"], process, log, facts)
            return
        assert said.startswith("http://"), log.read_text()
        yield Running(said.split("/ serves")[0], process, log)
    finally:
        process.terminate()
        process.wait(240)  # a worker that is just being started is waited for
        process.stdout.close()
