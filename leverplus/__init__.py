"""Lever-Plus learns which worked examples to put into the prompt of a frozen vision-language model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leverplus.version import __version__

if TYPE_CHECKING:
    from leverplus.arms.base import Arm
    from leverplus.bundle.selector import Selector
    from leverplus.run.fit import fit

__all__ = ["Arm", "Selector", "__version__", "fit"]

HOMES = {
    "Arm": "leverplus.arms.base",
    "Selector": "leverplus.bundle.selector",
    "fit": "leverplus.run.fit",
}
"""Loaded when asked for, so that importing stays quick."""


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module 'leverplus' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
