"""Lever-Plus learns which worked examples to put into the prompt of a frozen vision-language model."""

from typing import TYPE_CHECKING, Any

from leverplus.version import __version__

if TYPE_CHECKING:
    from leverplus.fitting.fit import fit
    from leverplus.selector.selector import Selector

__all__ = ["Selector", "__version__", "fit"]


def __getattr__(name: str) -> Any:
    """`leverplus.Selector` and `leverplus.fit` are loaded when asked for, so that importing the package stays quick."""
    if name == "Selector":
        from leverplus.selector.selector import Selector

        return Selector
    if name == "fit":
        from leverplus.fitting.fit import fit

        return fit
    raise AttributeError(f"module 'leverplus' has no attribute '{name}'")
