"""Learning to choose: rows, stages, the one loop, checkpoints; selectors and formulas in rooms of their own."""
