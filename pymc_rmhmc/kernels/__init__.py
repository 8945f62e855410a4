"""Kernels: how a state moves, and what became of it.

A kernel is immutable: its state is what it is given and what it returns. What is tuned is in it as a value, and another
value makes another kernel (`pymc_rmhmc.tuning`).
"""
