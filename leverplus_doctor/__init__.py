"""The doctor: why did this training not work? Checks are pure functions from a record to findings."""
