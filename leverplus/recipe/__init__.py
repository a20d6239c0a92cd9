"""Recipes: TOML files that say a whole experiment; every problem is reported at once, the hash names the run."""
