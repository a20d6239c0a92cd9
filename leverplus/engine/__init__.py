"""Engines: where scoring runs."""
