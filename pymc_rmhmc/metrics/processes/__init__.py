"""Metrics of a Gaussian process or series together with its hyperparameters, and their densities."""
