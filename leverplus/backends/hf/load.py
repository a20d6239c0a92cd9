"""Loads a transformers model from its folder, with or without torchvision."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from leverplus.backends.hf.files import first_line
from leverplus.backends.hf.quick import quicken
from leverplus.errors import LeverError, MissingFile
from leverplus.parsing import parse_json
from leverplus.recipe.model import ModelSection

NO_CODE = {"trust_remote_code": False}
"""Given to every loader of transformers: code that lies beside weights is never run, and the user is not asked."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and its processor if it sees pictures."""

    model: Any
    tokenizer: Any
    processor: Any | None
    dtype: str


def load_model(folder: Path, section: ModelSection) -> LoadedModel:
    """The model in a folder, on the device and in the number format that a `[model]` section asks for."""
    device = pick_device(section.device)
    dtype = section.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    try:
        return _load(folder, device, dtype)
    except torch.OutOfMemoryError as error:
        raise LeverError(
            f"the memory of {device} is too small for {folder} in {dtype}; use a smaller model, model.dtype = "
            "bfloat16, model.device = cpu, or stop what else runs there"
        ) from error
    except ImportError as error:  # some processors need a package of their own and name it
        raise LeverError(f"{folder} needs a package that is not installed: {first_line(error)}") from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise MissingFile(
            f"{folder} cannot be loaded as a model that answers questions ({first_line(error)}); is the folder whole, "
            "and is its kind one that this version of transformers knows?"
        ) from error


def _load(folder: Path, device: str, dtype: str) -> LoadedModel:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    kind = AutoModelForImageTextToText if sees_pictures(folder) else AutoModelForCausalLM
    attention = "eager" if caps_attention(folder) else "sdpa"
    try:
        model: Any = kind.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation=attention, **NO_CODE)
    except ValueError as error:  # this model has no "sdpa" attention
        if "scaled_dot_product_attention" not in str(error):
            raise
        model = kind.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="eager", **NO_CODE)
    tokenizer, processor = load_words(folder)
    model = model.to(device).eval().requires_grad_(False)
    quicken(model)
    return LoadedModel(model, tokenizer, processor, dtype)


def caps_attention(folder: Path) -> bool:
    """Whether attention weights are capped, as in Gemma 2: torch's attention cannot, and transformers may not say."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, **NO_CODE)
    return getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None) is not None


def sees_pictures(folder: Path) -> bool:
    """Whether the model in a folder is a vision-language model."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return type(AutoConfig.from_pretrained(folder, **NO_CODE)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_words(folder: Path) -> tuple[Any, Any | None]:
    """The tokenizer of the model in a folder, and its processor if it sees pictures."""
    from transformers import AutoTokenizer

    if sees_pictures(folder):
        processor = load_processor(folder)
        return processor.tokenizer, processor
    return AutoTokenizer.from_pretrained(folder, **NO_CODE), None


def pick_device(wanted: str) -> str:
    """The device of `model.device`: "auto" is a GPU where there is one."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise LeverError('model.device = "cuda": this machine has no GPU that torch can use; set it to "cpu"')
    return "cuda" if available and wanted != "cpu" else "cpu"


def load_processor(folder: Path) -> Any:
    """The processor of a vision-language model.

    The video processors of many models need torchvision, which nothing here uses; without it they are left out.
    """
    from transformers import AutoConfig, AutoProcessor
    from transformers.models.auto import processing_auto

    names: Any = processing_auto
    if find_spec("torchvision") is not None:
        return AutoProcessor.from_pretrained(folder, **NO_CODE)  # type: ignore[no-untyped-call]
    name = names.PROCESSOR_MAPPING_NAMES[AutoConfig.from_pretrained(folder, **NO_CODE).model_type]
    for file in ("processor_config.json", "preprocessor_config.json"):
        if (folder / file).is_file():
            name = parse_json((folder / file).read_bytes()).get("processor_class") or name
    return image_only(names.processor_class_from_name(name)).from_pretrained(folder, **NO_CODE)


def image_only(cls: Any) -> Any:
    """A processor class without its video processor; the same name, so that saved files say what they were."""
    if "video_processor" not in cls.get_attributes():
        return cls
    smaller: Any = None

    def get_attributes(own: Any) -> list[str]:
        names = super(smaller, own).get_attributes()  # `smaller` is the class below by the time this is called
        return [name for name in names if name != "video_processor"]

    # transformers reads the arguments of `__init__` to find the parts of a processor, so it must be the class's own.
    body = {
        "get_attributes": classmethod(get_attributes),
        "__init__": cls.__init__,
        "__module__": cls.__module__,
    }
    smaller = type(cls.__name__, (cls,), body)
    return smaller
