"""Lever-Plus learns which worked examples to put into the prompt of a frozen vision-language model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leverplus.selector.selector import Selector

__all__ = ["Selector", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`leverplus.Selector` is loaded when it is asked for, so that importing the package stays quick."""
    if name == "Selector":
        from leverplus.selector.selector import Selector

        return Selector
    raise AttributeError(f"module 'leverplus' has no attribute '{name}'")
