"""Frozen models that answer prompts, in this process, behind a server or on a cluster."""
