"""Training logs of other libraries: one reader a format, one table that says which name means what."""
