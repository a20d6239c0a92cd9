"""Embedders: from items to vectors."""
