"""Scoring: ask the store, else the model; commit as answers come; and search for good demonstrations."""
