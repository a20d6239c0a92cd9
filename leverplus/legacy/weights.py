"""Opening a `.pt` or `.ckpt` file of a stranger: bounded before anything is unpacked, and nothing in it is executed."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus.errors import CheckpointError, MissingFile

MOST_NODES = 100_000
"""Values that stand beside the weights; more is no description of a training (lists that hold each other multiply)."""

_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError,
    ArithmeticError, ImportError, MemoryError, struct.error,
)  # fmt: skip
"""What torch and the unpickler raise over bytes that they did not expect."""


def open_file(path: Path) -> Any:
    """What `torch.load` finds in a file, tensors and plain values only."""
    if not path.is_file():
        raise MissingFile(f"there is no file {path}")
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on strange files; what cannot be read is said below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds objects beside tensors and plain values, which are not loaded because they can run code; "
            "in the earlier environment save torch.load(path)['state_dict'] alone and import that"
        ) from error
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason}); copy or save it again") from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that would unpack to more than the file holds: torch.save never compresses."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            inside = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({error}); copy or save it again") from error
    size = path.stat().st_size
    if inside > size:
        raise CheckpointError(
            f"{path} has {size:,} bytes and would unpack to {inside:,}; torch.save writes no such file, so it is not "
            "opened"
        )


def check_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that claim more numbers than the file holds, and those that are no plain array of numbers."""
    size = path.stat().st_size
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.device.type != "cpu":
            raise CheckpointError(f"{path}: {name} is no plain array of numbers; save it as one and import that")
        claimed = tensor.numel() * tensor.element_size()
        if claimed > size or max(tensor.shape, default=0) > size:
            raise CheckpointError(
                f"{path}: {name} claims to be {' x '.join(map(str, tensor.shape)) or 'one number'}, more than a file "
                f"of {size:,} bytes holds, so it is not loaded"
            )
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > 2 * size:  # tensors may share their numbers, but not many times over
        raise CheckpointError(f"{path} claims {total:,} bytes of weights in a file of {size:,}, so it is not loaded")


def is_small(value: Any) -> bool:
    """Whether a value that stands beside the weights has few enough parts to be written down."""
    left, waiting = MOST_NODES, [value]
    while waiting:
        left -= 1
        if left < 0:
            return False
        node = waiting.pop()
        if isinstance(node, (str, bytes)):
            left -= len(node) // 64
        elif isinstance(node, Mapping):
            waiting.extend(node.values())
            left -= len(node)
        elif isinstance(node, (list, tuple, set)):
            if len(node) > left:
                return False
            waiting.extend(node)
    return True
