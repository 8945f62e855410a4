"""Compiling with Numba: the only folder that uses its internals."""
