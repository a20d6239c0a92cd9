"""The mathematics of learning to choose: arrays and numbers in, arrays and numbers out; no files, no recipe."""
