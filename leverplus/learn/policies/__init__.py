"""Selectors: small networks that choose an ordered list of demonstrations from a pool."""
