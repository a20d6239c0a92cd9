"""Serving: a trained selector, ready to choose."""
