"""RMHMC of several packages with one metric, integrator, step size, number of steps and tolerance."""
