"""Tasks: where items, images and the official metric come from."""
