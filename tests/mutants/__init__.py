"""Planted faults, and the tests that must find them: ``python -m tests.mutants``."""
