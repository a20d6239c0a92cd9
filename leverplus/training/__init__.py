"""Training: scored groups in, a better policy out; one loop for every stage."""
