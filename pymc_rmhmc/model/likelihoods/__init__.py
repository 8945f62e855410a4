"""Likelihoods: a registry of closed forms, compiled kernels, and a fallback for the rest."""

from pymc_rmhmc.model.likelihoods import binary, continuous, counts  # noqa: F401 - they register themselves
from pymc_rmhmc.model.likelihoods.data_checks import ParameterFault, places
from pymc_rmhmc.model.likelihoods.fallback import FallbackKernel, SlopeByNumPy, has_diagonal_hessian
from pymc_rmhmc.model.likelihoods.likelihood_kernel import Kernel, LikelihoodKernel
from pymc_rmhmc.model.likelihoods.registry import (
    Curvature,
    Likelihood,
    LikelihoodTerms,
    Reading,
    lookup,
    read_likelihood,
    register_likelihood,
    registered_likelihoods,
)

__all__ = [
    "Curvature",
    "FallbackKernel",
    "Kernel",
    "Likelihood",
    "LikelihoodKernel",
    "LikelihoodTerms",
    "ParameterFault",
    "Reading",
    "SlopeByNumPy",
    "has_diagonal_hessian",
    "lookup",
    "places",
    "read_likelihood",
    "register_likelihood",
    "registered_likelihoods",
]
