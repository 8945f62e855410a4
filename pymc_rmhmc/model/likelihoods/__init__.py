"""Likelihoods: a registry of closed forms, compiled kernels, and a fallback for the rest."""

from pymc_rmhmc.model.likelihoods import binary, continuous, counts  # noqa: F401 - they register themselves
from pymc_rmhmc.model.likelihoods.likelihood_kernel import (
    FallbackKernel,
    Kernel,
    LikelihoodKernel,
    SlopeByNumPy,
    has_diagonal_hessian,
)
from pymc_rmhmc.model.likelihoods.registry import (
    Curvature,
    Likelihood,
    LikelihoodTerms,
    ParameterFault,
    Reading,
    lookup,
    places,
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
