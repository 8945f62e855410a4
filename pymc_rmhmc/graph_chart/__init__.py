"""Trajectories of any density in flat coordinates: an affine map of a model's chart, and the loops that follow it."""
