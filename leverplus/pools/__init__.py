"""Candidate pools: one way to build them, used in training and in test, and rankings inside a given pool."""
