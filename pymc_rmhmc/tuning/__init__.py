"""Adapters: what tuning learns from draws, when, and what it makes of it.

An adapter is immutable. What it has learned is a value that the chain keeps, saves and restores; a refit gives another.
"""
