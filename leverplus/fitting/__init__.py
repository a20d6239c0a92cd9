"""Fitting: a user's data and a model in; a bundle, a report and one recommendation out."""
