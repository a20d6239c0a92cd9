"""The score store: every answer of the frozen model is paid for once and kept."""
