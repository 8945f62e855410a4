"""Riemannian manifold Hamiltonian Monte Carlo for latent Gaussian models in PyMC."""

from pymc_rmhmc.steps.rmhmc import RMHMC

__all__ = ["RMHMC"]
