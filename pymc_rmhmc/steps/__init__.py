"""Step methods for PyMC."""

from pymc_rmhmc.steps.rmhmc import RMHMC

__all__ = ["RMHMC"]
