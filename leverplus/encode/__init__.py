"""Encoders: examples into vectors."""
