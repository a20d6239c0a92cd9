"""Recorded tables: what a frozen model did with many prompts, in one Parquet file, and the backend that replays it."""
