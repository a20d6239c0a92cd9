"""Scores: every answer of the frozen model is paid for once, judged, kept and never asked again."""
