"""Lever-Plus learns which worked examples to put into the prompt of a frozen vision-language model."""

__version__ = "0.1.0"
