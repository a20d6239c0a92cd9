"""Many runs as one experiment: grids whose best is chosen on dev, and tables of recipes with intervals."""
