"""The checks of the catalog, by what they look at."""
