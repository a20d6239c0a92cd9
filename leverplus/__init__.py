"""Lever-Plus learns which worked examples to put into the prompt of a frozen vision-language model."""

from typing import TYPE_CHECKING, Any

from leverplus.version import __version__

if TYPE_CHECKING:
    from leverplus.fitting.fit import fit
    from leverplus.fitting.records import training_records
    from leverplus.selector.selector import Selector

__all__ = ["Selector", "__version__", "fit", "training_records"]


def __getattr__(name: str) -> Any:
    """`Selector`, `fit` and `training_records` are loaded when asked for, so that importing the package stays quick."""
    if name == "Selector":
        from leverplus.selector.selector import Selector

        return Selector
    if name == "fit":
        from leverplus.fitting.fit import fit

        return fit
    if name == "training_records":
        from leverplus.fitting.records import training_records

        return training_records
    raise AttributeError(f"module 'leverplus' has no attribute '{name}'")
