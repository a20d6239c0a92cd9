"""Candidate pools: the one way to build them, for training and for test, and rankings inside a given pool."""
