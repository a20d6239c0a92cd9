"""Backends: the frozen model, asked in batches."""
