"""The local page over a folder of runs: list, compare, browse queries, follow a training, try it."""
