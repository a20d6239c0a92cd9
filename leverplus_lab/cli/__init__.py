"""Commands of the lab: the benchmark, the embedded world, and files of the earlier code."""
