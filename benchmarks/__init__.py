"""Measurements: never a test, always side by side. ``make bench`` runs them and prints the tables."""
