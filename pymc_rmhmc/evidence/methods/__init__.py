"""Estimates of log p(y) from a density beside its reference; nothing here knows of PyMC."""
