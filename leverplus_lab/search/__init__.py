"""Ways of the earlier code to find groups to learn from: lists from several sources, and more lists for flat groups."""
