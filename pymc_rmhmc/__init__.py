"""Riemannian manifold Hamiltonian Monte Carlo for latent Gaussian models in PyMC."""

from pymc_rmhmc import errors
from pymc_rmhmc.diagnostics.compare import compare
from pymc_rmhmc.diagnostics.failures import summarize_failures
from pymc_rmhmc.diagnostics.plots import plot_compare
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.geometry.metrics import FisherMetric, FlatMetric, HessianMetric
from pymc_rmhmc.model.describe import describe
from pymc_rmhmc.model.likelihoods import register_likelihood
from pymc_rmhmc.steps.rmhmc import RMHMC

__all__ = [
    "RMHMC",
    "FisherMetric",
    "FlatMetric",
    "GeneralizedLeapfrog",
    "HessianMetric",
    "ImplicitMidpoint",
    "compare",
    "describe",
    "errors",
    "plot_compare",
    "register_likelihood",
    "summarize_failures",
]
